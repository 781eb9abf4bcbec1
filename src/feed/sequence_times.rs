//! Index from sequences to the times of their changes. Records need no time of their own.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use imbl::Vector;

use crate::model::{Sequence, SequenceRun};

/// Length of a new run, and so the precision of the times of recent changes.
const RUN_LENGTH: Duration = Duration::from_secs(1);

/// Ages above which runs are joined, each with the maximum length of a joined run. The index of a
/// year of continuous changes has 3,600 runs for the last hour, 1,380 for the rest of the last day
/// and 8,736 for the rest of the year.
const JOINED_LENGTHS: [(Duration, Duration); 2] =
    [(Duration::from_hours(24), Duration::from_hours(1)), (Duration::from_hours(1), Duration::from_mins(1))];

/// Maximum number of runs, of 40 bytes each. If there are more, the oldest are joined.
const RUNS_MAX: usize = 16_384;

/// Interval at which old runs are joined.
const JOIN_INTERVAL: Duration = Duration::from_mins(1);

/// Runs of sequences with their times, in order of sequence. A clone is a cheap snapshot.
///
/// The order is that of the sequences. If the clock is set back, later runs have earlier times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SequenceTimes {
    runs: Vector<SequenceRun>,
    /// Time at which old runs were last joined.
    joined_at: Option<SystemTime>,
}

/// Added (`Some`) and removed (`None`) runs by their first sequence.
pub type RunChanges = BTreeMap<Sequence, Option<SequenceRun>>;

impl SequenceTimes {
    /// Creates the index from stored runs, sorted by sequence.
    #[must_use]
    pub fn from_runs(runs: impl IntoIterator<Item = SequenceRun>) -> Self {
        Self { runs: runs.into_iter().collect(), joined_at: None }
    }

    /// Records that a sequence was used at `now`. Returns the changed runs: none if the newest run
    /// contains the time.
    pub(super) fn record(&mut self, sequence: Sequence, now: SystemTime) -> RunChanges {
        let mut changes = RunChanges::new();
        if self.runs.last().is_some_and(|run| run.from <= now && now < run.to) {
            return changes;
        }
        let from = whole_second(now);
        let run = SequenceRun { first: sequence, from, to: from + RUN_LENGTH };
        self.runs.push_back(run);
        changes.insert(sequence, Some(run));
        let is_due = self.joined_at.is_none_or(|joined_at| now.duration_since(joined_at).is_ok_and(|elapsed| elapsed >= JOIN_INTERVAL));
        if is_due || self.runs.len() > RUNS_MAX {
            self.joined_at = Some(now);
            self.join_old_runs(now, &mut changes);
        }
        changes
    }

    /// Joins neighbours that are old enough, and the oldest runs if there are too many.
    fn join_old_runs(&mut self, now: SystemTime, changes: &mut RunChanges) {
        let mut excess = self.runs.len().saturating_sub(RUNS_MAX / 2);
        let is_full = self.runs.len() > RUNS_MAX;
        let mut joined: Vec<SequenceRun> = Vec::with_capacity(self.runs.len());
        for run in &self.runs {
            match joined.last_mut() {
                Some(last) if (is_full && excess > 0) || can_join(last, run, now) => {
                    excess = excess.saturating_sub(1);
                    *last = SequenceRun { first: last.first, from: last.from.min(run.from), to: last.to.max(run.to) };
                    changes.insert(run.first, None);
                    changes.insert(last.first, Some(*last));
                }
                _ => joined.push(*run),
            }
        }
        if joined.len() < self.runs.len() {
            self.runs = joined.into();
        }
    }

    /// Returns the times between which a sequence was used. `None` if the sequence is older than
    /// the index.
    #[must_use]
    pub fn times_of(&self, sequence: Sequence) -> Option<(SystemTime, SystemTime)> {
        let at = self.runs.binary_search_by(|run| run.first.cmp(&sequence)).unwrap_or_else(|next| next.wrapping_sub(1));
        self.runs.get(at).map(|run| (run.from, run.to))
    }

    /// Returns a sequence such that all changes after `time` have higher ones. `None` if changes
    /// that are not in the index may be newer than `time`.
    #[must_use]
    pub fn sequence_before(&self, time: SystemTime) -> Option<Sequence> {
        self.runs.front().filter(|oldest| oldest.from <= time)?;
        let first_after = self.runs.iter().find(|run| run.to > time);
        // without a later run, nothing has changed since
        Some(first_after.map_or(Sequence(u64::MAX), |run| Sequence(run.first.0 - 1)))
    }
}

/// Returns a time without the fraction of its second.
fn whole_second(time: SystemTime) -> SystemTime {
    let fraction = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
    time - Duration::from_nanos(fraction.into())
}

/// Returns whether two neighbours are old enough to be joined.
fn can_join(run: &SequenceRun, next: &SequenceRun, now: SystemTime) -> bool {
    let age = now.duration_since(run.to.max(next.to)).unwrap_or_default();
    let length_max = JOINED_LENGTHS.into_iter().find(|(age_min, _)| age >= *age_min).map(|(_, length_max)| length_max);
    let (from, to) = (run.from.min(next.from), run.to.max(next.to));
    length_max.is_some_and(|length_max| to.duration_since(from).is_ok_and(|length| length <= length_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Records a sequence at each of these times, and returns the index.
    fn recorded(times: impl IntoIterator<Item = (u64, SystemTime)>) -> SequenceTimes {
        let mut index = SequenceTimes::default();
        let mut stored = RunChanges::new();
        for (sequence, time) in times {
            stored.extend(index.record(Sequence(sequence), time));
        }
        let restored = SequenceTimes::from_runs(stored.into_values().flatten());
        assert_eq!(restored.runs, index.runs, "the changes lead to the same runs");
        index
    }

    #[test]
    fn sequences_of_one_second_share_a_run() {
        let half = Duration::from_millis(500);
        let index = recorded([(10, at(100)), (11, at(100) + half), (12, at(101)), (15, at(200))]);
        let second = |from: u64| Some((at(from), at(from + 1)));
        let times = [9, 10, 11, 12, 14, 15, 99].map(|sequence| index.times_of(Sequence(sequence)));
        assert_eq!(times, [None, second(100), second(100), second(101), second(101), second(200), second(200)]);
    }

    #[test]
    fn a_time_leads_to_the_sequence_before_it() {
        let index = recorded([(10, at(100)), (20, at(200)), (30, at(300))]);
        let before = [99, 100, 150, 200, 250, 301, 400].map(|time| index.sequence_before(at(time)).map(|sequence| sequence.0));
        assert_eq!(before, [None, Some(9), Some(19), Some(19), Some(29), Some(u64::MAX), Some(u64::MAX)]);
    }

    #[test]
    fn a_clock_that_is_set_back_hides_no_change() {
        let index = recorded([(10, at(1_000)), (20, at(5_000)), (30, at(2_000)), (40, at(2_500))]);
        assert_eq!(index.sequence_before(at(2_100)), Some(Sequence(19)), "the change at 5,000 is newer than 2,100");
        assert_eq!(index.times_of(Sequence(35)), Some((at(2_000), at(2_001))));
    }

    #[test]
    fn old_runs_are_joined_and_keep_their_bounds() {
        let index = recorded((0..120_000).map(|second| (second + 1, at(second))));
        // an hour of seconds, 23 hours of minutes and the rest in hours
        assert!((4_980..5_100).contains(&index.runs.len()), "{} runs", index.runs.len());
        for sequence in (1..=120_000).step_by(37) {
            let (from, to) = index.times_of(Sequence(sequence)).unwrap();
            let time = at(sequence - 1);
            assert!(from <= time && time < to, "{sequence}: {from:?} to {to:?}");
            let age = Duration::from_secs(120_000 - sequence);
            let length_max = match age {
                _ if age < Duration::from_mins(59) => 1,
                _ if age < Duration::from_hours(23) => 60,
                _ => 3_600,
            };
            assert!(to.duration_since(from).unwrap() <= Duration::from_secs(length_max), "{sequence}: {from:?} to {to:?}");
        }
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let run = |number: u64| SequenceRun { first: Sequence(number), from: at(number * 7_200), to: at(number * 7_200 + 1) };
        let full = RUNS_MAX as u64;
        let mut index = SequenceTimes::from_runs((0..full).map(run));
        let changes = index.record(Sequence(full), run(full).from);
        assert_eq!((index.runs.len(), changes.values().filter(|run| run.is_none()).count()), (RUNS_MAX / 2, RUNS_MAX / 2 + 1));
        assert_eq!(index.times_of(Sequence(full)), Some((run(full).from, run(full).to)));
        assert_eq!(index.times_of(Sequence(5)), Some((at(0), run(full / 2 + 1).to)), "the oldest half is one run");
    }
}

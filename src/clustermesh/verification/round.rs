//! Order and pace in which the keys of a cluster's kinds are compared with the source. Outlives
//! connections. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::kind_comparison::KindComparison;
use crate::clustermesh::resync::SourceInfo;
use crate::model::{Kind, Revision};

/// Maximum average rate at which keys are read for the comparison, in bytes per second and remote.
/// A million keys have some 70 MB in etcd's replies, so they are read within an hour.
const BYTES_PER_SECOND_MAX: u64 = 20_000;

/// Number of attempts per interval between two comparisons of the counts, while kinds are listed.
const ATTEMPTS_PER_INTERVAL: u32 = 6;

/// Number of rounds for which the progress of a kind is kept without another range. The first
/// ranges of an older comparison say too little about now.
const PROGRESS_ROUNDS_MAX: u32 = 2;

/// Intervals between comparisons.
#[derive(Debug, Clone, Copy)]
pub(super) struct RoundIntervals {
    /// Interval between two comparisons of the counts.
    pub(super) interval: Duration,
    /// Interval between the starts of two rounds.
    pub(super) round: Duration,
    /// Interval between two comparisons of the values of a kind.
    pub(super) values_interval: Duration,
}

/// Comparison of the keys of all kinds, one kind after another.
#[derive(Debug)]
pub(super) struct Round {
    intervals: RoundIntervals,
    started: Instant,
    /// Kind that is compared now.
    current: KindProgress,
    /// Kinds that are compared afterwards.
    remaining: VecDeque<KindProgress>,
    /// Kinds that could not be compared until the end of the round.
    unfinished: Vec<KindProgress>,
    /// Time at which the next range is due.
    pub(super) next_range: Instant,
    /// Time until which the answers so far use up [`BYTES_PER_SECOND_MAX`].
    paced_until: Instant,
    /// Bytes that recounts without a result have read, less those that ranges of rounds have read
    /// since.
    recount_lead: u64,
    /// Source of the progress; `None` before the first connection.
    source: Option<SourceInfo>,
    /// Newest revision of the source that the verification has seen.
    last_revision: Revision,
    /// Kind whose values are compared next. The kinds take turns.
    values_kind: Kind,
    /// Time of the last comparison of values, or of the start.
    values_compared: Instant,
}

/// Progress of the comparison of one kind.
#[derive(Debug, Clone)]
struct KindProgress {
    kind: Kind,
    comparison: KindComparison,
    /// Time at which the next range is due.
    due: Instant,
}

impl KindProgress {
    fn new(kind: Kind, now: Instant) -> Self {
        Self { kind, comparison: KindComparison::default(), due: now }
    }
}

impl Round {
    pub(super) fn new(intervals: RoundIntervals, now: Instant) -> Self {
        let remaining = Kind::ALL.into_iter().skip(1).map(|kind| KindProgress::new(kind, now)).collect();
        let current = KindProgress::new(Kind::ALL[0], now);
        Self {
            intervals,
            started: now,
            current,
            remaining,
            unfinished: Vec::new(),
            next_range: now,
            paced_until: now,
            recount_lead: 0,
            source: None,
            last_revision: Revision(0),
            values_kind: Kind::ALL[0],
            values_compared: now,
        }
    }

    /// Continues over a new connection. The first one starts at `first`. Progress is kept if the
    /// source is the same and its revision did not go backwards. An etcd that lost revisions has
    /// another history: ranges that were compared before say nothing about it.
    pub(super) fn resume(&mut self, source: &SourceInfo, newest: Revision, first: Instant) {
        let origin = |source: &SourceInfo| (source.etcd_cluster_id, source.cached);
        let is_same = self.source.as_ref().is_some_and(|known| origin(known) == origin(source));
        if !is_same || newest < self.last_revision {
            for progress in self.remaining.iter_mut().chain(&mut self.unfinished).chain([&mut self.current]) {
                progress.comparison = KindComparison::default();
            }
        }
        self.last_revision = newest;
        if self.source.replace(source.clone()).is_none() {
            (self.started, self.next_range) = (first, first);
        }
    }

    /// Records the newest revision of the source.
    pub(super) fn record_revision(&mut self, revision: Revision) {
        self.last_revision = self.last_revision.max(revision);
    }

    /// Returns the current kind, with the progress of its comparison.
    pub(super) fn current(&mut self, now: Instant) -> (Kind, KindComparison) {
        let KindProgress { kind, comparison, due } = &mut self.current;
        if now.saturating_duration_since(*due) > self.intervals.round * PROGRESS_ROUNDS_MAX {
            *comparison = KindComparison::default();
        }
        if comparison.revision.is_none() {
            let is_due = now.saturating_duration_since(self.values_compared) >= self.intervals.values_interval;
            comparison.with_values = is_due && *kind == self.values_kind;
        }
        (*kind, comparison.clone())
    }

    /// Records a range of the current kind that is not the last one. All answers about it had
    /// `bytes`, including those that confirmed a difference.
    pub(super) fn record_range(&mut self, comparison: KindComparison, bytes: u64, now: Instant) {
        let due = self.pace_round(bytes, now);
        (self.current.comparison, self.current.due, self.next_range) = (comparison, due, due);
    }

    /// Records the last range of the current kind, and moves on to the next one.
    pub(super) fn complete_kind(&mut self, bytes: u64, now: Instant) {
        self.next_range = self.pace_round(bytes, now);
        let completed = self.start_next(now);
        if completed.comparison.with_values {
            self.values_compared = now;
            self.end_turn(completed.kind);
        }
    }

    /// Moves on to the next kind, because the current one cannot be compared now. It is compared
    /// after the others, or in the next round if this one is over. The answers about it had
    /// `bytes`.
    pub(super) fn delay_kind(&mut self, bytes: u64, now: Instant) {
        self.next_range = self.pace_round(bytes, now).max(now + self.intervals.interval / ATTEMPTS_PER_INTERVAL);
        let delayed = self.current.clone();
        if now < self.started + self.intervals.round {
            self.remaining.push_back(delayed);
        } else {
            // a kind that cannot be compared must not keep the others from their turns
            self.end_turn(delayed.kind);
            self.unfinished.push(delayed);
        }
        self.start_next(now);
    }

    /// Starts the current kind again after the others, because it is being repaired.
    pub(super) fn restart_kind(&mut self, bytes: u64, now: Instant) {
        self.current = KindProgress::new(self.current.kind, now);
        self.delay_kind(bytes, now);
    }

    /// Moves on to the next kind, because the cluster does not publish the current one.
    pub(super) fn skip_kind(&mut self, now: Instant) {
        self.next_range = self.paced_until.max(now);
        self.end_turn(self.current.kind);
        self.start_next(now);
    }

    /// Delays the next range because of answers that are not part of the round: of counts, of the
    /// keys of a kind whose count differs, and of requests of clients. The delay is at most the
    /// interval between two rounds.
    pub(super) fn delay_ranges(&mut self, bytes: u64, now: Instant) {
        let latest = self.paced_until.max(now + self.intervals.round);
        self.paced_until = self.pace(bytes, now).min(latest);
        self.next_range = self.next_range.max(self.paced_until);
    }

    /// Records the length of the answers of a recount that had no result.
    pub(super) fn record_unsettled_recount(&mut self, bytes: u64) {
        self.recount_lead += bytes;
    }

    /// Returns whether the rate permits to read all keys of a kind whose count differs. `bytes` is
    /// the approximate length of the answers. Only a small kind may be read while earlier answers
    /// still need a pause of more than an interval, and after a recount without a result until the
    /// rounds have read as much: recounts would otherwise use up the rate for as long as a kind
    /// does not settle.
    pub(super) fn permits_recount(&self, bytes: u64, now: Instant) -> bool {
        let is_small = pause_after(bytes) <= self.intervals.interval / ATTEMPTS_PER_INTERVAL;
        is_small || (self.recount_lead == 0 && self.paced_until <= now + self.intervals.interval)
    }

    /// Adds the pause after answers about a range of the round. Returns its end.
    fn pace_round(&mut self, bytes: u64, now: Instant) -> Instant {
        self.recount_lead = self.recount_lead.saturating_sub(bytes);
        self.pace(bytes, now)
    }

    /// Adds the pause after answers of this length. Returns its end.
    fn pace(&mut self, bytes: u64, now: Instant) -> Instant {
        self.paced_until = self.paced_until.max(now) + pause_after(bytes);
        self.paced_until
    }

    /// Ends the turn of a kind to have its values compared.
    fn end_turn(&mut self, kind: Kind) {
        if kind == self.values_kind {
            self.values_kind = Kind::ALL[(kind.index() + 1) % Kind::ALL.len()];
        }
    }

    /// Moves on to the next kind, and returns the progress of the current one. After the last kind,
    /// a new round starts at its time.
    fn start_next(&mut self, now: Instant) -> KindProgress {
        if self.remaining.is_empty() {
            self.started = now.max(self.started + self.intervals.round);
            self.next_range = self.next_range.max(self.started);
            let mut unfinished = std::mem::take(&mut self.unfinished);
            let progress_of = |kind: Kind| {
                let position = unfinished.iter().position(|progress| progress.kind == kind);
                position.map_or_else(|| KindProgress::new(kind, now), |position| unfinished.swap_remove(position))
            };
            self.remaining = Kind::ALL.map(progress_of).into();
        }
        let next = self.remaining.pop_front().unwrap_or_else(|| self.current.clone());
        std::mem::replace(&mut self.current, next)
    }
}

/// Returns the pause after answers of this length.
const fn pause_after(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1_000) / BYTES_PER_SECOND_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterId, EtcdClusterId, MaxConnectedClusters};

    const ROUND: Duration = Duration::from_secs(1_800);

    fn round(now: Instant) -> Round {
        let intervals = RoundIntervals { interval: Duration::from_secs(60), round: ROUND, values_interval: Duration::from_secs(86_400) };
        let mut round = Round::new(intervals, now);
        round.resume(&source(7), Revision(20), now);
        round
    }

    fn source(etcd_cluster_id: u64) -> SourceInfo {
        SourceInfo {
            etcd_cluster_id: EtcdClusterId(etcd_cluster_id),
            cached: false,
            canaries: true,
            cluster_id: ClusterId(7),
            max_connected_clusters: MaxConnectedClusters::default(),
        }
    }

    /// Returns the comparison after a range, which was read at a revision.
    fn after_range(revision: i64) -> KindComparison {
        KindComparison { start: Some(b"m".to_vec()), revision: Some(Revision(revision)), key_count: 9, ..KindComparison::default() }
    }

    fn key_counts(round: &mut Round, now: Instant) -> Vec<(Kind, u64)> {
        let counts = Kind::ALL.map(|_| {
            let (kind, comparison) = round.current(now);
            round.complete_kind(0, now);
            (kind, comparison.key_count)
        });
        counts.into()
    }

    #[test]
    fn progress_outlives_a_connection_to_the_same_source() {
        let now = Instant::now();
        for (etcd, newest, passed, expected) in [(7, 30, 0, 9), (7, 31, 0, 9), (8, 30, 0, 0), (7, 29, 0, 0), (7, 30, 3, 0)] {
            let mut round = round(now);
            round.complete_kind(0, now);
            // the first range was read at revision 20, and a later one at 30
            round.record_range(after_range(20), 0, now);
            round.record_revision(Revision(30));
            round.record_revision(Revision(25));
            round.resume(&source(etcd), Revision(newest), now);
            let (kind, comparison) = round.current(now + passed * ROUND);
            assert_eq!((kind, comparison.key_count), (Kind::ALL[1], expected), "{etcd} {newest} {passed}");
        }
    }

    #[test]
    fn a_delayed_kind_continues_after_the_others_or_in_the_next_round() {
        for (passed, round_is_over) in [(Duration::ZERO, false), (ROUND, true)] {
            let now = Instant::now();
            let mut round = round(now);
            round.record_range(after_range(20), 0, now);
            let now = now + passed;
            round.delay_kind(0, now);
            let mut expected: Vec<_> = Kind::ALL[1..].iter().map(|kind| (*kind, 0)).collect();
            expected.push((Kind::ALL[0], 9));
            assert_eq!(key_counts(&mut round, now), expected);
            assert_eq!(round.started, if round_is_over { now } else { now + ROUND });
        }
    }

    /// Each kind has its turn, although one is not published and one cannot be compared.
    #[test]
    fn the_values_of_each_kind_are_compared_in_turn() {
        let start = Instant::now();
        let (absent, unsettled) = (Kind::ALL[1], Kind::ALL[3]);
        let mut round = round(start);
        let mut turns = Vec::new();
        while turns.len() < 5 {
            let now = round.next_range.max(start);
            let (kind, comparison) = round.current(now);
            if kind == absent {
                round.skip_kind(now);
            } else if kind == unsettled {
                round.delay_kind(0, now);
            } else {
                if comparison.with_values {
                    turns.push((kind, now.duration_since(start).as_secs() / 86_400));
                    round.record_range(comparison, 0, now);
                }
                round.complete_kind(0, now);
            }
        }
        let [first, _, second, _, third, fourth] = Kind::ALL;
        assert_eq!(turns, [(first, 1), (second, 2), (third, 3), (fourth, 4), (first, 5)]);
    }

    #[test]
    fn the_pause_after_a_large_range_keeps_the_progress() {
        let now = Instant::now();
        let mut round = round(now);
        let bytes = 3 * ROUND.as_secs() * BYTES_PER_SECOND_MAX;
        round.record_range(after_range(20), bytes, now);
        assert_eq!(round.next_range, now + 3 * ROUND);
        assert_eq!(round.current(now + 3 * ROUND).1.key_count, 9);
    }

    #[test]
    fn every_range_is_followed_by_a_pause() {
        let now = Instant::now();
        let mut round = round(now);
        round.record_range(after_range(20), 40_000, now);
        assert_eq!(round.next_range, now + Duration::from_secs(2));
        let now = round.next_range;
        round.complete_kind(60_000, now);
        assert_eq!(round.next_range, now + Duration::from_secs(3));
        let now = round.next_range;
        round.skip_kind(now);
        assert_eq!(round.next_range, now);
    }

    #[test]
    fn answers_without_a_result_are_followed_by_a_pause() {
        let second = Duration::from_secs(1);
        let now = Instant::now();
        let mut round = round(now);
        round.delay_kind(20_000, now);
        assert_eq!(round.next_range, now + 10 * second, "a sixth of the interval");
        let now = round.next_range;
        round.delay_kind(400_000, now);
        assert_eq!(round.next_range, now + 20 * second);
        let now = round.next_range;
        round.restart_kind(600_000, now);
        assert_eq!(round.next_range, now + 30 * second);
        // counts in the pause after a range
        round.delay_ranges(40_000, now + second);
        assert_eq!(round.next_range, now + 32 * second);
        let large = 1_000_000;
        assert!(round.permits_recount(large, now));
        round.delay_ranges(40 * BYTES_PER_SECOND_MAX, now);
        assert!(!round.permits_recount(large, now) && round.permits_recount(large, now + 12 * second));
        assert!(round.permits_recount(20_000, now), "a small kind need not wait");
        // a client had all keys compared
        round.delay_ranges(1 << 40, now);
        assert_eq!(round.next_range, now + ROUND);
    }

    #[test]
    fn recounts_without_a_result_leave_half_of_the_rate_to_the_rounds() {
        let (now, large) = (Instant::now(), 1_000_000);
        let mut round = round(now);
        round.record_unsettled_recount(large);
        round.delay_ranges(large, now);
        let now = round.next_range;
        assert!(!round.permits_recount(large, now) && round.permits_recount(20_000, now));
        round.record_range(after_range(20), 400_000, now);
        let now = round.next_range;
        assert!(!round.permits_recount(large, now));
        round.complete_kind(600_000, now);
        assert!(round.permits_recount(large, round.next_range));
    }

    /// The kinds keep their order, and those that must wait follow in the order of their delays.
    #[test]
    fn kinds_that_must_wait_are_compared_after_the_others() {
        let now = Instant::now();
        let mut round = round(now);
        let [first, second, third, ..] = Kind::ALL;
        let mut order = Vec::new();
        while order.len() < Kind::ALL.len() + 3 {
            let (kind, _) = round.current(now);
            let visits = order.iter().filter(|visited| **visited == kind).count();
            order.push(kind);
            match visits {
                0 if kind == first || kind == third => round.delay_kind(0, now),
                1 if kind == third => round.restart_kind(0, now),
                _ if kind == second => round.skip_kind(now),
                _ => round.complete_kind(0, now),
            }
        }
        let expected: Vec<Kind> = Kind::ALL.into_iter().chain([first, third, third]).collect();
        assert_eq!(order, expected);
        assert_eq!((round.current(now).0, round.started), (first, now + ROUND), "the next round");
    }
}

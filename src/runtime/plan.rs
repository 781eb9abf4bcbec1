//! Where a start begins: which earlier positions it honours, and the sequence that its own count from.
//!
//! Owns: what follows from the marks of the store and the clock alone, so that it is known before entries are. Deliberately lacks: the entries
//! (`restore`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::{ClusterName, Epoch, EpochSpan, Sequence};
use crate::store::Loaded;
use crate::view::View;

/// More starts than this are not remembered: with one crash a minute they reach back longer than most tombstones' floors.
const EPOCHS_MAX: usize = 1_024;

/// A clock that shows this many microseconds since 1970 or more (the year 2112) is wrong. Sequences stay far below 2^53, the largest integer
/// that JSON readers keep exactly.
const CLOCK_MICROS_MAX: u64 = 1 << 52;

/// Upper bound on the random gap above the stored sequence where the clock cannot give the first sequence. Two copies of a store that start so
/// use different sequences, but for about one case in 16,000 for each 1,000 changes.
const GAP_MAX: u64 = 1 << 24;

/// What a start draws before it reads the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StartSeed {
    pub(super) epoch: Epoch,
    /// The wall clock.
    pub(super) time: SystemTime,
    /// Number of sequences that are left out where the clock cannot give the first one.
    pub(super) gap: u64,
}

/// Where a start begins.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) seed: StartSeed,
    /// The earlier starts, each with the newest sequence that is vouched for. The first one names the history; the others are in order of age.
    earlier: Vec<EpochSpan>,
    /// Their phases are announced anew with the last sequences up to the head.
    pub(super) clusters: BTreeSet<ClusterName>,
    pub(super) head: Sequence,
    /// The clock is not ahead of the store, so this start cannot know that nobody used its sequences before: a history of its own begins.
    pub(super) is_new_history: bool,
}

impl StartSeed {
    /// Draws the numbers of a start at the time that the clock shows.
    pub(super) fn draw(time: SystemTime) -> Self {
        Self { epoch: Epoch(rand::random()), time, gap: rand::random_range(0..GAP_MAX) }
    }

    /// Microseconds since 1970; 0 where the clock shows an earlier time or one that cannot be true.
    fn micros(self) -> u64 {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).ok().filter(|micros| *micros < CLOCK_MICROS_MAX).unwrap_or_default()
    }
}

impl Plan {
    /// A start from these marks, with these clusters.
    ///
    /// Its first sequence is the clock in microseconds: no copy of the store that ran before has used it, as nobody announces a million changes
    /// a second for long. Where the clock is not ahead of the store, this cannot be known, and the history gets a new name.
    pub(super) fn new(marks: &Loaded, clusters: BTreeSet<ClusterName>, seed: StartSeed) -> Self {
        let stored = marks.sequence_reserved.max(marks.covered);
        let newest_contact = marks.clusters.iter().filter_map(|(_, record)| record.last_contact).max();
        let is_ahead = seed.micros() > stored.0 && newest_contact.is_none_or(|contact| seed.time > contact);
        let before_first = if is_ahead { seed.micros() - 1 } else { stored.0 + seed.gap };
        let head = Sequence(before_first + clusters.len() as u64);
        Self { seed, earlier: vouched(&marks.epochs, marks.covered, marks.floor), clusters, head, is_new_history: !is_ahead }
    }

    /// Whether positions that were given out by another plan mean the same by this one.
    pub(super) fn goes_on(&self, begun: &Self) -> bool {
        (self.seed, self.head, self.is_new_history) == (begun.seed, begun.head, begun.is_new_history) && self.clusters == begun.clusters
    }

    /// The starts whose positions are honoured. The first one names the history, and may be this start itself.
    pub(super) fn honoured(&self) -> Arc<[EpochSpan]> {
        let own = EpochSpan { vouched: Some(self.head), ..self.own_span() };
        self.is_new_history.then_some(own).into_iter().chain(self.earlier.iter().copied()).collect()
    }

    /// What later starts have to know of all starts up to this one.
    pub(super) fn stored_epochs(&self) -> Vec<EpochSpan> {
        let mut epochs = self.earlier.clone();
        epochs.insert(if self.is_new_history { 0 } else { epochs.len() }, self.own_span());
        epochs
    }

    fn own_span(&self) -> EpochSpan {
        EpochSpan { epoch: self.seed.epoch, began: self.head, vouched: None }
    }

    /// A mirror of what is known without entries.
    pub(super) fn view(&self, marks: &Loaded) -> View {
        let mut view = View::starting_at(self.head);
        for (name, record) in &marks.clusters {
            view.restore_cluster(name.clone(), record.clone());
        }
        let mut sequence = Sequence(self.head.0 - self.clusters.len() as u64);
        for name in &self.clusters {
            sequence = sequence.next();
            view.restore_phase(name.clone(), sequence);
        }
        for (scope, cursor) in &marks.cursors {
            view.restore_cursor(scope.clone(), cursor.clone());
        }
        view
    }
}

/// How far the positions of each earlier start are vouched for: everything up to there is recovered as it was announced (docs/develop/invariants.md, 6). What
/// ended last announced nothing above what is covered that anybody could go on from.
fn vouched(epochs: &[EpochSpan], covered: Sequence, floor: Sequence) -> Vec<EpochSpan> {
    let judged = epochs.iter().map(|span| EpochSpan { vouched: Some(span.vouched.unwrap_or(covered.max(span.began))), ..*span });
    // below the floor a position is refused anyway; the first start is what the history is known by (`Reading::lineage`)
    let numbered = judged.enumerate().filter(|(number, span)| *number == 0 || span.vouched >= Some(floor));
    let mut epochs: Vec<EpochSpan> = numbered.map(|(_, span)| span).collect();
    let surplus = epochs.len().saturating_sub(EPOCHS_MAX);
    if surplus > 0 {
        epochs.drain(1..=surplus);
    }
    epochs
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::ClusterRecord;

    fn span(epoch: u64, began: u64, vouched: Option<u64>) -> EpochSpan {
        EpochSpan { epoch: Epoch(epoch), began: Sequence(began), vouched: vouched.map(Sequence) }
    }

    fn at(micros: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
    }

    fn seed(micros: u64) -> StartSeed {
        StartSeed { epoch: Epoch(9), time: at(micros), gap: 7 }
    }

    fn marks() -> Loaded {
        let (epochs, covered) = (vec![span(1, 100, Some(140)), span(2, 200, None)], Sequence(250));
        Loaded { epochs, covered, sequence_reserved: Sequence(1_000), ..Loaded::default() }
    }

    #[test]
    fn a_start_counts_from_the_clock_where_that_is_ahead_of_the_store() {
        let plan = Plan::new(&marks(), BTreeSet::new(), seed(5_000));
        assert_eq!(plan.head.next(), Sequence(5_000));
        assert_eq!(*plan.honoured(), [span(1, 100, Some(140)), span(2, 200, Some(250))]);
        assert_eq!(plan.stored_epochs(), [span(1, 100, Some(140)), span(2, 200, Some(250)), span(9, 4_999, None)]);
        let first = Plan::new(&Loaded::default(), BTreeSet::new(), seed(5_000));
        assert_eq!((first.head.next(), first.honoured().len()), (Sequence(5_000), 0));
    }

    #[test]
    fn a_clock_that_is_not_ahead_begins_a_history_that_has_another_name_and_keeps_all_positions() {
        for clock in [0, 999, 1_000, CLOCK_MICROS_MAX] {
            let plan = Plan::new(&marks(), BTreeSet::new(), seed(clock));
            assert_eq!(plan.head, Sequence(1_007), "clock {clock}");
            assert_eq!(*plan.honoured(), [span(9, 1_007, Some(1_007)), span(1, 100, Some(140)), span(2, 200, Some(250))]);
            assert_eq!(plan.stored_epochs(), [span(9, 1_007, None), span(1, 100, Some(140)), span(2, 200, Some(250))]);
            // and the next start, whose clock is right again, goes on with it
            let marks = Loaded { epochs: plan.stored_epochs(), covered: Sequence(1_020), ..marks() };
            let next = Plan::new(&marks, BTreeSet::new(), seed(5_000));
            assert_eq!((next.head.next(), next.honoured()[0]), (Sequence(5_000), span(9, 1_007, Some(1_020))));
        }
    }

    #[test]
    fn a_clock_that_is_behind_the_newest_contact_was_set_back() {
        let record = ClusterRecord { last_contact: Some(at(6_000)), ..ClusterRecord::default() };
        let marks = Loaded { clusters: vec![(ClusterName::parse("paris").unwrap(), record)], ..marks() };
        let [before, behind] = [5_999, 6_001].map(|clock| Plan::new(&marks, BTreeSet::new(), seed(clock)));
        assert_eq!((before.is_new_history, before.head), (true, Sequence(1_007)));
        assert_eq!((behind.is_new_history, behind.head), (false, Sequence(6_000)));
    }

    #[test]
    fn the_start_that_ended_is_vouched_for_as_far_as_was_recovered_and_earlier_ones_as_before() {
        let epochs = [span(1, 0, Some(90)), span(2, 100, None)];
        assert_eq!(vouched(&epochs, Sequence(103), Sequence(0)), [span(1, 0, Some(90)), span(2, 100, Some(103))]);
        assert_eq!(vouched(&epochs, Sequence(95), Sequence(0))[1], span(2, 100, Some(100)), "one without any change");
    }

    #[test]
    fn starts_below_the_floor_are_not_honoured_and_no_more_than_can_be_kept_but_for_the_first() {
        let all = [span(1, 0, Some(5)), span(2, 6, Some(8)), span(3, 10, None)];
        assert_eq!(vouched(&all, Sequence(12), Sequence(9)), [span(1, 0, Some(5)), span(3, 10, Some(12))]);
        let many: Vec<EpochSpan> = (1..=EPOCHS_MAX as u64 + 5).map(|number| span(number, number, Some(number))).collect();
        assert_eq!(vouched(&many, Sequence(9_999), Sequence(0)), [&many[..1], &many[6..]].concat());
    }
}

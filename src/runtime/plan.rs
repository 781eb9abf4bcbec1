//! The plan of a start: its first sequence, and the positions of earlier starts that it accepts.
//!
//! A plan depends only on the clock, and on the clusters, cursors, epochs and sequences of the
//! store, so it is known before entries are read. `restore` reads the entries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::{ClusterName, Epoch, EpochSpan, Sequence};
use crate::store::StoreContents;
use crate::view::View;

/// Maximum number of remembered starts. With one crash a minute they reach back 17 hours;
/// tombstones are kept for 24 hours by default.
const EPOCHS_MAX: usize = 1_024;

/// Upper bound on plausible clock values, in microseconds since 1970 (the year 2112). It keeps
/// sequences far below 2^53, the largest integer that JSON readers keep exactly.
const CLOCK_MICROS_MAX: u64 = 1 << 52;

/// Upper bound on the random gap above the stored sequence if the clock cannot give the first
/// sequence. If two copies of a store start this way, the probability that their sequences overlap
/// is about 1 in 16,000 for each 1,000 changes that they announce.
const GAP_MAX: u64 = 1 << 24;

/// Random numbers and time of a start, drawn before it reads the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EpochSeed {
    pub(super) epoch: Epoch,
    /// Wall clock.
    pub(super) time: SystemTime,
    /// Number of sequences to skip if the clock cannot give the first one.
    pub(super) gap: u64,
}

/// First sequence of a start, and the earlier positions that it accepts.
#[derive(Debug, Clone)]
pub(super) struct StartPlan {
    pub(super) seed: EpochSeed,
    /// Earlier starts of meshkeep, each with the newest sequence that this start accepts. The epoch
    /// of the first one identifies the history; the others are in order of age.
    earlier: Vec<EpochSpan>,
    /// Clusters whose phases get the last sequences up to the head, one each.
    pub(super) clusters: BTreeSet<ClusterName>,
    pub(super) head: Sequence,
    /// True if the clock has not passed the highest stored sequence or the newest stored contact. A
    /// copy of the store may then already have used the next sequences, so this start begins a new
    /// history.
    pub(super) is_new_history: bool,
}

impl EpochSeed {
    /// Draws a seed for a start at this time.
    pub(super) fn draw(time: SystemTime) -> Self {
        Self { epoch: Epoch(rand::random()), time, gap: rand::random_range(0..GAP_MAX) }
    }

    /// Returns the microseconds since 1970, or 0 if the clock is implausible.
    fn micros(self) -> u64 {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).ok().filter(|micros| *micros < CLOCK_MICROS_MAX).unwrap_or_default()
    }
}

impl StartPlan {
    /// Plans a start from the contents of a store, with these clusters. Uses no entries.
    ///
    /// The first sequence is the clock in microseconds. No copy of the store that ran before has
    /// used it, because no start announces a million changes per second for long. If the clock is
    /// not ahead of the store, a copy may have used it, so the history gets a new name.
    pub(super) fn new(contents: &StoreContents, clusters: BTreeSet<ClusterName>, seed: EpochSeed) -> Self {
        let stored = contents.sequence_reserved.max(contents.covered_sequence);
        let newest_contact = contents.clusters.iter().filter_map(|(_, record)| record.last_contact).max();
        let is_ahead = seed.micros() > stored.0 && newest_contact.is_none_or(|contact| seed.time > contact);
        let before_first = if is_ahead { seed.micros() - 1 } else { stored.0 + seed.gap };
        let head = Sequence(before_first + clusters.len() as u64);
        Self {
            seed,
            earlier: limit_to_recovered(&contents.epochs, contents.covered_sequence, contents.floor),
            clusters,
            head,
            is_new_history: !is_ahead,
        }
    }

    /// Returns whether positions that `other` has given out have the same meaning in this plan.
    pub(super) fn is_equivalent(&self, other: &Self) -> bool {
        (self.seed, self.head, self.is_new_history) == (other.seed, other.head, other.is_new_history) && self.clusters == other.clusters
    }

    /// Returns the starts whose positions are accepted. The first one names the history, and can be
    /// this start.
    pub(super) fn accepted_epochs(&self) -> Arc<[EpochSpan]> {
        let own = EpochSpan { accepted_up_to: Some(self.head), ..self.own_span() };
        self.is_new_history.then_some(own).into_iter().chain(self.earlier.iter().copied()).collect()
    }

    /// Returns the starts up to this one, as later starts need them.
    pub(super) fn stored_epochs(&self) -> Vec<EpochSpan> {
        let mut epochs = self.earlier.clone();
        epochs.insert(if self.is_new_history { 0 } else { epochs.len() }, self.own_span());
        epochs
    }

    fn own_span(&self) -> EpochSpan {
        EpochSpan { epoch: self.seed.epoch, start: self.head, accepted_up_to: None }
    }

    /// Returns the view without entries: clusters, phases and cursors.
    pub(super) fn view(&self, contents: &StoreContents) -> View {
        let mut view = View::starting_at(self.head);
        for (name, record) in &contents.clusters {
            view.restore_cluster(name.clone(), record.clone());
        }
        let mut sequence = Sequence(self.head.0 - self.clusters.len() as u64);
        for name in &self.clusters {
            sequence = sequence.next();
            view.restore_phase(name.clone(), sequence);
        }
        for (scope, cursor) in &contents.cursors {
            view.restore_cursor(scope.clone(), cursor.clone());
        }
        for (scope, gaps) in &contents.gaps {
            view.restore_observation_gaps(scope.clone(), gaps);
        }
        view
    }
}

/// Limits the accepted positions of each earlier start to recovered changes
/// (docs/develop/invariants.md, 6). For the last start, the limit is `covered`: no subscriber has
/// seen a later change.
fn limit_to_recovered(epochs: &[EpochSpan], covered: Sequence, floor: Sequence) -> Vec<EpochSpan> {
    let limited =
        epochs.iter().map(|span| EpochSpan { accepted_up_to: Some(span.accepted_up_to.unwrap_or(covered.max(span.start))), ..*span });
    // a position below the floor is refused anyway, but the first start names the history
    // (`Reading::lineage`)
    let numbered = limited.enumerate().filter(|(number, span)| *number == 0 || span.accepted_up_to >= Some(floor));
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

    fn span(epoch: u64, start: u64, accepted_up_to: Option<u64>) -> EpochSpan {
        EpochSpan { epoch: Epoch(epoch), start: Sequence(start), accepted_up_to: accepted_up_to.map(Sequence) }
    }

    fn at(micros: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
    }

    fn seed(micros: u64) -> EpochSeed {
        EpochSeed { epoch: Epoch(9), time: at(micros), gap: 7 }
    }

    fn contents() -> StoreContents {
        let (epochs, covered) = (vec![span(1, 100, Some(140)), span(2, 200, None)], Sequence(250));
        StoreContents { epochs, covered_sequence: covered, sequence_reserved: Sequence(1_000), ..StoreContents::default() }
    }

    #[test]
    fn a_start_counts_from_the_clock_if_it_is_ahead_of_the_store() {
        let plan = StartPlan::new(&contents(), BTreeSet::new(), seed(5_000));
        assert_eq!(plan.head.next(), Sequence(5_000));
        assert_eq!(*plan.accepted_epochs(), [span(1, 100, Some(140)), span(2, 200, Some(250))]);
        assert_eq!(plan.stored_epochs(), [span(1, 100, Some(140)), span(2, 200, Some(250)), span(9, 4_999, None)]);
        let first = StartPlan::new(&StoreContents::default(), BTreeSet::new(), seed(5_000));
        assert_eq!((first.head.next(), first.accepted_epochs().len()), (Sequence(5_000), 0));
    }

    #[test]
    fn a_clock_not_ahead_of_the_store_begins_a_new_history() {
        for clock in [0, 999, 1_000, CLOCK_MICROS_MAX] {
            let plan = StartPlan::new(&contents(), BTreeSet::new(), seed(clock));
            assert_eq!(plan.head, Sequence(1_007), "clock {clock}");
            assert_eq!(*plan.accepted_epochs(), [span(9, 1_007, Some(1_007)), span(1, 100, Some(140)), span(2, 200, Some(250))]);
            assert_eq!(plan.stored_epochs(), [span(9, 1_007, None), span(1, 100, Some(140)), span(2, 200, Some(250))]);
            // and the next start, whose clock is right again, continues this history
            let contents = StoreContents { epochs: plan.stored_epochs(), covered_sequence: Sequence(1_020), ..contents() };
            let next = StartPlan::new(&contents, BTreeSet::new(), seed(5_000));
            assert_eq!((next.head.next(), next.accepted_epochs()[0]), (Sequence(5_000), span(9, 1_007, Some(1_020))));
        }
    }

    #[test]
    fn a_clock_behind_the_newest_contact_begins_a_new_history() {
        let record = ClusterRecord { last_contact: Some(at(6_000)), ..ClusterRecord::default() };
        let contents = StoreContents { clusters: vec![(ClusterName::parse("paris").unwrap(), record)], ..contents() };
        let [before, after] = [5_999, 6_001].map(|clock| StartPlan::new(&contents, BTreeSet::new(), seed(clock)));
        assert_eq!((before.is_new_history, before.head), (true, Sequence(1_007)));
        assert_eq!((after.is_new_history, after.head), (false, Sequence(6_000)));
    }

    #[test]
    fn the_last_start_is_accepted_up_to_the_recovered_sequence() {
        let epochs = [span(1, 0, Some(90)), span(2, 100, None)];
        assert_eq!(limit_to_recovered(&epochs, Sequence(103), Sequence(0)), [span(1, 0, Some(90)), span(2, 100, Some(103))]);
        assert_eq!(limit_to_recovered(&epochs, Sequence(95), Sequence(0))[1], span(2, 100, Some(100)), "a start without any change");
    }

    #[test]
    fn old_and_surplus_starts_are_dropped_except_the_first() {
        let all = [span(1, 0, Some(5)), span(2, 6, Some(8)), span(3, 10, None)];
        assert_eq!(limit_to_recovered(&all, Sequence(12), Sequence(9)), [span(1, 0, Some(5)), span(3, 10, Some(12))]);
        let many: Vec<EpochSpan> = (1..=EPOCHS_MAX as u64 + 5).map(|number| span(number, number, Some(number))).collect();
        assert_eq!(limit_to_recovered(&many, Sequence(9_999), Sequence(0)), [&many[..1], &many[6..]].concat());
    }
}

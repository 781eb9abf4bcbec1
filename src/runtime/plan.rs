//! Where a start begins: which earlier positions it honours, and the sequence that its own count from.
//!
//! Owns: what follows from the marks of the store alone, so that it is known before entries are. Deliberately lacks: the entries (`restore`).

use std::collections::BTreeSet;

use crate::model::{ClusterName, Epoch, EpochSpan, Sequence};
use crate::store::Loaded;
use crate::view::View;

/// More starts than this are not remembered: with one crash a minute they reach back longer than most tombstones' floors.
const EPOCHS_MAX: usize = 1_024;

/// Where a start begins.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The earlier starts, oldest first, each with the newest sequence that is vouched for.
    pub(super) earlier: Vec<EpochSpan>,
    /// Their phases are announced anew with the last sequences up to the head.
    pub(super) clusters: BTreeSet<ClusterName>,
    pub(super) head: Sequence,
}

/// A start that has given positions out before everything was loaded.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) plan: Plan,
    pub(super) epoch: Epoch,
}

impl Plan {
    /// A start from these marks, with these clusters.
    pub(super) fn new(marks: &Loaded, clusters: BTreeSet<ClusterName>) -> Self {
        let head = Sequence(marks.sequence_reserved.max(marks.covered).0 + clusters.len() as u64);
        Self { earlier: vouched(&marks.epochs, marks.covered, marks.floor), clusters, head }
    }

    /// Whether positions that were given out by another plan mean the same by this one.
    pub(super) fn goes_on(&self, begun: &Self) -> bool {
        self.head == begun.head && self.clusters == begun.clusters
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

/// How far the positions of each earlier start are vouched for: everything up to there is recovered as it was announced (docs/invariants.md, 6). What
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
    use super::*;

    fn span(epoch: u64, began: u64, vouched: Option<u64>) -> EpochSpan {
        EpochSpan { epoch: Epoch(epoch), began: Sequence(began), vouched: vouched.map(Sequence) }
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

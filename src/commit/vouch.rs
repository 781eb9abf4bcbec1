//! What positions of earlier starts can still be honoured, and which keys must be announced anew so that they can (docs/invariants.md,
//! 6). Pure.
//!
//! The store covers everything up to a sequence, without gaps. The journal of the start that ended goes on from there: as long as
//! its records follow each other without a gap, what was announced is known by key, and announcing those keys anew, with their
//! recovered value or as deleted, brings every reader from its position to the recovered state.

use std::collections::BTreeSet;

use crate::model::{EntryKey, EpochSpan, Sequence};
use crate::store::JournalRun;

/// More starts than this are not remembered: with one crash a minute they reach back longer than most tombstones' floors.
const EPOCHS_MAX: usize = 1_024;

/// What can be vouched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vouched {
    /// The earlier starts, oldest first, each with the newest sequence that is vouched for.
    pub epochs: Vec<EpochSpan>,
    /// The keys to be announced anew.
    pub keys: BTreeSet<EntryKey>,
    /// No sequence up to this one may be used again.
    pub newest: Sequence,
}

/// Judges the starts that the store knows, by what it covers and by the journals that were found. A start that the store does not
/// know is not honoured: its first group never became durable.
#[must_use]
pub fn vouch(epochs: &[EpochSpan], covered: Sequence, floor: Sequence, runs: &[JournalRun]) -> Vouched {
    let judged = epochs.iter().map(|span| EpochSpan { vouched: Some(span.vouched.unwrap_or_else(|| reach(span, covered, runs))), ..*span });
    // below the floor a position is refused anyway
    let mut epochs: Vec<EpochSpan> = judged.filter(|span| span.vouched >= Some(floor)).collect();
    epochs.drain(..epochs.len().saturating_sub(EPOCHS_MAX));
    let records = || runs.iter().flat_map(|run| &run.records);
    let keys = records().filter(|(sequence, _)| *sequence > covered).filter_map(|(_, key)| key.clone()).collect();
    let newest = records().map(|(sequence, _)| *sequence).max().unwrap_or(covered).max(covered);
    Vouched { epochs, keys, newest }
}

/// How far the unbroken run of a start reaches: what the store covers, continued by the journal without a gap.
fn reach(span: &EpochSpan, covered: Sequence, runs: &[JournalRun]) -> Sequence {
    let mut reach = covered.max(span.began);
    for (sequence, _) in runs.iter().filter(|run| run.epoch == span.epoch).flat_map(|run| &run.records) {
        if *sequence > reach.next() {
            break;
        }
        reach = reach.max(*sequence);
    }
    reach
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, Epoch, Kind};

    fn key(name: &str) -> EntryKey {
        EntryKey::new(Kind::Ip, ClusterName::parse("paris").unwrap(), name)
    }

    fn span(epoch: u64, began: u64, vouched: Option<u64>) -> EpochSpan {
        EpochSpan { epoch: Epoch(epoch), began: Sequence(began), vouched: vouched.map(Sequence) }
    }

    fn run(epoch: u64, began: u64, records: &[(u64, &str)]) -> JournalRun {
        let records = records.iter().map(|(sequence, name)| (Sequence(*sequence), Some(key(name)))).collect();
        JournalRun { epoch: Epoch(epoch), began: Sequence(began), records }
    }

    #[test]
    fn the_journal_continues_what_the_store_covers_up_to_its_first_gap() {
        let epochs = [span(1, 0, Some(90)), span(2, 100, None)];
        let runs = [run(2, 100, &[(103, "a"), (104, "b")]), run(2, 100, &[(105, "c"), (107, "d")])];
        let vouched = vouch(&epochs, Sequence(103), Sequence(0), &runs);
        assert_eq!(vouched.epochs, [span(1, 0, Some(90)), span(2, 100, Some(105))]);
        assert_eq!(vouched.keys.iter().map(|key| &*key.name).collect::<Vec<_>>(), ["b", "c", "d"]);
        assert_eq!(vouched.newest, Sequence(107));
    }

    #[test]
    fn a_store_that_lost_more_than_the_journal_holds_is_vouched_for_no_further() {
        let vouched = vouch(&[span(2, 100, None)], Sequence(101), Sequence(0), &[run(2, 100, &[(103, "a")])]);
        assert_eq!(vouched.epochs, [span(2, 100, Some(101))]);
    }

    #[test]
    fn a_start_without_any_change_is_vouched_for_where_it_began() {
        assert_eq!(vouch(&[span(2, 100, None)], Sequence(90), Sequence(0), &[]).epochs, [span(2, 100, Some(100))]);
    }

    #[test]
    fn starts_that_the_store_does_not_know_and_those_below_the_floor_are_not_honoured() {
        let vouched = vouch(&[span(1, 0, Some(5)), span(2, 10, None)], Sequence(12), Sequence(6), &[run(9, 50, &[(51, "a")])]);
        assert_eq!(vouched.epochs, [span(2, 10, Some(12))]);
        assert_eq!(vouched.newest, Sequence(51));
    }
}

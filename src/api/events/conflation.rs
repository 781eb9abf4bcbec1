//! Conflation: while readers are busy, changes are merged, and only the newest change of each key
//! is sent.
//!
//! A reader has the exact state of the mirror only before and after such a range of changes.
//! Therefore no reader joins a group inside a range, and no bookmark is sent inside a range. A
//! position inside a range also contains the end of the range, as a position inside a replay does
//! ([`ReaderPosition`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::handle::Announcement;
use crate::model::{EntryKey, Epoch, Position, ReaderPosition, Sequence};

/// A routed change.
#[derive(Debug, Clone)]
pub(super) struct RoutedChange {
    pub(super) announcement: Arc<Announcement>,
    /// Conflated range that the change is part of; `None` if no change of the range was replaced.
    pub(super) range: Option<ConflationRange>,
}

/// The changes after one position, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConflationRange {
    pub(super) after: Sequence,
    pub(super) until: Sequence,
}

impl RoutedChange {
    /// Creates a change that is not part of a conflated range.
    pub(super) fn single(announcement: &Arc<Announcement>) -> Self {
        Self { announcement: Arc::clone(announcement), range: None }
    }

    /// Returns the sequence before this change or, in a conflated range, before the range. A reader
    /// that receives this change next has every earlier change up to there, or a newer change of
    /// its key.
    pub(super) fn start(&self) -> Sequence {
        self.range.map_or(Sequence(self.announcement.sequence.0 - 1), |range| range.after)
    }

    /// Returns the reader's position after the change.
    pub(super) fn position(&self, epoch: Epoch) -> ReaderPosition {
        let sequence = self.announcement.sequence;
        let seen = self.range.map(|range| range.until).filter(|until| sequence < *until);
        ReaderPosition { position: Position { epoch, sequence }, seen }
    }
}

/// Returns the newest change of each key after a position, in order. The old value of each is the
/// value before the first change of its key.
pub(super) fn conflate<'a>(after: Sequence, announcements: impl Iterator<Item = &'a Arc<Announcement>>) -> Vec<RoutedChange> {
    let mut newest: Vec<Option<Arc<Announcement>>> = Vec::new();
    let mut indices: HashMap<&EntryKey, usize> = HashMap::new();
    for announcement in announcements {
        let merged = match indices.insert(&announcement.key, newest.len()).and_then(|index| newest[index].take()) {
            Some(first) => Arc::new(Announcement { old: first.old.clone(), replaces: first.replaces, ..Announcement::clone(announcement) }),
            None => Arc::clone(announcement),
        };
        newest.push(Some(merged));
    }
    let until = newest.last().and_then(Option::as_ref).map_or(after, |last| last.sequence);
    let range = newest.iter().any(Option::is_none).then_some(ConflationRange { after, until });
    newest.into_iter().flatten().map(|announcement| RoutedChange { announcement, range }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::api::tests::fixture::{key, pod};
    use crate::feed::Version;
    use crate::handle::{Filter, StreamEvent};
    use crate::model::{Kind, Object};

    fn change(sequence: u64, name: &str, old: Option<u32>, new: Option<u32>) -> Arc<Announcement> {
        let object = |identity: Option<u32>| -> Option<Arc<Object>> { Some(Arc::new(pod(name, identity?, "172.18.1.2"))) };
        let (sequence, key) = (Sequence(sequence), key(Kind::Ip, "paris", name));
        Arc::new(Announcement {
            sequence,
            key,
            old: object(old).map(Version::of_own_object),
            new: object(new).map(Version::of_own_object),
            revision: None,
            replaces: None,
            deleted: None,
        })
    }

    #[test]
    fn only_the_newest_change_of_a_key_is_sent() {
        let changes =
            [change(8, "10.0.0.1", Some(1), Some(2)), change(9, "10.0.0.2", None, Some(1)), change(10, "10.0.0.1", Some(2), None)];
        let merged = change(10, "10.0.0.1", Some(1), None);
        let found: Vec<(Announcement, Option<ConflationRange>, String)> = conflate(Sequence(7), changes.iter())
            .into_iter()
            .map(|routed| ((*routed.announcement).clone(), routed.range, routed.position(Epoch(1)).to_string()))
            .collect();
        let range = Some(ConflationRange { after: Sequence(7), until: Sequence(10) });
        let expected = [
            ((*changes[1]).clone(), range, "v1.0000000000000001000000000000000a.9".to_owned()),
            ((*merged).clone(), range, "v1.0000000000000001.10".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    /// Applies conflated changes like a reader with the filter `identity=1`. After each range the
    /// reader has the same state as without conflation.
    #[test]
    fn conflated_changes_lead_to_the_same_state() {
        let filter = Filter { identity: Some(1), ..Filter::default() };
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut expected_state, mut reader_state) = (BTreeMap::new(), BTreeMap::new());
            let mut sequence = 0;
            for _ in 0..10 {
                let after = Sequence(sequence);
                let changes: Vec<_> = (0..random.random_range(1..30))
                    .map(|_| {
                        sequence += 1;
                        let name = ["10.0.0.1", "10.0.0.2", "10.0.0.3"][random.random_range(0..3)];
                        let new = random.random_bool(0.8).then(|| random.random_range(1..4));
                        let old = expected_state.insert(name, new).flatten();
                        change(sequence, name, old, new)
                    })
                    .collect();
                for routed in conflate(after, changes.iter()) {
                    match StreamEvent::of_change(&filter, &routed.announcement, routed.position(Epoch(1))) {
                        Some(StreamEvent::Upsert { key, object, .. }) => {
                            assert_ne!(
                                reader_state.insert(key.name.to_string(), Arc::clone(&object)),
                                Some(object),
                                "seed {seed}: no state is sent twice"
                            );
                        }
                        Some(StreamEvent::Delete { key, .. }) => {
                            assert!(reader_state.remove(&*key.name).is_some(), "seed {seed}: the reader had the key")
                        }
                        Some(other) => panic!("{other:?}"),
                        None => {}
                    }
                }
                let expected: Vec<&str> =
                    expected_state.iter().filter(|(_, identity)| **identity == Some(1)).map(|(name, _)| *name).collect();
                assert_eq!(reader_state.keys().map(String::as_str).collect::<Vec<_>>(), expected, "seed {seed}, up to {sequence}");
            }
        }
    }

    #[test]
    fn changes_of_different_keys_are_not_conflated() {
        let changes = [change(8, "10.0.0.1", None, Some(2)), change(9, "10.0.0.2", None, Some(1))];
        let routed = conflate(Sequence(7), changes.iter());
        assert!(routed.iter().all(|routed| routed.range.is_none()));
        assert_eq!(routed.iter().map(RoutedChange::start).collect::<Vec<_>>(), [Sequence(7), Sequence(8)]);
    }
}

//! Changes on their way to the groups, each by itself or as part of a wave.
//!
//! A wave has the changes that arrived while readers were busy with earlier ones, and only the
//! newest of each key. Inside a wave, a change replaces the earlier ones of its key. Therefore no
//! reader joins a group inside a wave, there is no bookmark inside one, and its positions contain
//! what was seen, as inside a replay ([`ReaderPosition`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::handle::Announcement;
use crate::model::{EntryKey, Epoch, Position, ReaderPosition, Sequence};

/// A routed change.
#[derive(Debug, Clone)]
pub(super) struct Routed {
    pub(super) announcement: Arc<Announcement>,
    /// Wave that the change is part of; `None` if no change of the wave was replaced.
    pub(super) wave: Option<Wave>,
}

/// The changes after one position, up to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wave {
    pub(super) after: Sequence,
    pub(super) until: Sequence,
}

impl Routed {
    /// Creates a change that is not part of a wave.
    pub(super) fn alone(announcement: &Arc<Announcement>) -> Self {
        Self { announcement: Arc::clone(announcement), wave: None }
    }

    /// Returns the sequence up to which a reader has every change, or a newer one of its key,
    /// before this one.
    pub(super) fn from(&self) -> Sequence {
        self.wave.map_or(Sequence(self.announcement.sequence.0 - 1), |wave| wave.after)
    }

    /// Returns the reader's position after the change.
    pub(super) fn position(&self, epoch: Epoch) -> ReaderPosition {
        let sequence = self.announcement.sequence;
        let seen = self.wave.map(|wave| wave.until).filter(|until| sequence < *until);
        ReaderPosition { position: Position { epoch, sequence }, seen }
    }
}

/// Returns the newest change of each key after a position, in order. Its old value is that before
/// the first change of the key.
pub(super) fn conflate<'a>(after: Sequence, announcements: impl Iterator<Item = &'a Arc<Announcement>>) -> Vec<Routed> {
    let mut kept: Vec<Option<Arc<Announcement>>> = Vec::new();
    let mut places: HashMap<&EntryKey, usize> = HashMap::new();
    for announcement in announcements {
        let merged = match places.insert(&announcement.key, kept.len()).and_then(|place| kept[place].take()) {
            Some(first) => Arc::new(Announcement { old: first.old.clone(), replaces: first.replaces, ..Announcement::clone(announcement) }),
            None => Arc::clone(announcement),
        };
        kept.push(Some(merged));
    }
    let until = kept.last().and_then(Option::as_ref).map_or(after, |last| last.sequence);
    let wave = kept.iter().any(Option::is_none).then_some(Wave { after, until });
    kept.into_iter().flatten().map(|announcement| Routed { announcement, wave }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::api::tests::fixture::{key, pod};
    use crate::feed::Version;
    use crate::handle::{Filter, Item};
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
    fn the_newest_change_of_a_key_stands_for_all_of_a_wave() {
        let changes =
            [change(8, "10.0.0.1", Some(1), Some(2)), change(9, "10.0.0.2", None, Some(1)), change(10, "10.0.0.1", Some(2), None)];
        let merged = change(10, "10.0.0.1", Some(1), None);
        let found: Vec<(Announcement, Option<Wave>, String)> = conflate(Sequence(7), changes.iter())
            .into_iter()
            .map(|routed| ((*routed.announcement).clone(), routed.wave, routed.position(Epoch(1)).to_string()))
            .collect();
        let wave = Some(Wave { after: Sequence(7), until: Sequence(10) });
        let expected = [
            ((*changes[1]).clone(), wave, "v1.0000000000000001000000000000000a.9".to_owned()),
            ((*merged).clone(), wave, "v1.0000000000000001.10".to_owned()),
        ];
        assert_eq!(found, expected);
    }

    /// Applies waves as a reader of identity 1 does. After each wave it has the same state as
    /// without waves.
    #[test]
    fn waves_give_the_same_state_as_their_changes() {
        let filter = Filter { identity: Some(1), ..Filter::default() };
        for seed in 0..300 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut truth, mut held) = (BTreeMap::new(), BTreeMap::new());
            let mut sequence = 0;
            for _ in 0..10 {
                let after = Sequence(sequence);
                let changes: Vec<_> = (0..random.random_range(1..30))
                    .map(|_| {
                        sequence += 1;
                        let name = ["10.0.0.1", "10.0.0.2", "10.0.0.3"][random.random_range(0..3)];
                        let new = random.random_bool(0.8).then(|| random.random_range(1..4));
                        let old = truth.insert(name, new).flatten();
                        change(sequence, name, old, new)
                    })
                    .collect();
                for routed in conflate(after, changes.iter()) {
                    match Item::told(&filter, &routed.announcement, routed.position(Epoch(1))) {
                        Some(Item::Upsert { key, object, .. }) => {
                            assert_ne!(
                                held.insert(key.name.to_string(), Arc::clone(&object)),
                                Some(object),
                                "seed {seed}: nothing is told twice"
                            );
                        }
                        Some(Item::Delete { key, .. }) => assert!(held.remove(&*key.name).is_some(), "seed {seed}: it was held"),
                        Some(other) => panic!("{other:?}"),
                        None => {}
                    }
                }
                let expected: Vec<&str> = truth.iter().filter(|(_, identity)| **identity == Some(1)).map(|(name, _)| *name).collect();
                assert_eq!(held.keys().map(String::as_str).collect::<Vec<_>>(), expected, "seed {seed}, up to {sequence}");
            }
        }
    }

    #[test]
    fn where_nothing_is_replaced_there_is_no_wave() {
        let changes = [change(8, "10.0.0.1", None, Some(2)), change(9, "10.0.0.2", None, Some(1))];
        let routed = conflate(Sequence(7), changes.iter());
        assert!(routed.iter().all(|routed| routed.wave.is_none()));
        assert_eq!(routed.iter().map(Routed::from).collect::<Vec<_>>(), [Sequence(7), Sequence(8)]);
    }
}

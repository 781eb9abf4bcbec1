//! Keys of the source that are no entries, as their names mean nothing here. They cost themselves and are told.

use std::collections::BTreeMap;
use std::sync::Arc;

/// How many are remembered of one kind of one cluster: no Cilium writes any, so that a few show what somebody else does.
const UNREADABLE_MAX: usize = 16;

/// The unreadable keys that the source has now, at most 16.
#[derive(Debug, Default)]
pub struct Unreadable {
    keys: BTreeMap<Vec<u8>, UnreadableKey>,
    /// There were more since everything was read last, and some of those may be there.
    has_more: bool,
    /// Counts changes, so that the reporter sees that there are others now.
    change_count: u64,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableKey {
    /// The bytes as they came.
    pub value: Arc<[u8]>,
    /// Why the key is no entry; it names the key.
    pub reason: String,
}

impl Unreadable {
    /// The keys as the source has them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &UnreadableKey)> {
        self.keys.iter().map(|(key, unreadable)| (key.as_slice(), unreadable))
    }

    /// How often they have changed.
    #[must_use]
    pub const fn change_count(&self) -> u64 {
        self.change_count
    }

    /// Whether it is certain that the source has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.has_more
    }

    /// The source has put one.
    pub(super) fn put(&mut self, source_key: &[u8], value: &Arc<[u8]>, reason: String) {
        if self.keys.len() < UNREADABLE_MAX || self.keys.contains_key(source_key) {
            self.keys.insert(source_key.to_vec(), UnreadableKey { value: Arc::clone(value), reason });
            self.change_count += 1;
        } else {
            self.has_more = true;
        }
    }

    /// The source has deleted one.
    pub(super) fn delete(&mut self, source_key: &[u8]) {
        self.change_count += u64::from(self.keys.remove(source_key).is_some());
    }

    /// The source has these keys and no others.
    pub(super) fn keep(&mut self, listed: &[Vec<u8>]) {
        let count = self.keys.len();
        self.keys.retain(|key, _| listed.contains(key));
        self.change_count += u64::from(self.keys.len() != count);
    }

    /// The source has none, or everything is read anew.
    pub(super) fn clear(&mut self) {
        self.change_count += u64::from(!self.keys.is_empty());
        self.keys.clear();
        self.has_more = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_are_remembered_are_not_taken_for_none() {
        let keys: Vec<Vec<u8>> = (0..=u8::try_from(UNREADABLE_MAX).unwrap()).map(|number| vec![0xff, number]).collect();
        let mut unreadable = Unreadable::default();
        for key in &keys {
            unreadable.put(key, &Arc::from(*b"value"), "why".to_owned());
        }
        assert_eq!(unreadable.iter().count(), UNREADABLE_MAX);
        keys.iter().take(UNREADABLE_MAX).for_each(|key| unreadable.delete(key));
        assert_eq!((unreadable.iter().count(), unreadable.is_empty()), (0, false));
        unreadable.clear();
        assert!(unreadable.is_empty());
    }
}

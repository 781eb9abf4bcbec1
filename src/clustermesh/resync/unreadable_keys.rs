//! Keys of the source that are not entries, because their names cannot be parsed. They are reported
//! and affect no other key.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of unreadable keys that are kept per kind and cluster. No release of Cilium
/// writes such keys, so a few are enough to find their writer.
const UNREADABLE_MAX: usize = 16;

/// Unreadable keys that the source currently has, at most 16.
#[derive(Debug, Default)]
pub struct UnreadableKeys {
    keys: BTreeMap<Vec<u8>, UnreadableKey>,
    /// True if the source had more since the last complete read. Some of them may still exist.
    has_more: bool,
    /// Number of changes. The task compares it with the last reported number to notice a
    /// difference.
    change_count: u64,
}

/// Value of an unreadable key, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableKey {
    /// Bytes of the value.
    pub value: Arc<[u8]>,
    /// Reason why the key is not an entry. It names the key.
    pub reason: String,
}

impl UnreadableKeys {
    /// Returns the source keys in order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &UnreadableKey)> {
        self.keys.iter().map(|(key, unreadable)| (key.as_slice(), unreadable))
    }

    /// Returns the number of changes so far.
    #[must_use]
    pub const fn change_count(&self) -> u64 {
        self.change_count
    }

    /// Returns whether the source certainly has no unreadable keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.has_more
    }

    /// Adds a key that the source has put.
    pub(super) fn put(&mut self, source_key: &[u8], value: &Arc<[u8]>, reason: String) {
        if self.keys.len() < UNREADABLE_MAX || self.keys.contains_key(source_key) {
            self.keys.insert(source_key.to_vec(), UnreadableKey { value: Arc::clone(value), reason });
            self.change_count += 1;
        } else {
            self.has_more = true;
        }
    }

    /// Removes a key that the source has deleted.
    pub(super) fn delete(&mut self, source_key: &[u8]) {
        self.change_count += u64::from(self.keys.remove(source_key).is_some());
    }

    /// Keeps only the keys that the source has listed.
    pub(super) fn retain_listed(&mut self, listed: &[Vec<u8>]) {
        let count = self.keys.len();
        self.keys.retain(|key, _| listed.contains(key));
        self.change_count += u64::from(self.keys.len() != count);
    }

    /// Removes all keys, because the source has none or everything is read again.
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
    fn keys_beyond_the_limit_are_not_forgotten() {
        let keys: Vec<Vec<u8>> = (0..=u8::try_from(UNREADABLE_MAX).unwrap()).map(|number| vec![0xff, number]).collect();
        let mut unreadable = UnreadableKeys::default();
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

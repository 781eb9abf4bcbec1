//! Compares a range of keys of the mirror with the same range of the source. Pure.
//!
//! The mirror is usually a little behind the source or ahead of a read. A single comparison is
//! therefore no proof of a difference. A proof needs two reads of the source with a sample of the
//! mirror in between: the sample then shows the source as of some revision between the two reads,
//! provided that the mirror has received the watch's events up to the first read.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::model::Revision;

/// SHA-256 of a value.
pub(super) type ValueDigest = [u8; 32];

/// Keys of the source in a range, as of one revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SourceRange {
    pub(super) revision: Revision,
    /// Keys by their names in the scope.
    pub(super) keys: BTreeMap<String, SourceKey>,
}

/// State of a key at the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceKey {
    pub(super) created: Revision,
    pub(super) modified: Revision,
    /// Digest of the value, if values are compared.
    pub(super) value: Option<ValueDigest>,
}

/// Entries of the mirror in a range, by their names in the scope.
pub(super) type MirrorRange = BTreeMap<String, MirrorKey>;

/// State of an entry in the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MirrorKey {
    pub(super) modified: Revision,
    /// True if the source lost the key and the mirror holds it.
    pub(super) held: bool,
    /// Digest of the newest bytes, if values are compared.
    pub(super) value: Option<ValueDigest>,
}

impl SourceRange {
    /// Returns whether the mirror differs from the source in a way that a delay may explain. Held
    /// entries differ on purpose.
    pub(super) fn may_differ(&self, mirror: &MirrorRange) -> bool {
        let is_covered = |(name, entry): (&String, &MirrorKey)| {
            entry.held || entry.modified > self.revision || self.keys.get(name).is_some_and(|key| entry.equals(key))
        };
        !mirror.iter().all(is_covered) || self.keys.keys().any(|name| !mirror.contains_key(name))
    }

    /// Returns the names of the keys that are wrong in the mirror. `mirror` was sampled between the
    /// read of `self` and that of `after`.
    ///
    /// An entry with a revision above that of `self` was put in between. Every other entry must be
    /// as it was in `self`. An entry that does not exist must not have existed throughout.
    pub(super) fn differing_keys(&self, mirror: &MirrorRange, after: &Self) -> Vec<String> {
        let is_wrong = |(name, entry): &(&String, &MirrorKey)| {
            let is_known = entry.held || entry.modified > self.revision;
            !is_known && !self.keys.get(*name).is_some_and(|key| entry.equals(key))
        };
        let wrong = mirror.iter().filter(is_wrong).map(|(name, _)| name);
        let existed_throughout = |name: &str| after.keys.get(name).is_some_and(|key| key.created <= self.revision);
        let missing = self.keys.keys().filter(|name| !mirror.contains_key(*name) && existed_throughout(name));
        let mut names: Vec<String> = wrong.chain(missing).cloned().collect();
        names.sort_unstable();
        names
    }
}

impl MirrorKey {
    fn equals(&self, key: &SourceKey) -> bool {
        let is_same_value = match (self.value, key.value) {
            (Some(own), Some(other)) => own == other,
            (None, _) | (_, None) => true,
        };
        self.modified == key.modified && is_same_value
    }
}

/// Returns the digest of a value.
pub(super) fn digest(value: &[u8]) -> ValueDigest {
    Sha256::digest(value).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(revision: i64, keys: &[(&str, i64, i64)]) -> SourceRange {
        let key = |(name, created, modified): &(&str, i64, i64)| {
            ((*name).to_owned(), SourceKey { created: Revision(*created), modified: Revision(*modified), value: None })
        };
        SourceRange { revision: Revision(revision), keys: keys.iter().map(key).collect() }
    }

    fn mirror(entries: &[(&str, i64, bool)]) -> MirrorRange {
        let entry = |(name, modified, held): &(&str, i64, bool)| {
            ((*name).to_owned(), MirrorKey { modified: Revision(*modified), held: *held, value: None })
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn equal_ranges_and_newer_entries_do_not_differ() {
        let range = source(9, &[("a", 3, 4), ("b", 5, 9)]);
        assert!(!range.may_differ(&mirror(&[("a", 4, false), ("b", 9, false)])));
        assert!(!range.may_differ(&mirror(&[("a", 10, false), ("b", 9, false), ("new", 11, false)])));
        assert!(!range.may_differ(&mirror(&[("a", 4, false), ("b", 9, false), ("lost", 2, true)])));
        for late in [vec![("a", 4, false)], vec![("a", 3, false), ("b", 9, false)], vec![("a", 4, false), ("b", 9, false), ("c", 8, false)]]
        {
            assert!(range.may_differ(&mirror(&late)), "{late:?}");
        }
    }

    #[test]
    fn what_was_lost_before_the_first_read_differs() {
        let (before, after) = (source(9, &[("a", 3, 4), ("b", 5, 9)]), source(12, &[("a", 3, 4), ("b", 5, 9)]));
        let differing = |entries: &[(&str, i64, bool)]| before.differing_keys(&mirror(entries), &after);
        assert_eq!(differing(&[("a", 4, false)]), ["b"], "the put of a new key was lost");
        assert_eq!(differing(&[("a", 3, false), ("b", 9, false)]), ["a"], "an update was lost");
        assert_eq!(differing(&[("a", 4, false), ("b", 9, false), ("c", 8, false)]), ["c"], "a delete was lost");
        assert_eq!(differing(&[("a", 9, false), ("b", 9, false)]), ["a"], "a key has the revision of another one");
        assert_eq!(differing(&[("a", 4, false), ("b", 9, false), ("c", 8, true)]), [""; 0], "the entry is held");
    }

    #[test]
    fn what_changes_between_the_reads_does_not_differ() {
        let before = source(9, &[("changed", 3, 4), ("deleted", 5, 9), ("again", 5, 9)]);
        let after = source(12, &[("changed", 3, 10), ("again", 12, 12), ("new", 11, 11)]);
        for sample in [
            vec![("changed", 4, false), ("deleted", 9, false), ("again", 9, false)],
            vec![("changed", 10, false)],
            vec![("changed", 10, false), ("again", 12, false), ("new", 11, false)],
        ] {
            assert_eq!(before.differing_keys(&mirror(&sample), &after), [""; 0], "{sample:?}");
        }
    }

    #[test]
    fn a_value_differs_at_the_same_revision() {
        let with = |value: Option<&[u8]>| value.map(digest);
        let range = |value| {
            let key = SourceKey { created: Revision(3), modified: Revision(4), value: with(value) };
            SourceRange { revision: Revision(9), keys: [("a".to_owned(), key)].into() }
        };
        let entry = |value| MirrorRange::from([("a".to_owned(), MirrorKey { modified: Revision(4), held: false, value: with(value) })]);
        for (one, other, expected) in [(Some(&b"x"[..]), Some(&b"y"[..]), 1), (Some(b"x"), Some(b"x"), 0), (None, Some(b"x"), 0)] {
            let differing = range(one).differing_keys(&entry(other), &range(one));
            assert_eq!((differing.len(), range(one).may_differ(&entry(other))), (expected, expected > 0));
        }
    }
}

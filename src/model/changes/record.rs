//! Mirrored keys: their raw bytes, decoded objects, sources and times.

use std::sync::Arc;
use std::time::SystemTime;

use smol_str::SmolStr;

use crate::model::{EntryKey, LeaseId, Object, Revision, Sequence};

/// Origin of a key's newest bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceStamp {
    /// The source's revision of the last put, including puts of equal bytes; 0 means unknown, which
    /// occurs only in dumps.
    pub mod_revision: Revision,
    /// Lease that the key is attached to; 0 means none.
    pub lease: LeaseId,
    /// Whether the source lost the key and meshkeep holds it (docs/develop/invariants.md, 4).
    pub held: bool,
}

/// Reason why the newest bytes of a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Human-readable reason that names the field.
    pub reason: Arc<str>,
    /// Time since which the newest value has been unusable.
    pub first_seen: SystemTime,
    /// Arrival time of the newest bytes.
    pub last_seen: SystemTime,
}

/// One mirrored key with all its data. Immutable: a change creates a new record.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Key of the entry.
    pub key: EntryKey,
    /// Newest raw bytes as in the source, usable or not.
    pub value: Arc<[u8]>,
    /// Last usable bytes, if they are not the newest (docs/develop/invariants.md, 7).
    pub good_value: Option<Arc<[u8]>>,
    /// Object decoded from the last usable bytes; `None` if the key never had usable bytes.
    pub object: Option<Arc<Object>>,
    /// Reason why the newest bytes cannot be used; `None` if they can.
    pub rejection: Option<Rejection>,
    /// Origin of the newest bytes.
    pub source: SourceStamp,
    /// Sequence of the change that created the key.
    pub create_sequence: Sequence,
    /// Sequence of the last change.
    pub last_sequence: Sequence,
    /// Number of changes since the key was created, starting with 1.
    pub version: u64,
    /// Number of the list that last confirmed the key; 0 if none has confirmed it since meshkeep
    /// started. Never stored.
    pub generation: u64,
}

impl Record {
    /// Returns the approximate memory that the record uses, in bytes, with its key and its object.
    #[must_use]
    pub fn footprint(&self) -> usize {
        let good_value = self.good_value.as_ref().map_or(0, |value| value.len());
        let reason = self.rejection.as_ref().map_or(0, |rejection| rejection.reason.len());
        let object = self.object.as_ref().map_or(0, |object| object.footprint());
        size_of::<Self>() + self.key.name.len() + self.value.len() + good_value + reason + object
    }
}

/// One key as an etcd client sees it, with sequences as its revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord {
    /// Whole key as etcd has it.
    pub key: SmolStr,
    /// Value of the key.
    pub value: Arc<[u8]>,
    /// Sequence of the change that created the key.
    pub create_sequence: Sequence,
    /// Sequence of the last change.
    pub last_sequence: Sequence,
    /// Number of changes since the key was created, starting with 1.
    pub version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, Identity, Kind, LabelSet};

    #[test]
    fn the_footprint_has_both_values_the_reason_and_the_object() {
        let key = EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), "70001");
        let empty = Record {
            key,
            value: Arc::default(),
            good_value: None,
            object: None,
            rejection: None,
            source: SourceStamp::default(),
            create_sequence: Sequence(1),
            last_sequence: Sequence(1),
            version: 1,
            generation: 0,
        };
        assert_eq!(empty.footprint(), size_of::<Record>() + 5);
        let object = Object::Identity(Identity { id: 70_001, labels: LabelSet::new().into() });
        let (first_seen, last_seen) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH);
        let object_bytes = object.footprint();
        let full = Record {
            value: vec![0; 100].into(),
            good_value: Some(vec![0; 1_000].into()),
            rejection: Some(Rejection { reason: "bad".into(), first_seen, last_seen }),
            object: Some(Arc::new(object)),
            ..empty.clone()
        };
        assert_eq!(full.footprint() - empty.footprint(), 1_103 + object_bytes);
    }
}

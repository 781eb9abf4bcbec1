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

//! One mirrored key: the bytes as they came, what they mean, and where and when they came from.

use std::sync::Arc;
use std::time::SystemTime;

use smol_str::SmolStr;

use crate::model::{EntryKey, LeaseId, Object, Revision, Sequence};

/// Where the newest bytes of a key come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SourceStamp {
    /// The source's revision of the last put, equal bytes included.
    pub mod_revision: Revision,
    /// The lease that the key hangs on; 0 is none.
    pub lease: LeaseId,
    /// The source has lost the key, and it is kept all the same (docs/develop/invariants.md, 4).
    pub held: bool,
}

/// Why the newest bytes of a key could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// What is wrong, in words that name the field.
    pub reason: Arc<str>,
    /// When the key first became unusable, without a good value in between.
    pub first_seen: SystemTime,
    /// When the newest bytes came.
    pub last_seen: SystemTime,
}

/// One mirrored key with everything that is known of it. Immutable: a change makes a new one.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The key.
    pub key: EntryKey,
    /// The newest bytes, exactly as they came, usable or not.
    pub value: Arc<[u8]>,
    /// The last bytes that could be used, where they are not the newest (docs/develop/invariants.md, 7).
    pub good_value: Option<Arc<[u8]>>,
    /// What the last usable bytes mean; `None` where no usable bytes ever came.
    pub object: Option<Arc<Object>>,
    /// Set where the newest bytes could not be used.
    pub rejection: Option<Rejection>,
    /// Where the newest bytes come from.
    pub source: SourceStamp,
    /// Our sequence when the key appeared.
    pub create_sequence: Sequence,
    /// Our sequence of its last change.
    pub last_sequence: Sequence,
    /// How many times it changed since it appeared, starting with 1.
    pub version: u64,
    /// The listing in which the source last confirmed the key; 0 means not since meshkeep started. Never stored.
    pub generation: u64,
}

/// One key as an etcd has it, with our sequences as its revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord {
    /// The whole key.
    pub key: SmolStr,
    /// Its bytes.
    pub value: Arc<[u8]>,
    /// Our sequence when it appeared.
    pub create_sequence: Sequence,
    /// Our sequence of its last change.
    pub last_sequence: Sequence,
    /// How many times it changed since it appeared, starting with 1.
    pub version: u64,
}

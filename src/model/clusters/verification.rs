//! Results of the verification of the mirror against its source, per cluster and kind.

use std::time::{Instant, SystemTime};

use crate::model::{Kind, Revision};

/// Result of the newest comparisons of one kind of one cluster with its source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verification {
    /// Time at which the newest comparison of all keys ended without a difference.
    pub verified_at: Option<SystemTime>,
    /// The source's revision when that comparison began: each key was compared at this revision or
    /// a later one.
    pub verified_revision: Option<Revision>,
    /// Number of keys that were compared, without held keys and keys that are not entries.
    pub keys_compared: u64,
    /// Time at which the number of keys was last equal to the source's.
    pub counted_at: Option<SystemTime>,
    /// Newest difference since the start.
    pub divergence: Option<Divergence>,
}

/// Difference between the mirror and its source that two later reads confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Divergence {
    /// Keys of the source that differed, as text and sorted; at most [`Divergence::KEYS_MAX`].
    pub keys: Vec<String>,
    /// Number of keys that differed.
    pub key_count: u64,
    /// Newest revision of the source when the difference was reported.
    pub revision: Revision,
    /// Time of the detection.
    pub found: Instant,
    /// Number of detections since the start.
    pub detections: u64,
}

impl Divergence {
    /// Maximum number of keys that are reported: enough to see a pattern.
    pub const KEYS_MAX: usize = 16;
}

/// Result of a verification that a client requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerificationRun {
    /// Number of the newest request that it answers.
    pub number: u64,
    /// Time at which the verification ended.
    pub ended: SystemTime,
    /// True if values were compared as well as revisions.
    pub with_values: bool,
    /// Result of each kind.
    pub kinds: Vec<KindVerification>,
}

/// Result of one kind in a verification that a client requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindVerification {
    /// The kind.
    pub kind: Kind,
    /// False if the kind could not be compared, because it is not watched or is being listed.
    pub compared: bool,
    /// Number of keys that were compared.
    pub key_count: u64,
    /// Revision of the source when the comparison began.
    pub revision: Option<Revision>,
    /// Keys of the source that differ, as text and sorted; at most [`Divergence::KEYS_MAX`].
    pub differing: Vec<String>,
    /// Number of keys that differ.
    pub differing_count: u64,
}

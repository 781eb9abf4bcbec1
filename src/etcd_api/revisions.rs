//! Conversion between etcd revisions and the mirror's sequences.

use crate::model::Sequence;

pub(super) fn to_revision(sequence: Sequence) -> i64 {
    i64::try_from(sequence.0).unwrap_or(i64::MAX)
}

/// Returns the sequence of a revision; a negative revision becomes 0.
pub(super) fn to_sequence(revision: i64) -> Sequence {
    Sequence(u64::try_from(revision).unwrap_or_default())
}

//! Revisions are the mirror's sequences.

use crate::model::Sequence;

/// A sequence as a revision.
pub(super) fn revision(sequence: Sequence) -> i64 {
    i64::try_from(sequence.0).unwrap_or(i64::MAX)
}

/// A revision as a sequence; what is below all is the lowest.
pub(super) fn sequence(revision: i64) -> Sequence {
    Sequence(u64::try_from(revision).unwrap_or_default())
}

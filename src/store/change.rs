//! Changes as the layout sees them: a stored key, and what it holds now.
//!
//! Owns: the two sorts of values. Deliberately lacks: bytes on disk (`codec`, `pairs`, `packing`).

use std::borrow::Cow;
use std::sync::Arc;

use super::codec;
use crate::model::Record;

/// A stored key: a letter for what it is, and its name (`codec`).
pub(super) type Key = Arc<[u8]>;

/// What a key holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// A mirrored entry.
    Record(Arc<Record>),
    /// Anything else, in the form that `codec` gives it.
    Item(Arc<[u8]>),
}

impl Value {
    /// The form that `codec` gives it.
    pub(super) fn body(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Record(record) => Cow::Owned(codec::write_record(record)),
            Self::Item(body) => Cow::Borrowed(body),
        }
    }
}

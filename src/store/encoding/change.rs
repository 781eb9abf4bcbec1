//! Changes as the layout sees them: a stored key, and what it holds now.
//!
//! Owns: the two sorts of values. Deliberately lacks: bytes on disk (`codec`, `pairs`, `packing`).

use std::borrow::Cow;
use std::sync::Arc;

use super::codec;
use crate::model::Record;

/// A stored key: a letter for what it is, and its name (`codec`).
pub(in crate::store) type Key = Arc<[u8]>;

/// What a key holds.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) enum Value {
    /// A mirrored entry.
    Record(Arc<Record>),
    /// Anything else, in the form that `codec` gives it.
    Item(Arc<[u8]>),
}

impl Value {
    /// About how long the form is that `codec` gives it.
    pub(in crate::store) fn length(&self) -> usize {
        /// What a record has beside its bytes.
        const NUMBERS: usize = 25;
        match self {
            Self::Record(record) => NUMBERS + record.value.len() + record.good_value.as_ref().map_or(0, |value| value.len()),
            Self::Item(body) => body.len(),
        }
    }

    /// The form that `codec` gives it.
    pub(in crate::store) fn body(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Record(record) => Cow::Owned(codec::write_record(record)),
            Self::Item(body) => Cow::Borrowed(body),
        }
    }
}

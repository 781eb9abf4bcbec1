//! Stored keys and values in memory, before they are encoded.

use std::borrow::Cow;
use std::sync::Arc;

use super::codec;
use crate::model::{Record, ReplacedRecord};

/// A stored key: a tag byte and a name (`codec`).
pub(in crate::store) type KeyBytes = Arc<[u8]>;

/// A value in memory.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::store) enum StoredValue {
    /// An entry.
    Record(Arc<Record>),
    /// Any other value, encoded.
    Item(Arc<[u8]>),
    /// A replaced record. Only the log has these.
    Replaced(ReplacedRecord),
}

impl StoredValue {
    /// Returns the approximate length of the encoded value.
    pub(in crate::store) fn length(&self) -> usize {
        /// Length of the fields of a record except its values.
        const FIXED_FIELDS_BYTES: usize = 25;
        match self {
            Self::Record(record) => FIXED_FIELDS_BYTES + record.value.len() + record.good_value.as_ref().map_or(0, |value| value.len()),
            Self::Item(body) => body.len(),
            Self::Replaced(replaced) => FIXED_FIELDS_BYTES + replaced.record.key.name.len() + replaced.record.value.len(),
        }
    }

    /// Returns the encoded value.
    pub(in crate::store) fn body(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Record(record) => Cow::Owned(codec::encode_record(record)),
            Self::Item(body) => Cow::Borrowed(body),
            Self::Replaced(replaced) => Cow::Owned(super::replaced_record::encode(replaced)),
        }
    }
}

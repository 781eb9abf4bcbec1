//! Encodings of keys, values and groups (docs/develop/store.md, "Keys and values").

pub(super) mod block;
pub(super) mod change_times;
pub(super) mod checksum;
pub(super) mod codec;
pub(super) mod group;
pub(super) mod replaced;
mod replaced_record;
pub(super) mod stored_value;

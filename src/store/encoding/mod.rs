//! Bytes on disk of keys, values and groups of changes, as docs/develop/store.md has them ("Keys and values").

pub(super) mod bytes;
pub(super) mod change;
pub(super) mod codec;
pub(super) mod group;
pub(super) mod pairs;

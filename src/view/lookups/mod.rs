//! Queries: lookups by address, records and keys in order, and references between records.

pub(super) mod entry_rank;
pub(super) mod lookup;
pub(super) mod raw_keys;
pub(super) mod references;
pub(super) mod stamps;

//! Persistent collections: a change copies one page, and snapshots share all others.

pub(super) mod paged_set;
pub(super) mod paged_vector;
pub(super) mod two_level_map;

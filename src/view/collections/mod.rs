//! Persistent collections: a change copies one page, and all snapshots share the rest.

pub(super) mod paged;
pub(super) mod paged_vector;
pub(super) mod wide;

//! The chunks of an open store: which of them the log has changes for, and how these get into them.

mod dirty;
pub(super) mod pace;
pub(super) mod warm;

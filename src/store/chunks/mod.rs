//! The chunks of an open store: which of them the log has changes for, and how these get into them.

pub(super) mod chunk_store;
mod fold_queue;
pub(super) mod fold_rate;

//! The chunks of an open store: their pending changes, and the order and rate of folding.

pub(super) mod chunk_store;
mod fold_queue;
pub(super) mod fold_rate;

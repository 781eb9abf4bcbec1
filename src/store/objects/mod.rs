//! Objects in slots: packed chunks, their summaries, and the allocation of slots.

pub(super) mod object;
pub(super) mod packing;
pub(super) mod pending;
pub(super) mod slot_allocator;
pub(super) mod stored_chunk;
pub(super) mod summary;

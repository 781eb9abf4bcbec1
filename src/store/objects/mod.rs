//! Objects in slots: chunks of keys, their bodies and summaries, and the slots that are free.

pub(super) mod object;
pub(super) mod packing;
pub(super) mod pending;
pub(super) mod slot_allocator;
pub(super) mod stored_range;
pub(super) mod summary;

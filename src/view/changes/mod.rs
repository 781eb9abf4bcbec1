//! Changes of the mirror: commands, entries derived from nodes, objects that meshkeep makes itself,
//! and the state restored from the store.

mod apply;
pub(super) mod derived;
pub(super) mod notices;
pub(super) mod observation_gaps;
pub(super) mod own_objects;
mod packed_puts;
mod restore;

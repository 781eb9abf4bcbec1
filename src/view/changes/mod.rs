//! Changes of the mirror: commands, entries derived from nodes, objects that are made here, compaction,
//! and what the store held.

mod apply;
pub(super) mod derived;
pub(super) mod fold;
pub(super) mod notices;
pub(super) mod own_objects;
mod restore;

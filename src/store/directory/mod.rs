//! The data directory: its lock, its file modes, foreign entries, and the names of stores that were
//! set aside.

pub(super) mod foreign;
pub(super) mod lock;
pub(super) mod permissions;
pub(super) mod set_aside;

//! The data directory around the engine's files and the log: its lock, its file modes, foreign entries
//! in it, and the names of what is set aside.

pub(super) mod foreign;
pub(super) mod lock;
pub(super) mod permissions;
pub(super) mod set_aside;

//! Settings of the process, and the addresses that it listens on.

pub(super) mod listen;
pub(super) mod setting;

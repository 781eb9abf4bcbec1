//! Settings of the process, the addresses that it listens on, and the formats of its posts.

pub(super) mod listen;
pub(super) mod setting;
pub(super) mod webhook_format;

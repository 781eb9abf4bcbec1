//! Commands that compare the mirror: with one agent (`diff`), with its own past (`history`), with
//! the same mesh without a cluster or a namespace (`impact`), and with its sources or another
//! meshkeep (`verify`).

pub(super) mod diff;
pub(super) mod history;
pub(super) mod impact;
pub(super) mod verify;

//! Commands that compare the mirror: with one agent (`diff`), with the same mesh without a cluster
//! or a namespace (`impact`), and with its sources or another meshkeep (`verify`).

pub(super) mod diff;
pub(super) mod impact;
pub(super) mod verify;

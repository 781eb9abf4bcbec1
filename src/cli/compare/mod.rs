//! Commands that compare the mirror: with one agent (`diff`), and with the same mesh without a
//! cluster or a namespace (`impact`).

pub(super) mod diff;
pub(super) mod impact;

//! Commands that compare the mirror with something else.

pub(super) mod diff;

//! Objects: what the values of keys mean, and how much memory they use.

pub(super) mod export;
mod footprint;
pub(super) mod identity_labels;
pub(super) mod numeric_identity;
pub(super) mod object;
pub(super) mod packed_slice;

//! Objects: the decoded values of keys, and their memory use.

pub(super) mod export;
mod footprint;
pub(super) mod global_service;
pub(super) mod identity_labels;
pub(super) mod impact;
pub(super) mod numeric_identity;
pub(super) mod object;
pub(super) mod packed_slice;

//! Reading the mirror: lookups, single records, whole keys in order, and what records refer to.

mod access;
pub(super) mod gist;
pub(super) mod lookup;
pub(super) mod rank;
pub(super) mod raw;

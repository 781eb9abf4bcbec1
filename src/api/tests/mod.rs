//! The face over a small mesh of two clusters, without etcd and without a store.

mod answers;
mod documents;
mod errors;
pub(super) mod fixture;
mod paging;
mod serving;
mod shared;
mod streams;

//! The face over a small mesh of two clusters, without etcd and without a store.

mod answers;
mod changes;
mod documents;
mod errors;
pub(super) mod fixture;
mod metrics;
mod paging;
mod serving;
mod shared;
mod streams;

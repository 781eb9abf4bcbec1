//! Tests of the HTTP API over a small mesh of two clusters, without etcd and without a store.

mod answering;
pub(super) mod fixture;
mod lists;
mod past;
mod serving;
mod streaming;

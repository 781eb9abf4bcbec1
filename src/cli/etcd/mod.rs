//! Commands that write to an etcd, or read any etcd by its client file.

pub(super) mod announce;
pub(super) mod identity;
pub(super) mod kvstore;
pub(super) mod reflect;
pub(in crate::cli) mod target;

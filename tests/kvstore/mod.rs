//! The kvstore room against real etcd servers.

mod servers;

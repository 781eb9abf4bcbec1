//! meshkeep mirrors the state that remote Cilium clusters publish in their etcd, keeps it on disk and serves it.
//!
//! ARCHITECTURE.md is the map of the rooms below; `tests/` keeps their walls.

pub mod api;
pub mod cli;
pub mod clustermesh;
pub mod commit;
pub mod config;
pub mod doctor;
pub mod feed;
pub mod handle;
pub mod kvstore;
pub mod model;
pub mod pack;
pub mod page;
pub mod runtime;
pub mod store;
pub mod telemetry;
pub mod view;
pub mod wire;

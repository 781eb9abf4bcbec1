//! meshkeep mirrors the state that remote Cilium clusters publish in their etcd, keeps it on disk and serves it.
//!
//! ARCHITECTURE.md is the map of the rooms below; `tests/` keeps their walls.

pub mod cli;
pub mod clustermesh;
pub mod config;
pub mod model;
pub mod runtime;
pub mod telemetry;

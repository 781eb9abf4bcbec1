//! Clusters: names, ids, phases, missing configs, and the writers behind their etcds.

pub(super) mod cluster;
pub(super) mod missing_config;
pub(super) mod writer;

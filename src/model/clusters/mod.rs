//! Clusters: names, ids, phases, missing configs, verifications, and the writers behind their
//! etcds.

pub(super) mod cluster;
pub(super) mod missing_config;
pub(super) mod verification;
pub(super) mod writer;

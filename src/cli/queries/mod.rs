//! Commands that query a running sidecar over its HTTP API.

pub(super) mod api_client;
pub(super) mod bundle;
pub(super) mod config;
pub(super) mod entries;
pub(super) mod explain;
mod filters;
pub(super) mod find;
pub(super) mod get;
pub(super) mod healthcheck;
pub(super) mod kinds;
pub(super) mod lookup;
pub(super) mod problems;
pub(super) mod process;
pub(super) mod status;
pub(super) mod watch;

#[cfg(test)]
mod tests;

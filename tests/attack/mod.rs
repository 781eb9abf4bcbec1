//! Attacks on a sidecar. The tests run small versions; `scripts/attack` runs them at full size.

mod anonymous_clients;
mod client_files;
mod etcd_api;
mod lists;

/// Lock of the tests that measure times during an attack, because concurrent attacks would distort
/// the times.
static MEASUREMENT_LOCK: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

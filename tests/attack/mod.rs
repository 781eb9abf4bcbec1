//! Attacks on a sidecar. Tests run them small; `scripts/attack` runs them at full size.

mod client_files;
mod etcd_face;
mod lists;
mod strangers;

/// Held by each test that measures times during an attack, because they would disturb one another.
static MEASURING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

//! Attacks that `scripts/attack` runs at full size, and the tests as small ones.

mod client_files;
mod etcd_face;
mod lists;
mod strangers;

/// Held by each test that measures times while it attacks: together they would measure one another.
static MEASURING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

//! Stores that keep a prefix of the kvstore in sync (Cilium's `pkg/kvstore/store`).
//!
//! - A [`SyncStore`] writes a set of values, and a canary once all of them are written.
//! - A [`WatchStore`] follows a prefix, also across several successive sessions.
//! - A [`SharedStore`] is shared by several processes. Each process owns some keys and sees all.
//! - A [`SyncQueue`] writes the keys of a [`DesiredState`] to etcd. [`SyncStore`] uses one.
//!
//! Values are bytes. A caller that knows their format passes a [`Validate`] function, which rejects
//! invalid values.
//!
//! ```
//! # mod etcd { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/etcd/mod.rs")); }
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = etcd::Etcd::start()?;
//! # let url = server.url();
//! use std::sync::Arc;
//!
//! use cilium_kvstore::store::{Observer, SyncStore, SyncStoreOptions, WatchStore};
//! use cilium_kvstore::{EtcdConfig, KeyLifetime, Session, SessionOptions};
//! # use tokio_util::sync::CancellationToken;
//! # let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
//!
//! struct Print;
//!
//! impl Observer for Print {
//!     fn on_update(&self, name: &[u8], value: &Arc<[u8]>) {
//!         println!("{} has {} bytes", String::from_utf8_lossy(name), value.len());
//!     }
//!     fn on_delete(&self, name: &[u8], _: &Arc<[u8]>) {
//!         println!("{} was deleted", String::from_utf8_lossy(name));
//!     }
//! }
//!
//! let prefix = b"cilium/state/nodes/v1".to_vec();
//! let written = SyncStore::start(&session, SyncStoreOptions {
//!     prefix: prefix.clone(),
//!     cluster: "paris".into(),
//!     synced_key: None,
//!     lifetime: KeyLifetime::Leased,
//!     workers: 1,
//! });
//! written.upsert(b"paris/worker-1", *b"{}");
//! written.synced(*b"");
//! written.wait_until_synced().await;
//!
//! let followed = WatchStore::new(Arc::new(Print), None);
//! tokio::select! {
//!     () = followed.watch(&session, &prefix) => {}
//!     () = followed.wait_until_synced() => {}
//! }
//! assert_eq!(followed.len(), 1);
//! # Ok(()) }
//! ```

mod queue;
mod shared;
mod sync;
mod watch;

use std::sync::Arc;

pub use queue::{DesiredState, QueueCounts, SyncQueue};
pub use shared::{SharedStore, SharedStoreOptions};
pub use sync::{SyncStore, SyncStoreOptions};
pub use watch::WatchStore;

/// Receives the changes of a store. Its methods must be fast, because the store reads no further
/// changes while they run.
pub trait Observer: Send + Sync + 'static {
    /// A key, named below the store's prefix, has this value. The value may be unchanged.
    fn on_update(&self, name: &[u8], value: &Arc<[u8]>);
    /// A key was deleted. `value` is its last value.
    fn on_delete(&self, name: &[u8], value: &Arc<[u8]>);
}

/// Checks a value (second argument) of the key with this name below the prefix (first argument).
/// Returns the reason why the value is invalid. The store ignores invalid values.
pub type Validate = Arc<dyn Fn(&[u8], &[u8]) -> Result<(), String> + Send + Sync>;

/// Returns the name of a key below a prefix.
fn name_below<'a>(prefix: &[u8], key: &'a [u8]) -> &'a [u8] {
    let rest = key.strip_prefix(prefix).unwrap_or(key);
    rest.strip_prefix(b"/").unwrap_or(rest)
}

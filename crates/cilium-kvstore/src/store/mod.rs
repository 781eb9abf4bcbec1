//! Stores over a kvstore, three of them as Cilium has (`pkg/kvstore/store`): one that writes what it is told ([`SyncStore`]), one that follows a
//! prefix over changing connections ([`WatchStore`]), and one of which every process that joins it owns some keys ([`SharedStore`]).
//!
//! Owns: which keys are wanted, which are still to be written, what was seen. Deliberately lacks: any meaning of values; a caller that needs one gives a
//! [`Validate`].

mod queue;
mod shared;
mod sync;
mod watched;

use std::sync::Arc;

pub use queue::{QueueCounts, SyncQueue, Wanted};
pub use shared::{SharedStore, SharedStoreOptions};
pub use sync::{SyncStore, SyncStoreOptions};
pub use watched::WatchStore;

/// Who is told of what changes in a store. What it is told of it must take quickly: nothing else is read meanwhile.
pub trait Observer: Send + Sync + 'static {
    /// A key, named below the store's prefix, has this value, perhaps the same as before.
    fn on_update(&self, name: &[u8], value: &Arc<[u8]>);
    /// A key is gone, which had this value last.
    fn on_delete(&self, name: &[u8], value: &Arc<[u8]>);
}

/// Says what is wrong with a value, given its name below the prefix: one that is wrong changes nothing.
pub type Validate = Arc<dyn Fn(&[u8], &[u8]) -> Result<(), String> + Send + Sync>;

/// The name of a key below a prefix.
fn name_below<'a>(prefix: &[u8], key: &'a [u8]) -> &'a [u8] {
    let rest = key.strip_prefix(prefix).unwrap_or(key);
    rest.strip_prefix(b"/").unwrap_or(rest)
}

//! How writing the mirror into another etcd goes, from whoever does it to whoever tells of it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use super::Handle;

/// How it goes at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reflection {
    /// Whether this process is the one that writes.
    pub is_leader: bool,
    /// How many clusters it writes.
    pub clusters: usize,
    /// Keys that wait to be written or deleted.
    pub waiting: usize,
    /// How long the first of them has waited.
    pub lag: Duration,
    /// Puts that succeeded.
    pub written: u64,
    /// Deletes that succeeded.
    pub deleted: u64,
    /// Tries that failed.
    pub failed: u64,
    /// Why the target cannot be locked, compared or written at the moment.
    pub error: Option<String>,
    /// The newest of such errors, also where it is over.
    pub last_error: Option<(String, SystemTime)>,
}

/// Leads to who writes into another etcd, if anybody does. Cheap to clone.
#[derive(Clone, Default)]
pub struct ReflectionDoor(Arc<OnceLock<Box<dyn Fn() -> Reflection + Send + Sync>>>);

impl fmt::Debug for ReflectionDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReflectionDoor").field(&self.0.get().is_some()).finish()
    }
}

impl Handle {
    /// From now on this says how it goes.
    pub fn reflects(&self, tell: impl Fn() -> Reflection + Send + Sync + 'static) {
        // a process reflects into one etcd
        let _ = self.0.reflection.0.set(Box::new(tell));
    }

    /// How writing into another etcd goes; `None` where nothing is written.
    #[must_use]
    pub fn reflection(&self) -> Option<Reflection> {
        self.0.reflection.0.get().map(|tell| tell())
    }
}

//! State of the reflection into another etcd, for status and metrics.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use super::{Handle, Measurement};

/// Current state of the reflection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reflection {
    /// True if this process is the leader, which writes.
    pub is_leader: bool,
    /// Number of clusters that it writes.
    pub clusters: usize,
    /// Keys that wait to be written or deleted.
    pub waiting: usize,
    /// Time for which the oldest key has waited to be written or deleted.
    pub lag: Duration,
    /// Successful puts.
    pub written: u64,
    /// Successful deletes.
    pub deleted: u64,
    /// Failed attempts.
    pub failed: u64,
    /// Reason why the target cannot be locked, compared or written at the moment.
    pub error: Option<String>,
    /// Newest error of the target, even if it no longer persists, and its time.
    pub last_error: Option<(String, SystemTime)>,
}

/// Access to the reflection's state, if this process reflects into another etcd. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct ReflectionSource(Arc<OnceLock<Measurement<Reflection>>>);

impl Handle {
    /// Sets the source of the reflection's state.
    pub fn set_reflection_source(&self, source: impl Fn() -> Reflection + Send + Sync + 'static) {
        // a process reflects into one etcd
        let _ = self.0.reflection.0.set(Measurement::new(source));
    }

    /// Returns the state of the reflection, or `None` if nothing is reflected.
    #[must_use]
    pub fn reflection(&self) -> Option<Reflection> {
        self.0.reflection.0.get().map(Measurement::read)
    }
}

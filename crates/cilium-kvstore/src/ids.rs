//! Numbers of etcd, each with its own type so that they cannot be confused.

use std::fmt;

/// Revision of an etcd. Comparable only within one history of one etcd cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

impl Revision {
    /// Returns the next revision. The highest one is followed by itself.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the previous revision.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Lease of an etcd. Zero means that a key has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LeaseId(pub i64);

/// Id of an etcd cluster, which the header of each reply has. Not the id of a Cilium cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtcdClusterId(pub u64);

impl fmt::Display for EtcdClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

//! Numbers that etcd uses. Each has its own type, so that they cannot be confused.

use std::fmt;

/// Revision of an etcd. Comparable only within one history of one etcd cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

impl Revision {
    /// Returns the next revision, or the same one if it is the highest.
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

/// Id of an etcd lease. Zero means no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LeaseId(pub i64);

/// Id of an etcd cluster, as in the header of each reply. Not the id of a Cilium cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtcdClusterId(pub u64);

impl fmt::Display for EtcdClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

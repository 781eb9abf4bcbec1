//! Numbers that etcd gives, each a type of its own so that none can be used in place of another.

use std::fmt;

/// A revision of an etcd. Comparable only within one history of one etcd cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

impl Revision {
    /// The revision that follows this one. The highest one is followed by itself.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The revision before this one.
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

/// A lease of an etcd. Zero means that a key has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LeaseId(pub i64);

/// The id of an etcd cluster, which the header of each reply has. Not the id of a Cilium cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtcdClusterId(pub u64);

impl fmt::Display for EtcdClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

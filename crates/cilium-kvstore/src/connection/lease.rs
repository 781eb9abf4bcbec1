//! Remaining life of leases. Cilium attaches all its keys to leases; this module reads their life
//! and renews none.

use std::time::Duration;

use crate::{Connection, KvstoreError, LeaseId};

/// Remaining life of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseLife {
    /// The lease exists.
    Alive {
        /// TTL that was granted.
        granted: Duration,
        /// Remaining time, in whole seconds.
        remaining: Duration,
    },
    /// The lease has expired, was revoked, or never existed.
    NotFound,
    /// The server has no lease service, the user may not use it, or the lease id is 0.
    Unknown,
}

impl Connection {
    /// Requests the life of a lease, without its keys: that needs no permission in releases of etcd
    /// before and after CVE-2023-28235. Returns `Unknown` if it is refused nevertheless, or if the
    /// server has no lease service.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn lease_life(&self, lease: LeaseId) -> Result<LeaseLife, KvstoreError> {
        if lease.0 == 0 {
            return Ok(LeaseLife::Unknown);
        }
        let reply = match self.time_to_live(lease).await {
            Ok(reply) => reply.0,
            Err(error) if error.is_about_a_refused_call() => return Ok(LeaseLife::Unknown),
            Err(error) => return Err(error),
        };
        // etcd's lease server answers -1 for a lease that it does not have; a lease that is about
        // to be revoked has 0 or less
        let seconds = |seconds: i64| u64::try_from(seconds).map(Duration::from_secs).ok();
        Ok(match (seconds(reply.granted_ttl), seconds(reply.ttl)) {
            (Some(granted), Some(remaining)) if !granted.is_zero() => LeaseLife::Alive { granted, remaining },
            _ => LeaseLife::NotFound,
        })
    }
}

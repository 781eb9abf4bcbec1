//! Remaining time to live of leases. Cilium attaches most of its keys to leases. This module only
//! reads their time to live and renews no lease.

use std::time::Duration;

use crate::{Connection, KvstoreError, LeaseId};

/// Remaining time to live of a lease.
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
    /// Requests the remaining time to live of a lease. Does not request the lease's keys, so the
    /// request needs no permission, neither before nor after etcd's fix of CVE-2023-28235. Returns
    /// `Unknown` if etcd refuses the request nevertheless, or if the server has no lease service.
    ///
    /// # Errors
    /// [`KvstoreError`].
    pub async fn lease_life(&self, lease: LeaseId) -> Result<LeaseLife, KvstoreError> {
        if lease.0 == 0 {
            return Ok(LeaseLife::Unknown);
        }
        let reply = match self.time_to_live(lease).await {
            Ok(reply) => reply.0,
            Err(error) if error.is_unimplemented_or_denied() => return Ok(LeaseLife::Unknown),
            Err(error) => return Err(error),
        };
        // etcd's lease server answers -1 for a lease that it does not have, and 0 or less for a
        // lease that is about to be revoked
        let seconds = |seconds: i64| u64::try_from(seconds).map(Duration::from_secs).ok();
        Ok(match (seconds(reply.granted_ttl), seconds(reply.ttl)) {
            (Some(granted), Some(remaining)) if !granted.is_zero() => LeaseLife::Alive { granted, remaining },
            _ => LeaseLife::NotFound,
        })
    }
}

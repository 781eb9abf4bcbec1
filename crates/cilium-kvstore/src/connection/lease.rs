//! How long a lease still lives. Cilium hangs everything that it writes on leases; this asks, and keeps none alive.

use std::time::Duration;

use crate::{Connection, KvstoreError, LeaseId};

/// What etcd says of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseLife {
    /// It is alive.
    Alive {
        /// The life that it was granted.
        granted: Duration,
        /// How much of it is left, in whole seconds.
        remaining: Duration,
    },
    /// It has expired, was revoked, or never was.
    Gone,
    /// The server has no leases, the user may not ask for them, or there is no lease to ask for.
    Unknown,
}

impl Connection {
    /// Asks for the life of a lease, not for its keys: that needs no permission in releases of etcd before and after
    /// CVE-2023-28235. The answer is `Unknown` where it is denied nevertheless, and where the server has no lease service.
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
        // etcd's lease server answers -1 for a lease that it does not have; one that is about to be revoked is at or below 0
        let seconds = |seconds: i64| u64::try_from(seconds).map(Duration::from_secs).ok();
        Ok(match (seconds(reply.granted_ttl), seconds(reply.ttl)) {
            (Some(granted), Some(remaining)) if !granted.is_zero() => LeaseLife::Alive { granted, remaining },
            _ => LeaseLife::Gone,
        })
    }
}

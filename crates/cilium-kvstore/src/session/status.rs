//! Status of a session.

use std::fmt;
use std::time::SystemTime;

/// Status of a session, as of its last checks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionStatus {
    /// Whether there is a connection.
    pub connected: bool,
    /// Reason why there is no connection.
    pub cause: Option<String>,
    /// Status of each endpoint at the last check. Has at most one entry per configured endpoint.
    pub endpoints: Vec<EndpointStatus>,
    /// Number of consecutive failures of the quorum check.
    pub quorum_errors: u32,
    /// Error of the last quorum check, if it failed, such as `lock timeout`.
    pub quorum_error: Option<String>,
    /// Time of the last heartbeat, by our clock.
    pub heartbeat_at: Option<SystemTime>,
    /// Number of leases of keys.
    pub leases: usize,
    /// Number of leases of locks.
    pub lock_leases: usize,
}

/// Status of one endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Endpoint as in the client file.
    pub endpoint: String,
    /// Version of etcd, or why the endpoint did not answer.
    pub version: Result<String, String>,
    /// Whether the endpoint is the leader of its etcd cluster.
    pub is_leader: bool,
    /// Size of its database on disk, in bytes.
    pub database_bytes: u64,
}

impl fmt::Display for SessionStatus {
    /// Formats the status as cilium-dbg does: `etcd: 1/1 connected, leases=3, lock leases=1, has
    /// quorum: https://… - 3.5.1 (leader)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let healthy = self.endpoints.iter().filter(|endpoint| endpoint.version.is_ok()).count();
        write!(f, "etcd: {healthy}/{} connected", self.endpoints.len())?;
        if let Some(cause) = self.cause.as_ref().filter(|_| !self.connected) {
            write!(f, " ({cause})")?;
        }
        write!(f, ", leases={}, lock leases={}, ", self.leases, self.lock_leases)?;
        match &self.quorum_error {
            None => write!(f, "has quorum")?,
            Some(error) => write!(f, "quorum not known: {error} ({} in a row)", self.quorum_errors)?,
        }
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let leader = if endpoint.is_leader { " (leader)" } else { "" };
            let version = endpoint.version.as_ref().map_or_else(|error| format!("failed: {error}"), Clone::clone);
            write!(f, "{} {} - {version}{leader}", if index == 0 { ":" } else { ";" }, endpoint.endpoint)?;
        }
        Ok(())
    }
}

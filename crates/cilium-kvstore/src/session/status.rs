//! What a session says of itself.

use std::fmt;
use std::time::SystemTime;

/// How a session is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionStatus {
    /// Whether there is a connection.
    pub connected: bool,
    /// Why there is none.
    pub cause: Option<String>,
    /// What each endpoint said when it was last asked; at most those of the client file.
    pub endpoints: Vec<EndpointStatus>,
    /// How many checks of the quorum failed in a row.
    pub quorum_errors: u32,
    /// What the last one said, if it failed: `lock timeout` and the like.
    pub quorum_error: Option<String>,
    /// When the heartbeat was last written, by our clock.
    pub heartbeat_at: Option<SystemTime>,
    /// Leases of keys.
    pub leases: usize,
    /// Leases of locks.
    pub lock_leases: usize,
}

/// What one endpoint said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointStatus {
    /// The endpoint, as the client file has it.
    pub endpoint: String,
    /// Its release, or why it did not answer.
    pub version: Result<String, String>,
    /// Whether it leads its cluster.
    pub is_leader: bool,
    /// What is on its disk, in bytes.
    pub database_bytes: u64,
}

impl fmt::Display for SessionStatus {
    /// `etcd: 1/1 connected, leases=3, lock leases=1, has quorum: https://… - 3.5.1 (leader)`, as cilium-dbg says it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let well = self.endpoints.iter().filter(|endpoint| endpoint.version.is_ok()).count();
        write!(f, "etcd: {well}/{} connected", self.endpoints.len())?;
        if let Some(cause) = self.cause.as_ref().filter(|_| !self.connected) {
            write!(f, " ({cause})")?;
        }
        write!(f, ", leases={}, lock leases={}, ", self.leases, self.lock_leases)?;
        match &self.quorum_error {
            None => write!(f, "has quorum")?,
            Some(error) => write!(f, "quorum not known: {error} ({} in a row)", self.quorum_errors)?,
        }
        for (place, endpoint) in self.endpoints.iter().enumerate() {
            let leader = if endpoint.is_leader { " (leader)" } else { "" };
            let version = endpoint.version.as_ref().map_or_else(|error| format!("failed: {error}"), Clone::clone);
            write!(f, "{} {} - {version}{leader}", if place == 0 { ":" } else { ";" }, endpoint.endpoint)?;
        }
        Ok(())
    }
}

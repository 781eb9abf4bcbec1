//! Read permissions of clients with a certificate.
//!
//! They may read the same keys as etcd's role `local` in a cluster that runs a KVStoreMesh
//! (docs/develop/protocol.md §7.6). Each permission covers a range of keys, and one permission must
//! cover the whole range of a request. A request for a key "and all that follow" is therefore
//! refused (GHSA-xg4h-6gfc-h4m8).

use super::errors;
use super::key_interval::KeyInterval;
use super::state::EtcdApi;
use tonic::Status;

/// Readable ranges: first key, and the end (exclusive).
const READABLE_RANGES: [(&[u8], &[u8]); 4] = [
    (b"cilium/.heartbeat", b"cilium/.heartbeau"),
    (b"cilium/cache/", b"cilium/cache0"),
    (b"cilium/cluster-config/", b"cilium/cluster-config0"),
    (b"cilium/synced/", b"cilium/synced0"),
];

fn is_readable(interval: &KeyInterval) -> bool {
    READABLE_RANGES.into_iter().any(|(from, to)| interval.is_within(from, to))
}

impl EtcdApi {
    /// Checks that the client may read the whole interval.
    ///
    /// # Errors
    /// Returns `PermissionDenied` otherwise.
    pub(super) fn check_read_permission(&self, interval: &KeyInterval) -> Result<(), Status> {
        if !self.options.restricted || is_readable(interval) { Ok(()) } else { Err(errors::permission_denied()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_end_where_their_range_ends() {
        for (key, end, readable) in [
            ("cilium/.heartbeat", "", true),
            ("cilium/.heartbeat", "cilium/.heartbeau", true),
            ("cilium/.heartbeat", "\0", false),
            ("cilium/cache/", "cilium/cache0", true),
            ("cilium/cache/nodes/v1/paris/", "cilium/cache/nodes/v1/paris0", true),
            ("cilium/cache/nodes/v1/paris/", "\0", false),
            ("cilium/cache/nodes/v1/paris/", "cilium/cache1", false),
            ("cilium/cluster-config/paris", "", true),
            ("cilium/cluster-config/paris", "\0", false),
            ("cilium/synced/paris/", "cilium/synced/paris0", true),
            ("cilium/", "cilium0", false),
            ("cilium/state/nodes/v1/", "cilium/state/nodes/v10", false),
            ("health", "", false),
            ("\0", "\0", false),
        ] {
            assert_eq!(is_readable(&KeyInterval::new(key.as_bytes(), end.as_bytes())), readable, "{key} to {end}");
        }
    }
}

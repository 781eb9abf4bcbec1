//! File descriptors: raises the process's limit and reserves some that HTTP connections never use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::model::MaxConnectedClusters;

/// Descriptors of the store: sled's files and its lock, the log, a replacement of each of these
/// while it is rotated, and the directories that are synced. A running store has 9.
const STORE_FILES: usize = 24;

/// Descriptors for everything else, most of them short-lived: standard streams, the runtime (6),
/// signals (4), listeners with one accepted connection each, the watch on the config directory, its
/// files while they are read, and name lookups of clusters.
const MARGIN: usize = 64;

/// Descriptors for probes and metrics on a separate address.
const HEALTH_CONNECTIONS: usize = crate::server::HEALTH_CONNECTION_COUNT_MAX;

/// Divisor of a limit that is too small for everything. HTTP then gets a quarter of the limit, so
/// that clients can still find out what is wrong.
const SMALL_LIMIT_DIVISOR: usize = 4;

/// Raises the soft limit to the hard one. Returns the number of descriptors for HTTP.
pub(super) fn raise_limit(clusters: MaxConnectedClusters) -> usize {
    let before = getrlimit(Resource::Nofile);
    if before.current != before.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
    // `None` is no limit
    let number = |limit: Option<u64>| limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let (before, limit) = (number(before.current), number(getrlimit(Resource::Nofile).current));
    let (reserve, http) = (reserve(clusters), http_share(limit, clusters));
    if limit.saturating_sub(http) < reserve {
        tracing::warn!(
            limit,
            reserve,
            http,
            "the limit of file descriptors is too low for all clusters: raise the hard limit (ulimit -Hn)"
        );
    } else {
        tracing::info!(limit, before, reserve, "the limit of file descriptors is {limit}, it was {before} at the start");
    }
    http
}

/// Returns the number of descriptors that HTTP never uses: one connection to the etcd of each
/// remote cluster and of the own cluster, the store's files, probes and a margin.
const fn reserve(clusters: MaxConnectedClusters) -> usize {
    clusters.id_max() as usize + 1 + STORE_FILES + MARGIN + HEALTH_CONNECTIONS
}

/// Returns the part of a limit that HTTP may use.
fn http_share(limit: usize, clusters: MaxConnectedClusters) -> usize {
    limit.saturating_sub(reserve(clusters)).max(limit / SMALL_LIMIT_DIVISOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_gets_the_descriptors_that_clusters_and_store_do_not_need() {
        let share = |limit| http_share(limit, MaxConnectedClusters::Clusters255);
        assert_eq!(reserve(MaxConnectedClusters::Clusters255), 376);
        assert_eq!([share(1_048_576), share(1_024), share(400), share(64)], [1_048_200, 648, 100, 16]);
    }
}

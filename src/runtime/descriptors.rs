//! File descriptors: as many as the system gives, and some that HTTP never takes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::model::MaxConnectedClusters;

/// What the store has open: sled's files, lock and log with one of each being replaced, and the directories that are synced.
/// A running one has 9.
const STORE_FILES: usize = 24;

/// Everything else, mostly for a moment: standard streams, the runtime's (6), the signals' (4), listeners with the one connection that each has
/// accepted and waits with, the watch on the config directory and the files that are read of it, name lookups of clusters that connect.
const MARGIN: usize = 64;

/// Probes and metrics where they have an address of their own.
const HEALTH: usize = crate::server::HEALTH_CONNECTION_COUNT_MAX;

/// What HTTP gets of a limit that is too small for all: a quarter, so that one can still ask what is wrong.
const SMALL_PART: usize = 4;

/// Raises the soft limit to the hard one. Returns how many descriptors HTTP may take.
pub(super) fn raise(clusters: MaxConnectedClusters) -> usize {
    let before = getrlimit(Resource::Nofile);
    if before.current != before.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })
    {
        tracing::warn!(%error, "cannot raise the limit of file descriptors");
    }
    // none is no limit
    let number = |limit: Option<u64>| limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let (before, limit) = (number(before.current), number(getrlimit(Resource::Nofile).current));
    let (reserve, http) = (reserve(clusters), share(limit, clusters));
    if limit.saturating_sub(http) < reserve {
        tracing::warn!(
            limit,
            reserve,
            http,
            "few file descriptors: with all clusters they do not suffice, raise the hard limit (ulimit -Hn)"
        );
    } else {
        tracing::info!(limit, before, reserve, "file descriptors");
    }
    http
}

/// What the API never takes: one connection to the etcd of each cluster and of the own one, the store's files, probes, and a margin.
const fn reserve(clusters: MaxConnectedClusters) -> usize {
    clusters.id_max() as usize + 1 + STORE_FILES + MARGIN + HEALTH
}

/// What HTTP may take of a limit.
fn share(limit: usize, clusters: MaxConnectedClusters) -> usize {
    limit.saturating_sub(reserve(clusters)).max(limit / SMALL_PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_takes_what_the_clusters_and_the_store_do_not_need() {
        let share = |limit| share(limit, MaxConnectedClusters::Clusters255);
        assert_eq!(reserve(MaxConnectedClusters::Clusters255), 376);
        assert_eq!([share(1_048_576), share(1_024), share(400), share(64)], [1_048_200, 648, 100, 16]);
    }
}

//! Index of services and endpoint slices by backend address, as far as memory allows.
//!
//! A slice of a few bytes may decode to a million addresses, so each cluster has a limit. A service
//! or slice that does not fit is left out as a whole and reported. Once there is capacity again,
//! the whole mirror is indexed again. Does no IO.

use std::collections::BTreeSet;
use std::net::IpAddr;

use imbl::{OrdMap, OrdSet};

use crate::model::{ClusterName, EntryKey};

/// Maximum number of backend addresses per cluster. Kubernetes supports 150,000 pods, and each pod
/// may be behind two services and in their slices. An address uses about 80 B, so a cluster uses at
/// most 48 MB.
const ADDRESSES_MAX: usize = 600_000;

/// Services and endpoint slices by backend address. A clone is a cheap snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BackendIndex {
    by_address: OrdSet<(IpAddr, EntryKey)>,
    clusters: OrdMap<ClusterName, ClusterUsage>,
    addresses_max: usize,
}

/// Part of the index that belongs to one cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ClusterUsage {
    /// Number of addresses in the index.
    indexed_addresses: usize,
    /// Number of services and slices that did not fit.
    omitted: usize,
    /// Number of addresses of the smallest service or slice that did not fit. It may have been
    /// deleted since.
    smallest_omitted: usize,
}

impl Default for BackendIndex {
    fn default() -> Self {
        Self::new(ADDRESSES_MAX)
    }
}

impl BackendIndex {
    /// Creates an empty index with a limit on the addresses per cluster.
    pub(super) fn new(addresses_max: usize) -> Self {
        Self { by_address: OrdSet::new(), clusters: OrdMap::new(), addresses_max }
    }

    /// Creates an empty index with the same limit.
    pub(super) fn empty_copy(&self) -> Self {
        Self::new(self.addresses_max)
    }

    /// Returns the services and endpoint slices that have this backend address.
    pub(super) fn keys_with_backend(&self, ip: IpAddr) -> impl Iterator<Item = &EntryKey> {
        self.by_address.range((ip, EntryKey::lowest())..).take_while(move |(address, _)| *address == ip).map(|(_, key)| key)
    }

    /// Returns whether all services and slices are indexed.
    pub(super) fn is_complete(&self) -> bool {
        self.clusters.values().all(|usage| usage.omitted == 0)
    }

    /// Returns whether something that was left out would fit now. Never true before half of the
    /// capacity is free, so that a cluster at its limit is not read again at each change.
    pub(super) fn can_index_omitted(&self) -> bool {
        let fits = |usage: &ClusterUsage| {
            usage.omitted > 0
                && usage.indexed_addresses <= self.addresses_max / 2
                && usage.indexed_addresses.saturating_add(usage.smallest_omitted) <= self.addresses_max
        };
        self.clusters.values().any(fits)
    }

    /// Replaces the backend addresses of a key.
    pub(super) fn replace(&mut self, key: &EntryKey, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) {
        if old.is_empty() && new.is_empty() {
            return;
        }
        let mut usage = self.clusters.get(&key.cluster).copied().unwrap_or_default();
        let was_indexed = old.first().is_some_and(|ip| self.by_address.contains(&(*ip, key.clone())));
        let (freed, was_omitted) = if was_indexed { (old.len(), 0) } else { (0, usize::from(!old.is_empty())) };
        usage.omitted -= was_omitted;
        let fits = usage.indexed_addresses - freed + new.len() <= self.addresses_max;
        // touch only the differences: a service of 5,000 backends may have changed a single one
        let removed = old.iter().filter(|ip| was_indexed && !(fits && new.contains(*ip)));
        removed.for_each(|ip| drop(self.by_address.remove(&(*ip, key.clone()))));
        usage.indexed_addresses -= freed;
        if fits {
            let added = new.iter().filter(|ip| !(was_indexed && old.contains(*ip)));
            added.for_each(|ip| drop(self.by_address.insert((*ip, key.clone()))));
            usage.indexed_addresses += new.len();
        } else {
            usage.smallest_omitted = if usage.omitted == 0 { new.len() } else { usage.smallest_omitted.min(new.len()) };
            usage.omitted += 1;
        }
        if usage.indexed_addresses == 0 && usage.omitted == 0 {
            self.clusters.remove(&key.cluster);
        } else {
            self.clusters.insert(key.cluster.clone(), usage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Kind;

    fn key(cluster: &str, name: &str) -> EntryKey {
        EntryKey::new(Kind::EndpointSlice, ClusterName::parse(cluster).unwrap(), name)
    }

    fn addresses(numbers: std::ops::Range<u8>) -> BTreeSet<IpAddr> {
        numbers.map(|number| IpAddr::from([10, 0, 0, number])).collect()
    }

    #[test]
    fn a_key_beyond_the_limit_is_omitted_in_its_cluster_only() {
        let (mut backends, none) = (BackendIndex::new(10), BTreeSet::new());
        let (first, large, other) = (key("paris", "shop/a"), key("paris", "shop/b"), key("tokyo", "shop/a"));
        backends.replace(&first, &none, &addresses(0..6));
        backends.replace(&large, &none, &addresses(0..5));
        backends.replace(&other, &none, &addresses(0..10));
        assert_eq!(backends.keys_with_backend(IpAddr::from([10, 0, 0, 1])).collect::<Vec<_>>(), [&first, &other]);
        assert_eq!((backends.is_complete(), backends.can_index_omitted()), (false, false));
        // with one address less, half of the capacity is free and the omitted slice fits
        backends.replace(&first, &addresses(0..6), &addresses(1..6));
        assert_eq!((backends.is_complete(), backends.can_index_omitted()), (false, true));
        // it grows beyond the limit, and shrinks below it
        backends.replace(&other, &addresses(0..10), &addresses(0..11));
        assert_eq!(backends.keys_with_backend(IpAddr::from([10, 0, 0, 1])).collect::<Vec<_>>(), [&first]);
        backends.replace(&other, &addresses(0..11), &addresses(1..3));
        assert_eq!(backends.keys_with_backend(IpAddr::from([10, 0, 0, 1])).count(), 2);
        backends.replace(&large, &addresses(0..5), &none);
        assert_eq!((backends.is_complete(), backends.can_index_omitted()), (true, false));
        backends.replace(&first, &addresses(1..6), &none);
        backends.replace(&other, &addresses(1..3), &none);
        assert!(backends.by_address.is_empty() && backends.clusters.is_empty());
    }

    /// Otherwise a mesh with such a slice would be read again at each change.
    #[test]
    fn a_key_that_never_fits_causes_no_new_read() {
        let mut backends = BackendIndex::new(10);
        backends.replace(&key("paris", "shop/a"), &BTreeSet::new(), &addresses(0..11));
        assert_eq!((backends.is_complete(), backends.can_index_omitted()), (false, false));
    }
}

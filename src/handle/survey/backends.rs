//! Index of services and endpoint slices by backend address, as far as memory allows.
//!
//! A slice of a few bytes may decode to a million addresses, so each cluster has a limit. A service
//! or slice that does not fit is left out as a whole and reported. Once there is capacity again,
//! everything is read again. Pure.

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
pub(super) struct Backends {
    by_address: OrdSet<(IpAddr, EntryKey)>,
    clusters: OrdMap<ClusterName, Share>,
    addresses_max: usize,
}

/// Part of the index that belongs to one cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    /// Number of indexed addresses.
    kept: usize,
    /// Number of services and slices that did not fit.
    left_out: usize,
    /// Number of addresses of the smallest service or slice that did not fit. It may have been
    /// deleted since.
    smallest: usize,
}

impl Default for Backends {
    fn default() -> Self {
        Self::new(ADDRESSES_MAX)
    }
}

impl Backends {
    /// Creates an empty index with a limit on the addresses per cluster.
    pub(super) fn new(addresses_max: usize) -> Self {
        Self { by_address: OrdSet::new(), clusters: OrdMap::new(), addresses_max }
    }

    /// Creates an empty index with the same limit.
    pub(super) fn emptied(&self) -> Self {
        Self::new(self.addresses_max)
    }

    /// Returns the services and endpoint slices that have this backend address.
    pub(super) fn backed_by(&self, ip: IpAddr) -> impl Iterator<Item = &EntryKey> {
        self.by_address.range((ip, EntryKey::lowest())..).take_while(move |(at, _)| *at == ip).map(|(_, key)| key)
    }

    /// Returns whether all services and slices are indexed.
    pub(super) fn is_complete(&self) -> bool {
        self.clusters.values().all(|share| share.left_out == 0)
    }

    /// Returns whether something that was left out would fit now. Never true before half of the
    /// capacity is free, so that a cluster at its limit is not read again at each change.
    pub(super) fn has_room_again(&self) -> bool {
        let has_room = |share: &Share| {
            share.left_out > 0 && share.kept <= self.addresses_max / 2 && share.kept.saturating_add(share.smallest) <= self.addresses_max
        };
        self.clusters.values().any(has_room)
    }

    /// Replaces the backend addresses of a key.
    pub(super) fn replace(&mut self, key: &EntryKey, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) {
        if old.is_empty() && new.is_empty() {
            return;
        }
        let mut share = self.clusters.get(&key.cluster).copied().unwrap_or_default();
        let was_kept = old.first().is_some_and(|ip| self.by_address.contains(&(*ip, key.clone())));
        let (freed, was_left_out) = if was_kept { (old.len(), 0) } else { (0, usize::from(!old.is_empty())) };
        share.left_out -= was_left_out;
        let fits = share.kept - freed + new.len() <= self.addresses_max;
        // touch only the differences: a service of 5,000 backends may have changed a single one
        let gone = old.iter().filter(|ip| was_kept && !(fits && new.contains(*ip)));
        gone.for_each(|ip| drop(self.by_address.remove(&(*ip, key.clone()))));
        share.kept -= freed;
        if fits {
            let come = new.iter().filter(|ip| !(was_kept && old.contains(*ip)));
            come.for_each(|ip| drop(self.by_address.insert((*ip, key.clone()))));
            share.kept += new.len();
        } else {
            share.smallest = if share.left_out == 0 { new.len() } else { share.smallest.min(new.len()) };
            share.left_out += 1;
        }
        if share.kept == 0 && share.left_out == 0 {
            self.clusters.remove(&key.cluster);
        } else {
            self.clusters.insert(key.cluster.clone(), share);
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
    fn what_has_no_room_is_left_out_whole_and_touches_no_other_cluster() {
        let (mut backends, none) = (Backends::new(10), BTreeSet::new());
        let (first, large, other) = (key("paris", "shop/a"), key("paris", "shop/b"), key("tokyo", "shop/a"));
        backends.replace(&first, &none, &addresses(0..6));
        backends.replace(&large, &none, &addresses(0..5));
        backends.replace(&other, &none, &addresses(0..10));
        assert_eq!(backends.backed_by(IpAddr::from([10, 0, 0, 1])).collect::<Vec<_>>(), [&first, &other]);
        assert_eq!((backends.is_complete(), backends.has_room_again()), (false, false));
        // with one address less it would fit, but half of the capacity is not free yet
        backends.replace(&first, &addresses(0..6), &addresses(1..6));
        assert_eq!((backends.is_complete(), backends.has_room_again()), (false, true));
        // it grows beyond the limit, and shrinks below it
        backends.replace(&other, &addresses(0..10), &addresses(0..11));
        assert_eq!(backends.backed_by(IpAddr::from([10, 0, 0, 1])).collect::<Vec<_>>(), [&first]);
        backends.replace(&other, &addresses(0..11), &addresses(1..3));
        assert_eq!(backends.backed_by(IpAddr::from([10, 0, 0, 1])).count(), 2);
        backends.replace(&large, &addresses(0..5), &none);
        assert_eq!((backends.is_complete(), backends.has_room_again()), (true, false));
        backends.replace(&first, &addresses(1..6), &none);
        backends.replace(&other, &addresses(1..3), &none);
        assert!(backends.by_address.is_empty() && backends.clusters.is_empty());
    }

    /// Otherwise a mesh with such a slice would be read again at each change.
    #[test]
    fn what_never_fits_is_no_reason_to_look_again() {
        let mut backends = Backends::new(10);
        backends.replace(&key("paris", "shop/a"), &BTreeSet::new(), &addresses(0..11));
        assert_eq!((backends.is_complete(), backends.has_room_again()), (false, false));
    }
}

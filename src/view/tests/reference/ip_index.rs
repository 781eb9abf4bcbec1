//! Ipcache entries of the reference mirror by prefix.

use std::net::IpAddr;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

use crate::model::*;

/// Keys of ipcache entries by prefix.
#[derive(Debug, Clone, Default)]
pub(super) struct ReferenceIpIndex {
    keys: OrdSet<(ObjectPrefix, EntryKey)>,
    /// Number of entries per length, so that lookups probe only existing lengths.
    ipv4_lengths: OrdMap<u8, u64>,
    ipv6_lengths: OrdMap<u8, u64>,
}

impl ReferenceIpIndex {
    /// Adds an entry. Adding it twice changes nothing.
    pub(super) fn insert(&mut self, prefix: ObjectPrefix, key: EntryKey) {
        if self.keys.insert((prefix, key)).is_none() {
            *self.lengths_mut(&prefix.net).entry(prefix.net.prefix_len()).or_insert(0) += 1;
        }
    }

    /// Removes an entry. Removing a missing one changes nothing.
    pub(super) fn remove(&mut self, prefix: ObjectPrefix, key: &EntryKey) {
        if self.keys.remove(&(prefix, key.clone())).is_none() {
            return;
        }
        let lengths = self.lengths_mut(&prefix.net);
        let length = prefix.net.prefix_len();
        match lengths.get_mut(&length) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                lengths.remove(&length);
            }
        }
    }

    /// Iterates over the keys of all entries for exactly this prefix, hosts first.
    pub(super) fn exact(&self, net: IpNet) -> impl Iterator<Item = &EntryKey> {
        [true, false].into_iter().flat_map(move |host| self.keys_at(ObjectPrefix { net, host }))
    }

    /// Returns the keys of all entries for the longest prefix that covers the address. Hosts
    /// precede CIDRs of full length.
    pub(super) fn longest_match(&self, ip: IpAddr) -> Vec<&EntryKey> {
        self.covering(ip.into()).next().unwrap_or_default()
    }

    /// Iterates over the keys of the entries that cover a whole network, grouped by prefix, most
    /// specific first.
    pub(super) fn covering(&self, net: IpNet) -> impl Iterator<Item = Vec<&EntryKey>> {
        let lengths = match net {
            IpNet::V4(_) => &self.ipv4_lengths,
            IpNet::V6(_) => &self.ipv6_lengths,
        };
        lengths
            .keys()
            .rev()
            .filter(move |length| **length <= net.prefix_len())
            .filter_map(move |length| IpNet::new(net.addr(), *length).ok())
            .flat_map(|net| [true, false].map(|host| ObjectPrefix { net: net.trunc(), host }))
            .map(|prefix| self.keys_at(prefix).collect::<Vec<_>>())
            .filter(|keys| !keys.is_empty())
    }

    fn keys_at(&self, prefix: ObjectPrefix) -> impl Iterator<Item = &EntryKey> {
        let start = (prefix, EntryKey::lowest());
        self.keys.range(start..).take_while(move |(other, _)| *other == prefix).map(|(_, key)| key)
    }

    fn lengths_mut(&mut self, net: &IpNet) -> &mut OrdMap<u8, u64> {
        match net {
            IpNet::V4(_) => &mut self.ipv4_lengths,
            IpNet::V6(_) => &mut self.ipv6_lengths,
        }
    }
}

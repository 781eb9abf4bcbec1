//! Entries by prefix, for exact and longest-prefix lookups over both families.
//!
//! As Cilium's ipcache does (`pkg/ipcache/ipcache.go`), a lookup probes the prefix lengths that exist, longest first; a host
//! entry comes before a CIDR of full length.

use std::net::IpAddr;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

use crate::model::{EntryKey, ObjectPrefix};

/// Keys of ip entries by the prefix that they stand for.
#[derive(Debug, Clone, Default)]
pub struct IpIndex {
    keys: OrdSet<(ObjectPrefix, EntryKey)>,
    /// How many entries of each length there are, so that lookups probe only lengths that exist.
    ipv4_lengths: OrdMap<u8, u64>,
    ipv6_lengths: OrdMap<u8, u64>,
}

impl IpIndex {
    /// Adds an entry. Adding it twice changes nothing.
    pub fn insert(&mut self, prefix: ObjectPrefix, key: EntryKey) {
        if self.keys.insert((prefix, key)).is_none() {
            *self.lengths_mut(&prefix.net).entry(prefix.net.prefix_len()).or_insert(0) += 1;
        }
    }

    /// Removes an entry. Removing one that is not there changes nothing.
    pub fn remove(&mut self, prefix: ObjectPrefix, key: &EntryKey) {
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

    /// The keys of all entries for exactly this prefix, host entries first.
    pub fn exact(&self, net: IpNet) -> impl Iterator<Item = &EntryKey> {
        [true, false].into_iter().flat_map(move |host| self.at(ObjectPrefix { net, host }))
    }

    /// The keys of all entries for the longest prefix that covers the address: host entries alone if there are any.
    #[must_use]
    pub fn longest_match(&self, ip: IpAddr) -> Vec<&EntryKey> {
        self.covering(ip).next().unwrap_or_default()
    }

    /// The keys of the entries that cover the address, grouped by prefix, most specific first.
    pub fn covering(&self, ip: IpAddr) -> impl Iterator<Item = Vec<&EntryKey>> {
        let lengths = match ip {
            IpAddr::V4(_) => &self.ipv4_lengths,
            IpAddr::V6(_) => &self.ipv6_lengths,
        };
        lengths
            .keys()
            .rev()
            .filter_map(move |length| IpNet::new(ip, *length).ok())
            .flat_map(|net| [true, false].map(|host| ObjectPrefix { net: net.trunc(), host }))
            .map(|prefix| self.at(prefix).collect::<Vec<_>>())
            .filter(|keys| !keys.is_empty())
    }

    fn at(&self, prefix: ObjectPrefix) -> impl Iterator<Item = &EntryKey> {
        let start = (prefix, EntryKey::lowest());
        self.keys.range(start..).take_while(move |(at, _)| *at == prefix).map(|(_, key)| key)
    }

    fn lengths_mut(&mut self, net: &IpNet) -> &mut OrdMap<u8, u64> {
        match net {
            IpNet::V4(_) => &mut self.ipv4_lengths,
            IpNet::V6(_) => &mut self.ipv6_lengths,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, Kind};

    fn key(cluster: &str, name: &str) -> EntryKey {
        EntryKey::new(Kind::Ip, ClusterName::parse(cluster).unwrap(), name)
    }

    fn cidr(text: &str) -> ObjectPrefix {
        ObjectPrefix { net: text.parse().unwrap(), host: false }
    }

    fn host(text: &str) -> ObjectPrefix {
        ObjectPrefix { net: IpNet::from(text.parse::<IpAddr>().unwrap()), host: true }
    }

    #[test]
    fn the_longest_prefix_wins_and_a_host_beats_a_cidr_of_full_length() {
        let mut index = IpIndex::default();
        let entries = [
            (cidr("0.0.0.0/0"), "0.0.0.0/0"),
            (cidr("10.1.0.0/16"), "10.1.0.0/16"),
            (cidr("10.1.2.0/24"), "10.1.2.0/24"),
            (cidr("10.1.2.3/32"), "10.1.2.3/32"),
            (host("10.1.2.3"), "10.1.2.3"),
            (cidr("fd00::/8"), "fd00::/8"),
            (host("fd00::1"), "fd00::1"),
        ];
        for (prefix, name) in &entries {
            index.insert(*prefix, key("paris", name));
        }
        let found =
            |index: &IpIndex, ip: &str| index.longest_match(ip.parse().unwrap()).iter().map(|key| key.name.to_string()).collect::<Vec<_>>();
        assert_eq!(found(&index, "10.1.2.3"), ["10.1.2.3"]);
        assert_eq!(found(&index, "10.1.2.4"), ["10.1.2.0/24"]);
        assert_eq!(found(&index, "10.1.3.4"), ["10.1.0.0/16"]);
        assert_eq!(found(&index, "192.0.2.1"), ["0.0.0.0/0"]);
        assert_eq!(found(&index, "fd00::1"), ["fd00::1"]);
        assert_eq!(found(&index, "fd00::2"), ["fd00::/8"]);
        assert_eq!(found(&index, "2001:db8::1"), Vec::<String>::new());
        index.remove(host("10.1.2.3"), &key("paris", "10.1.2.3"));
        assert_eq!(found(&index, "10.1.2.3"), ["10.1.2.3/32"]);
        for (prefix, name) in &entries {
            index.remove(*prefix, &key("paris", name));
        }
        assert_eq!(found(&index, "10.1.2.3"), Vec::<String>::new());
        assert!(index.keys.is_empty() && index.ipv4_lengths.is_empty() && index.ipv6_lengths.is_empty());
    }

    #[test]
    fn the_same_prefix_in_several_clusters_is_kept_apart() {
        let mut index = IpIndex::default();
        index.insert(host("10.0.0.1"), key("paris", "10.0.0.1"));
        index.insert(host("10.0.0.1"), key("tokyo", "10.0.0.1"));
        index.insert(host("10.0.0.1"), key("tokyo", "10.0.0.1"));
        assert_eq!(index.longest_match("10.0.0.1".parse().unwrap()).len(), 2);
        index.remove(host("10.0.0.1"), &key("tokyo", "10.0.0.1"));
        assert_eq!(index.longest_match("10.0.0.1".parse().unwrap()), [&key("paris", "10.0.0.1")]);
    }
}

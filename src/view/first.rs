//! The lowest key of a chunk, with its first bytes beside it.
//!
//! A search among a thousand chunks compares ten keys, and the texts of each are elsewhere in memory: waiting for them took a sixth of a
//! change. What decides nearly every comparison is in the tree's own nodes here.

use std::cmp::Ordering;

use crate::model::EntryKey;

/// How many bytes of a key stand beside it: the kind, a cluster's name of up to 14 characters, `/` and any IPv4 address fit.
const HEAD_LENGTH: usize = 32;

/// A key that is quickly compared with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct First {
    /// The kind, the cluster, `/` and the name, cut or filled up with zeros: bytes that sort as keys do, as far as they go.
    head: [u8; HEAD_LENGTH],
    pub(super) key: EntryKey,
}

impl From<EntryKey> for First {
    fn from(key: EntryKey) -> Self {
        let mut head = [0; HEAD_LENGTH];
        let text = key.cluster.as_str().bytes().chain([b'/']).chain(key.name.bytes());
        head.iter_mut().zip([key.kind as u8].into_iter().chain(text)).for_each(|(place, byte)| *place = byte);
        Self { head, key }
    }
}

impl PartialOrd for First {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for First {
    /// That of the keys.
    fn cmp(&self, other: &Self) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.key.cmp(&other.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, Kind};

    #[test]
    fn firsts_sort_as_keys_do() {
        let mut keys: Vec<EntryKey> = Kind::STORED.map(EntryKey::lowest_of).to_vec();
        for cluster in ["a", "eu", "eu-west", "eu0", "a-cluster-with-as-long-a-name-1", "a-cluster-with-as-long-a-name-2"] {
            let cluster = ClusterName::parse(cluster).unwrap();
            for name in
                ["", "\0", "10.0.0.1", "10.0.0.10", "10.0.0.2", "10.0.0.0/24", "fd00::1", "shop/cart", "a-name-that-is-longer-than-a-head"]
            {
                keys.extend([Kind::Ip, Kind::NodeIp, Kind::Service].map(|kind| EntryKey::new(kind, cluster.clone(), name)));
            }
        }
        for left in &keys {
            for right in &keys {
                assert_eq!(First::from(left.clone()).cmp(&First::from(right.clone())), left.cmp(right), "{left} {right}");
            }
        }
    }
}

//! The lowest key of a chunk, with its first bytes beside it.
//!
//! A search among a thousand chunks compares ten keys, and the texts of each are elsewhere in memory: waiting for them took a sixth of a
//! change. What decides nearly every comparison is beside the key here.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::model::EntryKey;

/// How many bytes of a key stand beside it: the kind, a cluster's name of up to 14 characters, `/` and any IPv4 address fit.
const HEAD_LENGTH: usize = 32;

/// The kind, the cluster, `/` and the name, cut or filled up with zeros: bytes that sort as keys do, as far as they go, by eights, so that
/// comparing them is no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Head([u64; HEAD_LENGTH / 8]);

/// The lowest key of a chunk, quickly compared with others. The less room it takes, the more of them stay in the processor's cache.
#[derive(Debug, Clone)]
pub(super) struct First {
    head: Head,
    pub(super) key: Arc<EntryKey>,
}

/// A key that is looked for among [`First`]s.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sought<'a> {
    head: Head,
    key: &'a EntryKey,
}

impl Head {
    fn of(key: &EntryKey) -> Self {
        let mut bytes = [0; HEAD_LENGTH];
        let (cluster, name) = (key.cluster.as_str().as_bytes(), key.name.as_bytes());
        let mut rest = bytes.as_mut_slice();
        for part in [&[key.kind as u8], cluster, b"/", name] {
            let length = part.len().min(rest.len());
            let (place, behind) = rest.split_at_mut(length);
            place.copy_from_slice(&part[..length]);
            rest = behind;
        }
        let (eights, _) = bytes.as_chunks::<8>();
        Self(std::array::from_fn(|at| u64::from_be_bytes(eights[at])))
    }
}

impl From<EntryKey> for First {
    fn from(key: EntryKey) -> Self {
        Self { head: Head::of(&key), key: Arc::new(key) }
    }
}

impl<'a> From<&'a EntryKey> for Sought<'a> {
    fn from(key: &'a EntryKey) -> Self {
        Self { head: Head::of(key), key }
    }
}

impl Sought<'_> {
    /// Whether this key is a first one or above it.
    pub(super) fn is_from(&self, first: &First) -> bool {
        first.order(&self.head, self.key).is_le()
    }
}

impl First {
    fn order(&self, head: &Head, key: &EntryKey) -> Ordering {
        self.head.cmp(head).then_with(|| (*self.key).cmp(key))
    }
}

impl PartialEq for First {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for First {}

impl PartialOrd for First {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for First {
    /// That of the keys.
    fn cmp(&self, other: &Self) -> Ordering {
        self.order(&other.head, &other.key)
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
                let first = First::from(left.clone());
                assert_eq!(first.cmp(&First::from(right.clone())), left.cmp(right), "{left} {right}");
                assert_eq!(Sought::from(right).is_from(&first), left <= right, "{left} {right}");
            }
        }
    }
}

//! The fields of a record that indices are built of, noted in its chunk, so that a start decodes no value; and what else a chunk has by kind.

use std::net::IpAddr;

use smol_str::SmolStr;

use crate::model::{EntryKey, Kind, Object, ObjectPrefix, Record};

/// The fields of a record that indices are built of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meaning {
    /// Not noted when the chunk was built: decode the record.
    Unknown,
    /// It never had a usable value.
    Nothing,
    /// An ip entry.
    Ip {
        /// What it stands for.
        prefix: ObjectPrefix,
        /// The identity that it names, as a reader sees it.
        identity: u32,
    },
    /// A node.
    Node {
        /// Its addresses, in the order of the source.
        addresses: Vec<IpAddr>,
    },
    /// An identity of this number.
    Identity(u32),
    /// A service, a service export or an endpoint slice, and the global service that it has a share in.
    Service(Option<SmolStr>),
}

impl Meaning {
    /// The meaning of a record that has its object, or never had a usable value; unknown of any other.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        match record.object.as_deref() {
            None if record.rejection.is_some() && record.good_value.is_none() => Self::Nothing,
            None => Self::Unknown,
            Some(Object::Ip(entry)) => Self::Ip { prefix: entry.prefix, identity: entry.identity },
            Some(Object::Node(node)) => Self::Node { addresses: node.addresses.iter().map(|address| address.ip).collect() },
            Some(Object::Identity(identity)) => Self::Identity(identity.id),
            Some(object @ (Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_))) => {
                Self::Service(object.shared_service(&record.key))
            }
            // never in a record
            Some(Object::Cluster(_) | Object::Finding(_)) => Self::Unknown,
        }
    }

    /// Whether it reads back from a chunk as it is, beside this key: the chunk has no more of a prefix or number than the key.
    pub(super) fn reads_back(&self, key: &EntryKey) -> bool {
        match (key.kind, self) {
            (kind @ (Kind::Ip | Kind::NodeIp), Self::Ip { prefix, .. }) => prefix_of_name(kind, &key.name) == Some(*prefix),
            (Kind::Identity, Self::Identity(id)) => key.name.parse() == Ok(*id),
            (Kind::Node, Self::Node { .. }) | (Kind::EndpointSlice | Kind::ServiceExport | Kind::Service, Self::Service(_)) => true,
            _ => false,
        }
    }
}

/// The number of a kind in a chunk. What has no records is in none.
pub(super) const fn kind_number(kind: Kind) -> u8 {
    match kind {
        Kind::Identity => 0,
        Kind::Ip => 1,
        Kind::Node => 2,
        Kind::Service => 3,
        Kind::EndpointSlice => 4,
        Kind::ServiceExport => 5,
        Kind::NodeIp => 6,
        Kind::Cluster | Kind::Problem | Kind::Notice => u8::MAX,
    }
}

/// What the name of an ip entry stands for: an address is a host, one with a length a CIDR.
pub(super) fn prefix_of_name(kind: Kind, name: &str) -> Option<ObjectPrefix> {
    if kind == Kind::NodeIp {
        return EntryKey::split_node_ip(name).map(|(_, prefix)| prefix);
    }
    ObjectPrefix::parse(name)
}

/// Addresses one after another: 4 and four bytes, or 6 and sixteen.
pub(super) fn read_addresses(packed: &[u8]) -> Vec<IpAddr> {
    let (mut addresses, mut rest) = (Vec::new(), packed);
    while let Some((ip, tail)) = match rest {
        [4, tail @ ..] => tail.split_first_chunk::<4>().map(|(octets, tail)| (IpAddr::from(*octets), tail)),
        [6, tail @ ..] => tail.split_first_chunk::<16>().map(|(octets, tail)| (IpAddr::from(*octets), tail)),
        _ => None,
    } {
        addresses.push(ip);
        rest = tail;
    }
    addresses
}

//! Indexed fields of records. A chunk stores them, so that a start builds the indices without
//! decoding values.

use std::net::IpAddr;

use smol_str::SmolStr;

use crate::model::{EntryKey, Kind, Object, ObjectPrefix, Record};

/// Indexed fields of a record's last usable value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexedFields {
    /// The chunk does not have the fields. The reader must decode the record.
    Unknown,
    /// The record never had a usable value.
    Nothing,
    /// An ipcache entry.
    Ip {
        /// Prefix of the entry.
        prefix: ObjectPrefix,
        /// Identity of the entry, after the rewrite of a remote's host (1) to remote-node (6).
        identity: u32,
    },
    /// A node.
    Node {
        /// Addresses of the node, in the order of the source.
        addresses: Vec<IpAddr>,
    },
    /// An identity with this number.
    Identity(u32),
    /// A service, a service export or an endpoint slice, with the global service that it
    /// contributes to.
    Service(Option<SmolStr>),
}

impl IndexedFields {
    /// Returns the indexed fields of a record that has its object or never had a usable value.
    /// Those of any other record are unknown.
    #[must_use]
    pub fn from_record(record: &Record) -> Self {
        match record.object.as_deref() {
            None if record.rejection.is_some() && record.good_value.is_none() => Self::Nothing,
            None => Self::Unknown,
            Some(Object::Ip(entry)) => Self::Ip { prefix: entry.prefix, identity: entry.identity },
            Some(Object::Node(node)) => Self::Node { addresses: node.addresses.iter().map(|address| address.ip).collect() },
            Some(Object::Identity(identity)) => Self::Identity(identity.id),
            Some(object @ (Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_))) => {
                Self::Service(object.shared_service(&record.key))
            }
            // a record never has these
            Some(Object::Cluster(_) | Object::Finding(_)) => Self::Unknown,
        }
    }

    /// Returns `true` if a chunk can restore these fields unchanged. It stores neither the prefix
    /// nor the number, but parses them from the key.
    pub(super) fn is_restorable(&self, key: &EntryKey) -> bool {
        match (key.kind, self) {
            (kind @ (Kind::Ip | Kind::NodeIp), Self::Ip { prefix, .. }) => prefix_of_name(kind, &key.name) == Some(*prefix),
            (Kind::Identity, Self::Identity(id)) => key.name.parse() == Ok(*id),
            (Kind::Node, Self::Node { .. }) | (Kind::EndpointSlice | Kind::ServiceExport | Kind::Service, Self::Service(_)) => true,
            _ => false,
        }
    }
}

/// Returns the number of a kind in a chunk. Kinds without records have a number that no chunk
/// contains.
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

/// Parses the name of an ipcache entry: an address is a host, and an address with a length is a
/// CIDR.
pub(super) fn prefix_of_name(kind: Kind, name: &str) -> Option<ObjectPrefix> {
    if kind == Kind::NodeIp {
        return EntryKey::split_node_ip(name).map(|(_, prefix)| prefix);
    }
    ObjectPrefix::parse(name)
}

/// Decodes addresses. Each is a byte 4 and four bytes, or a byte 6 and sixteen bytes.
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

//! The order of rows in a segment.
//!
//! Ipcache entries are sorted by address, so that a covering lookup finds the entries of all
//! clusters next to each other. Hosts come before CIDRs, which are few. All other kinds have the
//! order of their keys. Versions of a key are in order of sequence.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Sequence};
use crate::pack::{ByteReader, DecodeError, put_text, put_varint};

/// Part of a segment. The order is that of [`Kind`], except that both kinds of ipcache entries
/// share two sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::history) enum Section {
    EndpointSlices,
    Identities,
    Hosts,
    Cidrs,
    Nodes,
    ServiceExports,
    Services,
}

/// Position of an ipcache entry among the entries of its section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::history) struct AddressOrder {
    is_ipv6: bool,
    /// First address of the prefix.
    bits: u128,
    length: u8,
}

/// Sort key of a row: where it is in a segment or in the buffer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::history) struct RowKey {
    pub(in crate::history) section: Section,
    /// `None` for other kinds than ipcache entries, and for names without an address.
    pub(super) address: Option<AddressOrder>,
    pub(in crate::history) key: EntryKey,
    /// Sequence of the change that replaced the record.
    pub(in crate::history) sequence: Sequence,
}

impl AddressOrder {
    pub(super) fn new(net: IpNet) -> Self {
        let (is_ipv6, bits) = match net.network() {
            IpAddr::V4(ip) => (false, ip.to_bits().into()),
            IpAddr::V6(ip) => (true, ip.to_bits()),
        };
        Self { is_ipv6, bits, length: net.prefix_len() }
    }
}

impl RowKey {
    pub(in crate::history) fn new(key: EntryKey, sequence: Sequence) -> Self {
        let prefix = prefix_of(&key);
        Self { section: section_of(key.kind, prefix), address: prefix.map(|prefix| AddressOrder::new(prefix.net)), key, sequence }
    }

    /// Appends the key: kind, cluster, name and sequence.
    pub(in crate::history) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.key.kind as u8);
        put_text(out, self.key.cluster.as_str().as_bytes());
        put_text(out, self.key.name.as_bytes());
        put_varint(out, self.sequence.0);
    }

    pub(in crate::history) fn decode(reader: &mut ByteReader<'_>) -> Result<Self, DecodeError> {
        let number = reader.byte()?;
        let kind = Kind::STORED.into_iter().find(|kind| *kind as u8 == number).ok_or(DecodeError::Field("kind"))?;
        let cluster = ClusterName::parse(reader.text("cluster")?).map_err(|_| DecodeError::Field("cluster"))?;
        let key = EntryKey::new(kind, cluster, reader.text("name")?);
        Ok(Self::new(key, Sequence(reader.varint()?)))
    }
}

/// Returns the prefix in the name of an ipcache entry. A usable entry always has the prefix that
/// its name has.
pub(in crate::history) fn prefix_of(key: &EntryKey) -> Option<ObjectPrefix> {
    match key.kind {
        Kind::Ip => ObjectPrefix::parse(&key.name),
        Kind::NodeIp => EntryKey::split_node_ip(&key.name).map(|(_, prefix)| prefix),
        _ => None,
    }
}

fn section_of(kind: Kind, prefix: Option<ObjectPrefix>) -> Section {
    match kind {
        Kind::EndpointSlice => Section::EndpointSlices,
        Kind::Identity => Section::Identities,
        Kind::Ip | Kind::NodeIp if prefix.is_some_and(|prefix| !prefix.host) => Section::Cidrs,
        Kind::Ip | Kind::NodeIp => Section::Hosts,
        Kind::Node => Section::Nodes,
        Kind::ServiceExport => Section::ServiceExports,
        // clusters, findings and notices have no records
        Kind::Service | Kind::Cluster | Kind::Problem | Kind::Notice => Section::Services,
    }
}

//! References from a record to other records: identity and host of an ipcache entry, pod CIDRs of a
//! node, backends of a service.
//!
//! The index of findings across keys (`handle::FindingIndex`) reads only these references of every
//! record, because decoding a million records takes many seconds. For a packed record they come
//! from the chunk's indexed fields, and from the few fields of the value that the chunk does not
//! index.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use smol_str::SmolStr;

use super::lookup::LiveKey;
use crate::model::{EntryKey, Kind, Object, ObjectPrefix};
use crate::pack::{Chunk, IndexedFields};
use crate::view::View;
use crate::view::records::decoding::{decode_object, with_object};
use crate::view::records::location::RecordLocation;
use crate::wire;

/// References of a usable record to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordReferences {
    /// An ipcache entry, mirrored or derived.
    Ip {
        /// Prefix of the entry.
        prefix: ObjectPrefix,
        /// Identity that the entry names.
        identity: u32,
        /// Host of the entry; `None` for a derived entry, which belongs to its node.
        host_ip: Option<IpAddr>,
    },
    /// Number of an identity.
    Identity(u32),
    /// A node.
    Node {
        /// Addresses of the node.
        addresses: Vec<IpAddr>,
        /// Pod CIDRs of the node.
        pod_cidrs: BTreeSet<IpNet>,
    },
    /// Addresses of a service's backends.
    Backends(BTreeSet<IpAddr>),
    /// An endpoint slice.
    Slice {
        /// Addresses of the slice's endpoints.
        addresses: BTreeSet<IpAddr>,
        /// Service of the slice, as `<namespace>/<name>`.
        service: Option<SmolStr>,
        /// Approximate memory that the decoded slice uses, in bytes.
        decoded_bytes: u64,
    },
    /// No references: a service export, or an object that has none.
    Export,
}

impl RecordReferences {
    /// Returns the references of a decoded object whose key has this kind.
    #[must_use]
    pub fn of(kind: Kind, object: &Object) -> Self {
        match object {
            Object::Ip(entry) => {
                let host_ip = entry.host_ip.filter(|_| kind.is_mirrored());
                Self::Ip { prefix: entry.prefix, identity: entry.identity, host_ip }
            }
            Object::Identity(identity) => Self::Identity(identity.id),
            Object::Node(node) => {
                let addresses = node.addresses.iter().map(|address| address.ip).collect();
                Self::Node { addresses, pod_cidrs: node.pod_cidrs().collect() }
            }
            Object::Service(service) => Self::Backends(service.backends.iter().map(|backend| backend.ip).collect()),
            Object::EndpointSlice(packed) => {
                let (slice, decoded_bytes) = (packed.decoded(), packed.decoded_bytes());
                let service = slice.service();
                let addresses = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect();
                Self::Slice { addresses, service, decoded_bytes }
            }
            Object::ServiceExport(_) | Object::Cluster(_) | Object::Finding(_) => Self::Export,
        }
    }

    /// Returns the references of a row from its indexed fields.
    fn of_row(chunk: &Chunk, row: usize, fields: IndexedFields) -> Option<Self> {
        match fields {
            IndexedFields::Ip { prefix, identity } => {
                let host_ip = if chunk.scope(row).0.is_mirrored() { wire::host_ip(&chunk.usable_value(row)?) } else { None };
                Some(Self::Ip { prefix, identity, host_ip })
            }
            IndexedFields::Identity(id) => Some(Self::Identity(id)),
            IndexedFields::Node { addresses } => {
                let pod_cidrs = wire::pod_cidrs(&chunk.usable_value(row)?).into_iter().map(|net| net.trunc()).collect();
                Some(Self::Node { addresses, pod_cidrs })
            }
            IndexedFields::Service(_) | IndexedFields::Unknown | IndexedFields::Nothing => None,
        }
    }
}

impl View {
    /// Returns the references of a key; `None` if it does not exist or never had a usable value.
    #[must_use]
    pub fn references(&self, key: &EntryKey) -> Option<RecordReferences> {
        self.records.locate(key).and_then(|location| Self::references_at(&location))
    }

    /// Returns the references of an existing key.
    #[must_use]
    pub fn references_of(&self, live: &LiveKey) -> Option<RecordReferences> {
        live.location().and_then(Self::references_at)
    }

    fn references_at(location: &RecordLocation) -> Option<RecordReferences> {
        let packed = match location.record() {
            Ok(record) => return with_object(record).object.as_deref().map(|object| RecordReferences::of(record.key.kind, object)),
            Err(packed) => packed,
        };
        let fields = packed.chunk.indexed_fields(packed.row);
        if fields == IndexedFields::Nothing {
            return None;
        }
        let kind = packed.chunk.scope(packed.row).0;
        RecordReferences::of_row(&packed.chunk, packed.row, fields)
            .or_else(|| decode_object(&packed.chunk.record(packed.row)).map(|object| RecordReferences::of(kind, &object)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ClusterName;
    use crate::pack::build_with_fields;
    use crate::view::tests::bare_record;

    /// The values in this test cannot be decoded.
    #[test]
    fn references_come_from_indexed_fields_without_decoding() {
        let cluster = ClusterName::parse("paris").unwrap();
        let record = |kind, name: &str, value: &str| {
            let (key, value) = (EntryKey::new(kind, cluster.clone(), name), value.as_bytes().into());
            crate::model::Record { key, value, ..(*bare_record(1, 1)).clone() }
        };
        let (prefix, host) = ("10.1.2.40".parse::<IpAddr>().unwrap(), "172.18.1.2".parse::<IpAddr>().unwrap());
        let prefix = ObjectPrefix { net: prefix.into(), host: true };
        let ip = record(Kind::Ip, "10.1.2.40", r#"{"HostIP":"172.18.1.2","ID":-1}"#);
        let node = record(Kind::Node, "worker", r#"{"IPv4AllocCIDR":{"IP":"10.1.2.7","Mask":"////AA=="},"Name":7}"#);
        let records = [(ip, IndexedFields::Ip { prefix, identity: 300 }), (node, IndexedFields::Node { addresses: vec![host] })];
        let mut view = View::default();
        view.restore_chunks(build_with_fields(records.iter().map(|(record, fields)| (record, fields.clone()))));
        let references: Vec<Option<RecordReferences>> =
            view.live_keys_from(&EntryKey::lowest()).map(|live| view.references_of(&live)).collect();
        let pod_cidrs = BTreeSet::from(["10.1.2.0/24".parse().unwrap()]);
        let expected = [
            RecordReferences::Ip { prefix, identity: 300, host_ip: Some(host) },
            RecordReferences::Node { addresses: vec![host], pod_cidrs },
        ];
        assert_eq!(references, expected.map(Some));
    }
}

//! The references of a record to others: the identity and host that an entry names, the pod CIDRs of a node, the addresses behind a service.
//!
//! The survey looks at every record and asks for this alone, since decoding a million records takes a core many seconds. Of a packed record it
//! is read from what its chunk notes and from the few fields of its value that the chunk does not.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use smol_str::SmolStr;

use super::lookup::Live;
use crate::model::{EntryKey, Kind, Object, ObjectPrefix};
use crate::pack::{Chunk, Meaning};
use crate::view::View;
use crate::view::base::decoding::{object_of, whole};
use crate::view::base::location::RecordLocation;
use crate::wire;

/// The references of a usable record to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gist {
    /// An ip entry, derived ones included.
    Ip {
        /// What it stands for.
        prefix: ObjectPrefix,
        /// The identity that it names.
        identity: u32,
        /// The host that it is behind; not of derived entries, whose node it is.
        host_ip: Option<IpAddr>,
    },
    /// An identity of this number.
    Identity(u32),
    /// A node.
    Node {
        /// Its addresses.
        addresses: Vec<IpAddr>,
        /// The ranges that its pods get addresses from.
        pod_cidrs: BTreeSet<IpNet>,
    },
    /// A service, and the addresses behind it.
    Backends(BTreeSet<IpAddr>),
    /// An endpoint slice.
    Slice {
        /// Its addresses.
        addresses: BTreeSet<IpAddr>,
        /// The service that it is of, as `<namespace>/<name>`.
        service: Option<SmolStr>,
        /// About how many bytes of memory it takes while it is decoded.
        decoded_bytes: u64,
    },
    /// A service export.
    Export,
}

impl Gist {
    /// The gist of a decoded object; `kind` is that of its key.
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

    /// The gist of a row whose meaning its chunk notes.
    fn of_noted(chunk: &Chunk, row: usize, meaning: Meaning) -> Option<Self> {
        match meaning {
            Meaning::Ip { prefix, identity } => {
                let host_ip = if chunk.scope(row).0.is_mirrored() { wire::host_ip(&chunk.usable_value(row)?) } else { None };
                Some(Self::Ip { prefix, identity, host_ip })
            }
            Meaning::Identity(id) => Some(Self::Identity(id)),
            Meaning::Node { addresses } => {
                let pod_cidrs = wire::pod_cidrs(&chunk.usable_value(row)?).into_iter().map(|net| net.trunc()).collect();
                Some(Self::Node { addresses, pod_cidrs })
            }
            Meaning::Service(_) | Meaning::Unknown | Meaning::Nothing => None,
        }
    }
}

impl View {
    /// The gist of a key; `None` where it is not held, or never was usable.
    #[must_use]
    pub fn gist(&self, key: &EntryKey) -> Option<Gist> {
        self.place(key).and_then(|place| Self::gist_at(&place))
    }

    /// The gist of an existing key.
    #[must_use]
    pub fn gist_of(&self, live: &Live) -> Option<Gist> {
        live.place().and_then(Self::gist_at)
    }

    fn gist_at(place: &RecordLocation) -> Option<Gist> {
        let at = match place.record() {
            Ok(record) => return whole(record).object.as_deref().map(|object| Gist::of(record.key.kind, object)),
            Err(at) => at,
        };
        let meaning = at.chunk.meaning(at.row);
        if meaning == Meaning::Nothing {
            return None;
        }
        let kind = at.chunk.scope(at.row).0;
        Gist::of_noted(&at.chunk, at.row, meaning).or_else(|| object_of(&at.chunk.record(at.row)).map(|object| Gist::of(kind, &object)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ClusterName;
    use crate::pack::build_noted;
    use crate::view::tests::bare_record;

    /// Nobody could decode these values; of a million that can be, it would take many seconds.
    #[test]
    fn nothing_is_decoded_for_the_gist_of_what_a_chunk_notes() {
        let cluster = ClusterName::parse("paris").unwrap();
        let record = |kind, name: &str, value: &str| {
            let (key, value) = (EntryKey::new(kind, cluster.clone(), name), value.as_bytes().into());
            crate::model::Record { key, value, ..(*bare_record(1, 1)).clone() }
        };
        let (prefix, host) = ("10.1.2.40".parse::<IpAddr>().unwrap(), "172.18.1.2".parse::<IpAddr>().unwrap());
        let prefix = ObjectPrefix { net: prefix.into(), host: true };
        let ip = record(Kind::Ip, "10.1.2.40", r#"{"HostIP":"172.18.1.2","ID":-1}"#);
        let node = record(Kind::Node, "worker", r#"{"IPv4AllocCIDR":{"IP":"10.1.2.7","Mask":"////AA=="},"Name":7}"#);
        let noted = [(ip, Meaning::Ip { prefix, identity: 300 }), (node, Meaning::Node { addresses: vec![host] })];
        let mut view = View::default();
        view.restore_chunks(build_noted(noted.iter().map(|(record, meaning)| (record, meaning.clone()))));
        let gists: Vec<Option<Gist>> = view.live_from(&EntryKey::lowest()).map(|live| view.gist_of(&live)).collect();
        let pod_cidrs = BTreeSet::from(["10.1.2.0/24".parse().unwrap()]);
        let expected = [Gist::Ip { prefix, identity: 300, host_ip: Some(host) }, Gist::Node { addresses: vec![host], pod_cidrs }];
        assert_eq!(gists, expected.map(Some));
    }
}

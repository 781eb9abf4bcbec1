//! Selections of replaced versions: by key, address, identity, pod, or kind and cluster.

use std::net::IpAddr;

use super::segment::filter::FilterElement;
use super::segment::row_key::prefix_of;
use super::segment::writer::decode_object;
use crate::model::{ClusterName, EntryKey, Kind, Object, Record};
use crate::pack::{Chunk, FieldTest, IndexedFields, RowField, RowFilter, TextTest};

/// A selection of versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionSelection {
    /// The versions of one key.
    Key(EntryKey),
    /// Ipcache entries whose prefix covers an address.
    Covering(IpAddr),
    /// The identities with a number, and the ipcache entries that name it.
    Identity(u32),
    /// The identities with a number.
    IdentityObjects(u32),
    /// Ipcache entries of a pod.
    Pod {
        /// Namespace of the pod.
        namespace: String,
        /// Name of the pod.
        name: String,
    },
    /// All entries of some kinds and clusters. No cluster means all.
    Scopes {
        /// Kinds as they are stored.
        kinds: Vec<Kind>,
        /// Clusters.
        clusters: Vec<ClusterName>,
    },
}

impl VersionSelection {
    /// Returns the element that a segment with a match has; `None` if no single element shows it.
    pub(super) fn filter_element(&self) -> Option<FilterElement> {
        match self {
            Self::Identity(identity) | Self::IdentityObjects(identity) => Some(FilterElement::of_identity(*identity)),
            Self::Pod { namespace, name } => Some(FilterElement::of_pod(namespace, name)),
            Self::Key(_) | Self::Covering(_) | Self::Scopes { .. } => None,
        }
    }

    /// Returns the rows of a chunk that may match, in order.
    pub(super) fn rows_that_may_match(&self, chunk: &Chunk) -> Vec<usize> {
        match self {
            Self::Key(_) | Self::Covering(_) => (0..chunk.len()).collect(),
            Self::Identity(identity) => {
                let names = chunk.may_name_identity(*identity);
                let matches = |row: &usize| match chunk.indexed_fields(*row) {
                    IndexedFields::Ip { identity: named, .. } => names && named == *identity,
                    IndexedFields::Identity(number) => number == *identity,
                    IndexedFields::Unknown | IndexedFields::Nothing => true,
                    IndexedFields::Node { .. } | IndexedFields::Service(_) => false,
                };
                (0..chunk.len()).filter(matches).collect()
            }
            Self::IdentityObjects(identity) => {
                let matches = |row: &usize| match chunk.indexed_fields(*row) {
                    IndexedFields::Identity(number) => number == *identity,
                    IndexedFields::Unknown | IndexedFields::Nothing => true,
                    IndexedFields::Ip { .. } | IndexedFields::Node { .. } | IndexedFields::Service(_) => false,
                };
                (0..chunk.len()).filter(matches).collect()
            }
            Self::Pod { namespace, name } => {
                let equals = |field, text: &String| FieldTest { fields: vec![field], test: TextTest::Equals(vec![text.clone()]) };
                let tests = vec![equals(RowField::Namespace, namespace), equals(RowField::Pod, name)];
                chunk.rows_matching(&RowFilter(vec![(Kind::Ip, tests)]))
            }
            Self::Scopes { kinds, clusters } => {
                let matches = |row: &usize| {
                    let (kind, cluster) = chunk.scope(*row);
                    kinds.contains(&kind) && (clusters.is_empty() || clusters.contains(cluster))
                };
                (0..chunk.len()).filter(matches).collect()
            }
        }
    }

    /// Returns whether a record matches.
    pub(super) fn matches(&self, record: &Record) -> bool {
        match self {
            Self::Key(key) => record.key == *key,
            Self::Covering(ip) => prefix_of(&record.key).is_some_and(|prefix| prefix.net.contains(ip)),
            Self::IdentityObjects(identity) => record.key.kind == Kind::Identity && record.key.name.parse() == Ok(*identity),
            Self::Identity(identity) => match record.key.kind {
                Kind::Identity => record.key.name.parse() == Ok(*identity),
                Kind::Ip | Kind::NodeIp => {
                    decode_object(record).is_some_and(|object| matches!(&*object, Object::Ip(entry) if entry.identity == *identity))
                }
                _ => false,
            },
            Self::Pod { namespace, name } => {
                let is_of_pod =
                    |object: &Object| matches!(object, Object::Ip(entry) if entry.pod_name == *name && entry.namespace == *namespace);
                record.key.kind == Kind::Ip && decode_object(record).is_some_and(|object| is_of_pod(&object))
            }
            Self::Scopes { kinds, clusters } => {
                kinds.contains(&record.key.kind) && (clusters.is_empty() || clusters.contains(&record.key.cluster))
            }
        }
    }
}

//! Codecs for Cilium's etcd keys and values.
//!
//! This is the only module that knows Cilium's formats. Decoding applies the checks of a Cilium
//! agent and returns an object of `model`, or one line that says what is wrong with the value.
//! [`write`](mod@write) encodes values, and [`keys`] converts keys in both directions. The module
//! does no I/O and stores no earlier value: the caller keeps the last good one. Malformed input
//! never panics, and the memory that a value can allocate is linear in its length.

mod address;
pub mod cluster_config;
mod endpoint_slice;
mod go_json;
mod identity;
mod ip;
pub mod keys;
mod node;
mod protobuf;
mod service;
mod service_export;
#[cfg(test)]
pub(crate) mod tests;
mod time;
pub mod write;

pub use time::time_text;

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;

use crate::model::{ALLOCATED_IDENTITY_MIN, ClusterId, ClusterName, EntryKey, IpEntry, Kind, MaxConnectedClusters, Object, PackedSlice};

/// Maximum length of a foreign text in an error, in characters. It exceeds any Kubernetes name
/// segment (63) and any IPv6 prefix (43).
const QUOTE_LENGTH_MAX: usize = 100;

/// Maximum length of an error, in characters: two quotes and the words around them.
const REASON_LENGTH_MAX: usize = 300;

/// Facts about the cluster that a value comes from.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// Name of the cluster, from the name of its client file. Every value must contain it.
    pub cluster: &'a ClusterName,
    /// Id from the cluster config. 0 means unknown, and then no id is checked against it.
    pub cluster_id: ClusterId,
    /// Size of the mesh. It decides which identities belong to a cluster.
    pub max_connected_clusters: MaxConnectedClusters,
}

/// Decodes and validates the value of a key by the rules of the agent's own validators
/// (docs/develop/protocol.md §2).
///
/// # Errors
/// Returns one short line that names the field and says what is wrong with it.
pub fn decode(key: &EntryKey, value: &[u8], context: &Context<'_>) -> Result<Object, String> {
    decode_with(key, value, context, || value.into())
}

/// Decodes a value that is already shared. An object that keeps the bytes shares them instead of
/// copying.
///
/// # Errors
/// The same as those of [`decode`].
pub fn decode_shared(key: &EntryKey, value: &Arc<[u8]>, context: &Context<'_>) -> Result<Object, String> {
    decode_with(key, value, context, || Arc::clone(value))
}

fn decode_with(key: &EntryKey, value: &[u8], context: &Context<'_>, share: impl Fn() -> Arc<[u8]>) -> Result<Object, String> {
    let object = match key.kind {
        Kind::EndpointSlice => endpoint_slice::decode(&key.name, value, context)
            .map(|slice| Object::EndpointSlice(packed_slice(share()).with_service_of(&slice))),
        Kind::Identity => identity::decode(&key.name, value, context).map(Object::Identity),
        Kind::Ip => ip::decode(&key.name, value, context).map(Object::Ip),
        Kind::NodeIp => ip::decode_derived(&key.name, value, context).map(Object::Ip),
        Kind::Node => node::decode(&key.name, value, context).map(|node| Object::Node(node.into())),
        Kind::ServiceExport => service_export::decode(&key.name, value, context).map(|export| Object::ServiceExport(export.into())),
        Kind::Service => service::decode(&key.name, value, context).map(Object::Service),
        Kind::Cluster => Err("a cluster config is not a mirrored value".to_owned()),
        Kind::Problem | Kind::Notice => Err("an entry that meshkeep creates is not a mirrored value".to_owned()),
    };
    object.map_err(|reason| bounded(&reason))
}

/// Decodes a value that [`decode`] has accepted before. The object does not depend on the context
/// of that time, so none is needed. An endpoint slice is not unpacked.
#[must_use]
pub fn decode_accepted(key: &EntryKey, value: &Arc<[u8]>) -> Option<Object> {
    let context = Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::default() };
    match key.kind {
        Kind::EndpointSlice => Some(Object::EndpointSlice(packed_slice(Arc::clone(value)))),
        _ => decode(key, value, &context).ok(),
    }
}

fn packed_slice(value: Arc<[u8]>) -> PackedSlice {
    let decoded_bytes = endpoint_slice::decoded_bytes(&value);
    PackedSlice::new(value, |value| endpoint_slice::read(value).ok().map(|(_, slice)| slice), decoded_bytes)
}

/// Encodes an entry that is derived from a node's address or pod CIDR: a pair as Cilium writes it,
/// with the members that such an entry has. [`decode`] reads it back.
#[must_use]
pub fn derived_value(entry: &IpEntry) -> Vec<u8> {
    ip::write_derived(entry)
}

/// Returns the host that the value of an ipcache entry names. The value must have passed
/// [`decode`], which takes ten times as long.
#[must_use]
pub fn host_ip(value: &[u8]) -> Option<IpAddr> {
    ip::host_ip(value)
}

/// Returns the identity that the value of an ipcache entry names, even if [`decode`] rejects the
/// entry. `None` if its JSON cannot be read.
#[must_use]
pub fn ip_identity(value: &[u8]) -> Option<u32> {
    ip::identity(value)
}

/// Returns the pod CIDRs that the value of a node names. The value must have passed [`decode`].
#[must_use]
pub fn pod_cidrs(value: &[u8]) -> Vec<IpNet> {
    node::pod_cidrs(value)
}

/// Returns an upper bound on the number of ipcache entries that the value of a node creates. The
/// value must have passed [`decode`].
#[must_use]
pub fn node_entry_count(value: &[u8]) -> usize {
    node::entry_count(value)
}

/// Returns the identity that a value names and the range of its cluster, if the identity is outside
/// that range. Other faults of the value do not matter. `None` also if the cluster's id is unknown.
#[must_use]
pub fn identity_out_of_range(key: &EntryKey, value: &[u8], context: &Context<'_>) -> Option<(u32, RangeInclusive<u32>)> {
    let identity = match key.kind {
        Kind::Identity => identity::parse_number(&key.name).ok()?,
        Kind::Ip => ip::identity(value)?,
        Kind::Node
        | Kind::NodeIp
        | Kind::Service
        | Kind::ServiceExport
        | Kind::EndpointSlice
        | Kind::Cluster
        | Kind::Problem
        | Kind::Notice => return None,
    };
    context.range_if_outside(identity).map(|range| (identity, range))
}

impl Context<'_> {
    fn check_cluster(&self, field: &str, cluster: &str) -> Result<(), String> {
        if cluster == self.cluster.as_str() {
            return Ok(());
        }
        Err(format!("{field} is {}, expected {:?}", quoted(cluster), self.cluster.as_str()))
    }

    /// Checks that namespace and name in a value are those of its key, `<namespace>/<name>`.
    fn check_names(key_name: &str, namespace: &str, name: &str) -> Result<(), String> {
        for (field, text) in [("namespace", namespace), ("name", name)] {
            if text.is_empty() {
                return Err(format!("{field} is empty"));
            }
        }
        if key_name.split_once('/') == Some((namespace, name)) && !name.contains('/') {
            return Ok(());
        }
        let (namespace, name, key_name) = (quoted(namespace), quoted(name), quoted(key_name));
        Err(format!("namespace and name are {namespace} and {name}, but the key has {key_name}"))
    }

    fn check_cluster_id(&self, field: &str, cluster_id: u32) -> Result<(), String> {
        if self.cluster_id == ClusterId(0) || cluster_id == self.cluster_id.0 {
            return Ok(());
        }
        Err(format!("{field} is {cluster_id}, expected {}, the id in the cluster config of {}", self.cluster_id, self.cluster))
    }

    /// Returns the identities that the cluster may allocate, if its id is known.
    fn identity_range(&self) -> Option<RangeInclusive<u32>> {
        if self.cluster_id == ClusterId(0) { None } else { self.max_connected_clusters.identities_of(self.cluster_id) }
    }

    /// Returns the cluster's identity range if `identity` is allocated but outside it.
    fn range_if_outside(&self, identity: u32) -> Option<RangeInclusive<u32>> {
        self.identity_range().filter(|range| identity >= ALLOCATED_IDENTITY_MIN && !range.contains(&identity))
    }
}

/// Quotes, escapes and cuts a foreign text for an error.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTE_LENGTH_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// Cuts an error to its maximum length. It is a single line already: [`quoted`] or serde has
/// escaped every foreign text in it.
fn bounded(reason: &str) -> String {
    match reason.char_indices().nth(REASON_LENGTH_MAX) {
        None => reason.to_owned(),
        Some((end, _)) => format!("{}…", &reason[..end]),
    }
}

//! Cilium's keys and values to and from `model`; the only room that knows their formats.
//!
//! Receives: the bytes of a key and of its value, and what is known of the cluster that sent them. Emits: objects of `model` that
//! passed the checks an agent makes, or one line that says what is wrong. Deliberately lacks: IO, async, and any memory of earlier
//! values (keeping the last good one is the writer's work). Nothing here panics on foreign bytes, and what a value can make it
//! allocate is linear in the value's length.

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

/// How much of a foreign text an error repeats, in characters: longer than any Kubernetes name segment (63) and any IPv6 prefix (43).
const QUOTE_LENGTH_MAX: usize = 100;

/// How long a reason may be, in characters: two quotes and the words around them.
const REASON_LENGTH_MAX: usize = 300;

/// What is known of the cluster that a value comes from.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The name of its config file, which every value must repeat.
    pub cluster: &'a ClusterName,
    /// The id from its cluster config; 0 is "not known" (a cluster without one), and then nothing is checked against it.
    pub cluster_id: ClusterId,
    /// The size of the mesh, which decides the identities that belong to a cluster.
    pub max_connected_clusters: MaxConnectedClusters,
}

/// Decodes and validates the bytes of a key, by the rules of the agent's own validators (docs/develop/protocol.md §2).
///
/// # Errors
/// One short line that names the field and says what is wrong with it.
pub fn decode(key: &EntryKey, value: &[u8], context: &Context<'_>) -> Result<Object, String> {
    decode_with(key, value, context, || value.into())
}

/// Decodes a value that is held already: an object that keeps bytes shares them and takes no copy.
///
/// # Errors
/// As [`decode`].
pub fn decode_held(key: &EntryKey, value: &Arc<[u8]>, context: &Context<'_>) -> Result<Object, String> {
    decode_with(key, value, context, || Arc::clone(value))
}

fn decode_with(key: &EntryKey, value: &[u8], context: &Context<'_>, held: impl Fn() -> Arc<[u8]>) -> Result<Object, String> {
    let object = match key.kind {
        Kind::EndpointSlice => {
            endpoint_slice::decode(&key.name, value, context).map(|slice| Object::EndpointSlice(packed_slice(held()).noting(&slice)))
        }
        Kind::Identity => identity::decode(&key.name, value, context).map(Object::Identity),
        Kind::Ip => ip::decode(&key.name, value, context).map(Object::Ip),
        Kind::NodeIp => ip::decode_derived(&key.name, value, context).map(Object::Ip),
        Kind::Node => node::decode(&key.name, value, context).map(|node| Object::Node(node.into())),
        Kind::ServiceExport => service_export::decode(&key.name, value, context).map(|export| Object::ServiceExport(export.into())),
        Kind::Service => service::decode(&key.name, value, context).map(Object::Service),
        Kind::Cluster => Err("a cluster config is no mirrored value".to_owned()),
        Kind::Problem | Kind::Notice => Err("what is made here is no mirrored value".to_owned()),
    };
    object.map_err(|reason| bounded(&reason))
}

/// The object of a value that was found good when it came, by all that was known of its cluster then; the object does not depend on that
/// knowledge. An endpoint slice is not looked into.
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

/// The value of an entry that is derived from a node: a pair as Cilium writes it, with what a node's address or pod CIDR has. [`decode`]
/// reads it back.
#[must_use]
pub fn derived_value(entry: &IpEntry) -> Vec<u8> {
    ip::write_derived(entry)
}

/// The host that the value of an ip entry names, where [`decode`] took it: a tenth of the work.
#[must_use]
pub fn host_ip(value: &[u8]) -> Option<IpAddr> {
    ip::host_ip(value)
}

/// The identity that the value of an ipcache entry names, whatever else is wrong with it.
#[must_use]
pub fn ip_identity(value: &[u8]) -> Option<u32> {
    ip::identity(value)
}

/// The pod CIDRs that the value of a node names, where [`decode`] took it.
#[must_use]
pub fn pod_cidrs(value: &[u8]) -> Vec<IpNet> {
    node::pod_cidrs(value)
}

/// How many ipcache entries the value of a node makes at most, where [`decode`] takes it.
#[must_use]
pub fn node_entry_count(value: &[u8]) -> usize {
    node::entry_count(value)
}

/// The identity that a value names though its cluster may not have it, with those that it may have; whatever else is wrong with the value.
/// `None` also where the cluster's id is not known.
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
    context.range_without(identity).map(|range| (identity, range))
}

impl Context<'_> {
    /// Checks the cluster that a value names.
    fn check_cluster(&self, field: &str, cluster: &str) -> Result<(), String> {
        if cluster == self.cluster.as_str() {
            return Ok(());
        }
        Err(format!("{field} is {}, expected {:?}", quoted(cluster), self.cluster.as_str()))
    }

    /// Checks the namespace and name that a value claims against its key, `<namespace>/<name>`.
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
        Err(format!("namespace and name are {namespace} and {name}, but the key says {key_name}"))
    }

    /// Checks the cluster id that a value claims, where the right one is known.
    fn check_cluster_id(&self, field: &str, cluster_id: u32) -> Result<(), String> {
        if self.cluster_id == ClusterId(0) || cluster_id == self.cluster_id.0 {
            return Ok(());
        }
        Err(format!("{field} is {cluster_id}, expected {}, the id in the cluster config of {}", self.cluster_id, self.cluster))
    }

    /// The identities that the cluster allocates from, where its id is known.
    fn identity_range(&self) -> Option<RangeInclusive<u32>> {
        if self.cluster_id == ClusterId(0) { None } else { self.max_connected_clusters.identities_of(self.cluster_id) }
    }

    /// The identities that the cluster allocates from, if an identity that is allocated is not among them.
    fn range_without(&self, identity: u32) -> Option<RangeInclusive<u32>> {
        self.identity_range().filter(|range| identity >= ALLOCATED_IDENTITY_MIN && !range.contains(&identity))
    }
}

/// A foreign text as an error repeats it: quoted, escaped and cut.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTE_LENGTH_MAX) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// A reason of bounded length. It is one line already: every foreign text in it is escaped, by [`quoted`] or by serde.
fn bounded(reason: &str) -> String {
    match reason.char_indices().nth(REASON_LENGTH_MAX) {
        None => reason.to_owned(),
        Some((end, _)) => format!("{}…", &reason[..end]),
    }
}

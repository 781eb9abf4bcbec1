//! Generated mesh: clusters with nodes, identities, endpoints and services, in the form that
//! Cilium's Go code writes.
//!
//! A [`MeshCluster`] is the expected contents of a cluster; [`publish`] and [`rewrite`] write it to
//! an etcd. Its keys are in cache form (`cilium/cache`) and are converted to state form
//! (`cilium/state`) for a cluster's own etcd.

use std::collections::BTreeMap;

use etcd_client::{Client, PutOptions, Txn, TxnOp};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::etcd::Etcd;
use super::eventually;
use super::values::ValueGenerator;

/// Parts of keys that name the kind, below `cilium/state/` and `cilium/cache/`.
pub(crate) const BASES: [&str; 6] = ["endpointslices/v1", "identities/v1", "ip/v1", "nodes/v1", "serviceexports/v1", "services/v1"];

/// Time to live of the leases of all keys, in seconds (`kvstore-lease-ttl`, 15 minutes).
const LEASE_TTL_S: i64 = 900;

/// Maximum number of keys per lease (cilium `pkg/kvstore/etcd_lease.go`).
const KEYS_PER_LEASE: usize = 1_000;

/// Number of keys written in one transaction: below etcd's limit of 128.
const KEYS_PER_TRANSACTION: usize = 100;

/// Owner of an etcd, which determines the form of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A cluster's own etcd: `cilium/state`.
    State,
    /// A KVStoreMesh's etcd, for any number of clusters: `cilium/cache`.
    Cache,
}

/// Number of objects in a generated cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) nodes: u32,
    pub(crate) identities: u32,
    pub(crate) endpoints: u32,
    pub(crate) services: u32,
    /// Number of service exports, and of endpoint slices. With 0 the cluster config does not
    /// mention these kinds.
    pub(crate) exports: u32,
}

/// Default size of a cluster in Cilium's clustermesh-apiserver mock, which is used for ten
/// clusters.
pub(crate) const FULL: Shape = Shape { nodes: 20, identities: 100, endpoints: 250, services: 20, exports: 0 };

/// A few objects of every kind that all releases have.
pub(crate) const SMALL: Shape = Shape { nodes: 4, identities: 10, endpoints: 24, services: 5, exports: 0 };

/// A few objects of every kind that the newest release has.
pub(crate) const EVERY_KIND: Shape = Shape { exports: 3, ..SMALL };

/// Kind and number of a generated object, from which another version of its value can be generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GeneratedObject {
    Node(u32),
    Identity(u32),
    Endpoint(u32),
    Service(u32),
    Export(u32),
    Slice(u32),
}

/// Expected contents of one cluster at its source.
#[derive(Debug, Clone)]
pub(crate) struct MeshCluster {
    pub(crate) name: String,
    pub(crate) id: u32,
    /// Maximum number of clusters in its mesh.
    pub(crate) max_connected_clusters: u32,
    shape: Shape,
    /// Values by key in cache form.
    pub(crate) entries: BTreeMap<String, Vec<u8>>,
    /// Object and its current version by key in cache form.
    objects: BTreeMap<String, (GeneratedObject, u32)>,
    next_endpoint: u32,
}

impl MeshCluster {
    /// Generates a cluster with this id and the name `c<id>`.
    pub(crate) fn generate(id: u32, shape: Shape) -> Self {
        Self::generate_named(&format!("c{id:02}"), id, shape)
    }

    /// Generates a cluster with this name.
    pub(crate) fn generate_named(name: &str, id: u32, shape: Shape) -> Self {
        Self::generate_in_mesh_of(255, name, id, shape)
    }

    /// Generates a cluster in a mesh of 255 or 511 clusters.
    pub(crate) fn generate_in_mesh_of(max_connected_clusters: u32, name: &str, id: u32, shape: Shape) -> Self {
        let (entries, objects, next_endpoint) = (BTreeMap::new(), BTreeMap::new(), shape.endpoints);
        let mut cluster = Self { name: name.into(), id, max_connected_clusters, shape, entries, objects, next_endpoint };
        for (count, item) in [
            (shape.nodes, GeneratedObject::Node as fn(u32) -> GeneratedObject),
            (shape.identities, GeneratedObject::Identity),
            (shape.endpoints, GeneratedObject::Endpoint),
            (shape.services, GeneratedObject::Service),
            (shape.exports, GeneratedObject::Export),
            (shape.exports, GeneratedObject::Slice),
        ] {
            for index in 0..count {
                cluster.set(item(index), 0);
            }
        }
        cluster
    }

    fn set(&mut self, item: GeneratedObject, version: u32) {
        let (key_suffix, value) = self.encode(item, version);
        let key = self.key(item, &key_suffix);
        self.objects.insert(key.clone(), (item, version));
        self.entries.insert(key, value);
    }

    fn key(&self, item: GeneratedObject, key_suffix: &str) -> String {
        let name = &self.name;
        match item {
            GeneratedObject::Node(_) => format!("cilium/cache/nodes/v1/{name}/{key_suffix}"),
            GeneratedObject::Identity(_) => format!("cilium/cache/identities/v1/{name}/id/{key_suffix}"),
            GeneratedObject::Endpoint(_) => format!("cilium/cache/ip/v1/{name}/{key_suffix}"),
            GeneratedObject::Service(_) => format!("cilium/cache/services/v1/{name}/{key_suffix}"),
            GeneratedObject::Export(_) => format!("cilium/cache/serviceexports/v1/{name}/{key_suffix}"),
            GeneratedObject::Slice(_) => format!("cilium/cache/endpointslices/v1/{name}/{key_suffix}"),
        }
    }

    fn encode(&self, item: GeneratedObject, version: u32) -> (String, Vec<u8>) {
        let (key_suffix, text) = match item {
            GeneratedObject::Node(index) => self.value_generator().node(index, version),
            GeneratedObject::Identity(index) => self.value_generator().identity(index, version),
            GeneratedObject::Endpoint(index) => self.value_generator().endpoint(index, version),
            GeneratedObject::Service(index) => self.value_generator().service(index, version),
            GeneratedObject::Export(index) => self.value_generator().export(index, version),
            GeneratedObject::Slice(index) => return self.value_generator().slice(index, version),
        };
        (key_suffix, text.into_bytes())
    }

    /// Gives one percent of the keys (at least one of each kind) another value.
    pub(crate) fn change_one_percent(&mut self, random: &mut StdRng) {
        for key in self.sample(random) {
            self.change(&key);
        }
    }

    pub(crate) fn change(&mut self, key: &str) {
        let (item, version) = self.objects[key];
        self.set(item, version + 1);
    }

    /// Deletes one percent of the keys (at least one of each kind).
    pub(crate) fn delete_one_percent(&mut self, random: &mut StdRng) {
        for key in self.sample(random) {
            self.delete(&key);
        }
    }

    pub(crate) fn delete(&mut self, key: &str) {
        self.entries.remove(key).unwrap();
        self.objects.remove(key);
    }

    pub(crate) fn add_endpoints(&mut self, count: u32) {
        for index in self.next_endpoint..self.next_endpoint + count {
            self.set(GeneratedObject::Endpoint(index), 0);
        }
        self.next_endpoint += count;
    }

    /// Creates the objects again that another state of the cluster has and this one lacks.
    pub(crate) fn restore_missing(&mut self, other: &Self) {
        for (key, object) in &other.objects {
            if !self.objects.contains_key(key) {
                self.objects.insert(key.clone(), *object);
                self.entries.insert(key.clone(), other.entries[key].clone());
            }
        }
    }

    /// Returns the keys of one kind (`nodes/v1` and so on).
    pub(crate) fn keys_of(&self, base: &str) -> Vec<String> {
        let prefix = format!("cilium/cache/{base}/");
        self.entries.keys().filter(|key| key.starts_with(&prefix)).cloned().collect()
    }

    fn sample(&self, random: &mut StdRng) -> Vec<String> {
        let mut sample = Vec::new();
        for base in BASES {
            let keys = self.keys_of(base);
            sample.extend(keys.choose_multiple(random, keys.len().div_ceil(100)).cloned());
        }
        sample
    }
}

impl MeshCluster {
    /// Returns the generator of the cluster's values.
    fn value_generator(&self) -> ValueGenerator<'_> {
        let identity_shift = 24 - (self.max_connected_clusters + 1).ilog2();
        let (nodes, identities) = (self.shape.nodes.max(1), self.shape.identities.max(1));
        ValueGenerator { cluster: &self.name, id: self.id, identity_shift, nodes, identities }
    }
}

/// Converts a key from cache form to the form of an etcd.
pub(crate) fn source_key(form: Form, cluster: &str, cache_key: &str) -> String {
    let path = cache_key.strip_prefix("cilium/cache/").expect("must be in cache form");
    match form {
        Form::Cache => cache_key.to_owned(),
        Form::State => {
            let path = path.replacen(&format!("identities/v1/{cluster}/id/"), "identities/v1/id/", 1).replacen(
                &format!("ip/v1/{cluster}/"),
                "ip/v1/default/",
                1,
            );
            format!("cilium/state/{path}")
        }
    }
}

/// Puts keys in the given order, each attached to a lease as Cilium does.
pub(crate) async fn put_leased(etcd: &Etcd, entries: impl IntoIterator<Item = (String, Vec<u8>)>) {
    let client = etcd.client().await;
    let entries: Vec<(String, Vec<u8>)> = entries.into_iter().collect();
    for leased in entries.chunks(KEYS_PER_LEASE) {
        let lease = retrying(async || client.clone().lease_grant(LEASE_TTL_S, None).await).await.id();
        for chunk in leased.chunks(KEYS_PER_TRANSACTION) {
            let options = || Some(PutOptions::new().with_lease(lease));
            let operations: Vec<TxnOp> = chunk.iter().map(|(key, value)| TxnOp::put(key.as_str(), value.clone(), options())).collect();
            retrying(async || client.clone().txn(Txn::new().and_then(operations.clone())).await).await;
        }
    }
}

/// Repeats a write while the server is not available: an etcd of several members may be without a
/// leader.
async fn retrying<T>(write: impl AsyncFn() -> Result<T, etcd_client::Error>) -> T {
    let attempt = async || match write().await {
        Err(etcd_client::Error::GRpcStatus(status)) if status.code() == tonic::Code::Unavailable => None,
        result => Some(result.unwrap()),
    };
    eventually("a write that succeeds", attempt).await
}

async fn delete_many(client: &Client, keys: impl IntoIterator<Item = String>) {
    let keys: Vec<String> = keys.into_iter().collect();
    for chunk in keys.chunks(KEYS_PER_TRANSACTION) {
        let operations: Vec<TxnOp> = chunk.iter().map(|key| TxnOp::delete(key.as_str(), None)).collect();
        retrying(async || client.clone().txn(Txn::new().and_then(operations.clone())).await).await;
    }
}

/// Puts the heartbeat, which Cilium writes once a minute.
pub(crate) async fn put_heartbeat(etcd: &Etcd) {
    put_leased(etcd, [("cilium/.heartbeat".to_owned(), b"2026-01-12T09:31:07Z".to_vec())]).await;
}

/// Returns the value of the cluster config.
pub(crate) fn config_value(form: Form, cluster: &MeshCluster) -> String {
    let cached = if form == Form::Cache { r#""cached":true,"# } else { "" };
    let (exports, slices) = if cluster.shape.exports > 0 {
        (r#","serviceExportsEnabled":true"#, r#","endpointSlicesExportMode":"services-and-endpointslices""#)
    } else {
        ("", "")
    };
    let (id, max) = (cluster.id, cluster.max_connected_clusters);
    format!(r#"{{"id":{id},"capabilities":{{"syncedCanaries":true,{cached}"maxConnectedClusters":{max}{exports}{slices}}}}}"#)
}

pub(crate) async fn put_config(etcd: &Etcd, form: Form, cluster: &MeshCluster) {
    let value = config_value(form, cluster);
    put_leased(etcd, [(format!("cilium/cluster-config/{}", cluster.name), value.into_bytes())]).await;
}

pub(crate) async fn put_entries(etcd: &Etcd, form: Form, cluster: &MeshCluster) {
    let entries = cluster.entries.iter().map(|(key, value)| (source_key(form, &cluster.name, key), value.clone()));
    put_leased(etcd, entries).await;
}

/// Puts the canaries with `stamp` as their value.
pub(crate) async fn put_canaries(etcd: &Etcd, form: Form, cluster: &MeshCluster, stamp: &str) {
    let root = if form == Form::State { "state" } else { "cache" };
    let canary = |base: &str| (format!("cilium/synced/{}/cilium/{root}/{base}", cluster.name), stamp.as_bytes().to_vec());
    put_leased(etcd, BASES.map(canary)).await;
}

/// Publishes clusters in the order of a writer that starts: configs, entries, canaries.
pub(crate) async fn publish(etcd: &Etcd, form: Form, clusters: &[MeshCluster], stamp: &str) {
    put_heartbeat(etcd).await;
    for cluster in clusters {
        put_config(etcd, form, cluster).await;
    }
    for cluster in clusters {
        put_entries(etcd, form, cluster).await;
        put_canaries(etcd, form, cluster, stamp).await;
    }
}

/// Changes a cluster's entries from one state to another: puts those that differ and deletes those
/// that are no longer there.
pub(crate) async fn rewrite(etcd: &Etcd, form: Form, before: &MeshCluster, after: &MeshCluster) {
    let name = &before.name;
    let changed = after.entries.iter().filter(|(key, value)| before.entries.get(*key) != Some(*value));
    put_leased(etcd, changed.map(|(key, value)| (source_key(form, name, key), value.clone()))).await;
    let deleted = before.entries.keys().filter(|key| !after.entries.contains_key(*key));
    delete_many(&etcd.client().await, deleted.map(|key| source_key(form, name, key))).await;
}

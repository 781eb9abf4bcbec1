//! Sources that change all the time, with values as Cilium writes them. Labels, identities,
//! namespaces, pods and sharing change, so that every change moves objects in and out of the
//! checkers' filters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use etcd_client::{Client, PutOptions, Txn, TxnOp};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::harness::etcd::Etcd;
use crate::harness::mesh::{Form, MeshCluster, Shape, publish, put_canaries, put_config, put_entries, put_heartbeat, source_key};
use crate::harness::proxy::Proxy;
use crate::harness::scene::Remote;
use crate::harness::truth::Truth;

/// Size of each cluster: 1,100 keys. All clusters together have more than the 4,096 keys that the
/// server scans at once (a snapshot has to bridge changes between scans), but few enough that every
/// key changes often.
const SHAPE: Shape = Shape { nodes: 12, identities: 60, endpoints: 1_000, services: 30, exports: 0 };

/// Number of clusters with their own etcd.
const DIRECT_CLUSTERS: u32 = 2;

/// Number of clusters in the etcd of a KVStoreMesh.
const CACHED_CLUSTERS: u32 = 2;

/// Time to live of the writers' leases, in seconds: longer than the longest run.
const LEASE_TTL_S: i64 = 86_400;

/// Number of keys that one transaction of the churn changes.
const TRANSACTION_KEYS: std::ops::RangeInclusive<usize> = 1..=120;

/// `--max-txn-ops` of the servers: more than the 1,000 changes in one transaction.
const TRANSACTION_OPERATIONS_MAX: usize = 1_200;

/// Number of different values of `flavour`.
const FLAVOURS: u32 = 5;

/// Probability that an existing key is deleted instead of changed. When a deleted key is picked, it
/// is created again.
const DELETE_CHANCE: f64 = 0.12;

/// Values of the fields of a key that vary.
#[derive(Debug, Clone, Copy, Default)]
struct VaryingFields {
    flavour: u32,
    serial: u32,
    backend: u32,
}

/// One etcd and its writer.
struct Source {
    remote: Remote,
    client: Client,
    lease: i64,
    varying_fields: HashMap<String, VaryingFields>,
    /// Values of every key without the varying fields, by cluster.
    templates: Vec<BTreeMap<String, Vec<u8>>>,
}

/// All sources of a run.
pub(super) struct Sources {
    sources: Vec<Source>,
    random: StdRng,
    stamp: u32,
    /// Number of puts and deletes written so far.
    pub(super) written: u64,
}

impl Source {
    async fn start(binary: &Path, form: Form, clusters: Vec<MeshCluster>) -> Self {
        let etcd = Etcd::builder().binary(binary).flag(&format!("--max-txn-ops={TRANSACTION_OPERATIONS_MAX}")).start().await;
        publish(&etcd, form, &clusters, "2026-01-12T09:31:07Z").await;
        let proxy = Proxy::to(etcd.port()).await;
        let templates = clusters.iter().map(|cluster| cluster.entries.clone()).collect();
        let (client, lease) = connect(&etcd).await;
        Self { remote: Remote { etcd, form, clusters, proxy }, client, lease, varying_fields: HashMap::new(), templates }
    }

    /// Changes `count` different keys of a cluster in one transaction.
    async fn change(&mut self, cluster: usize, count: usize, random: &mut StdRng) {
        let templates = &self.templates[cluster];
        let target = &mut self.remote.clusters[cluster];
        let keys: Vec<&String> = templates.keys().collect();
        let picked: HashSet<&&String> = keys.choose_multiple(random, count).collect();
        let mut operations = Vec::with_capacity(count);
        for key in picked {
            let key_at_source = source_key(self.remote.form, &target.name, key);
            if target.entries.contains_key(*key) && random.random_bool(DELETE_CHANCE) {
                target.entries.remove(*key);
                operations.push(TxnOp::delete(key_at_source, None));
                continue;
            }
            let fields = self.varying_fields.entry((*key).clone()).or_default();
            fields.change(key, random);
            let value = fields.apply_to(key, &templates[*key], target.id);
            target.entries.insert((*key).clone(), value.clone());
            operations.push(TxnOp::put(key_at_source, value, Some(PutOptions::new().with_lease(self.lease))));
        }
        self.client.txn(Txn::new().and_then(operations)).await.unwrap();
    }

    async fn reconnect(&mut self) {
        (self.client, self.lease) = connect(&self.remote.etcd).await;
    }
}

async fn connect(etcd: &Etcd) -> (Client, i64) {
    let mut client = etcd.client().await;
    let lease = client.lease_grant(LEASE_TTL_S, None).await.unwrap().id();
    (client, lease)
}

impl Sources {
    /// Starts the etcds and publishes everything.
    pub(super) async fn start(binary: &Path, seed: u64) -> Self {
        let cluster = |id| MeshCluster::generate(id, SHAPE);
        let mut sources = Vec::new();
        for id in 1..=DIRECT_CLUSTERS {
            sources.push(Source::start(binary, Form::State, vec![cluster(id)]).await);
        }
        sources.push(
            Source::start(binary, Form::Cache, (DIRECT_CLUSTERS + 1..=DIRECT_CLUSTERS + CACHED_CLUSTERS).map(cluster).collect()).await,
        );
        Self { sources, random: StdRng::seed_from_u64(seed), stamp: 0, written: 0 }
    }

    /// Returns every cluster's name and client file.
    pub(super) fn client_files(&self) -> Vec<(String, String)> {
        let files = self.sources.iter().map(|source| (&source.remote, source.remote.client_file()));
        files.flat_map(|(remote, file)| remote.clusters.iter().map(move |cluster| (cluster.name.clone(), file.clone()))).collect()
    }

    /// Returns the state that should be served.
    pub(super) fn truth(&self) -> Truth {
        Truth::from_clusters(self.sources.iter().flat_map(|source| &source.remote.clusters))
    }

    /// Returns the number of etcds.
    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    pub(super) fn remote(&mut self, index: usize) -> &mut Remote {
        &mut self.sources[index].remote
    }

    /// Changes some keys of a random cluster in one transaction.
    async fn transaction(&mut self, source: usize, count: usize) {
        let cluster = self.random.random_range(0..self.sources[source].remote.clusters.len());
        self.sources[source].change(cluster, count, &mut self.random).await;
        self.written += count as u64;
    }

    /// Changes at least `count` keys of all sources.
    pub(super) async fn churn(&mut self, count: u64) {
        let until = self.written + count;
        while self.written < until {
            let source = self.random.random_range(0..self.sources.len());
            let keys = self.random.random_range(TRANSACTION_KEYS);
            self.transaction(source, keys).await;
        }
    }

    /// Changes at least `count` keys of one source.
    pub(super) async fn churn_one(&mut self, source: usize, count: u64) {
        let until = self.written + count;
        while self.written < until {
            let keys = self.random.random_range(TRANSACTION_KEYS);
            self.transaction(source, keys).await;
        }
    }

    pub(super) async fn change_a_thousand_keys(&mut self) {
        let source = self.random.random_range(0..self.sources.len());
        self.transaction(source, 1_000).await;
    }

    /// Puts new endpoints into the first source and returns their keys.
    pub(super) async fn put_fresh(&mut self, count: u32) -> Vec<String> {
        let Source { remote, client, lease, .. } = &mut self.sources[0];
        let cluster = &mut remote.clusters[0];
        let before: HashSet<String> = cluster.entries.keys().cloned().collect();
        cluster.add_endpoints(count);
        let fresh: Vec<String> = cluster.entries.keys().filter(|key| !before.contains(*key)).cloned().collect();
        let put = |key: &String| {
            let options = PutOptions::new().with_lease(*lease);
            TxnOp::put(source_key(remote.form, &cluster.name, key), cluster.entries[key].clone(), Some(options))
        };
        client.txn(Txn::new().and_then(fresh.iter().map(put).collect::<Vec<_>>())).await.unwrap();
        self.written += u64::from(count);
        fresh
    }

    /// Deletes these keys of the first source.
    pub(super) async fn delete(&mut self, keys: &[String]) {
        let Source { remote, client, .. } = &mut self.sources[0];
        let cluster = &mut remote.clusters[0];
        let operations: Vec<TxnOp> = keys.iter().map(|key| TxnOp::delete(source_key(remote.form, &cluster.name, key), None)).collect();
        keys.iter().for_each(|key| cluster.entries.remove(key).map(drop).expect("must be there"));
        client.txn(Txn::new().and_then(operations)).await.unwrap();
        self.written += keys.len() as u64;
    }

    /// Restarts an etcd, after a shutdown or a kill.
    pub(super) async fn restart(&mut self, index: usize, kill: bool) {
        let source = &mut self.sources[index];
        if kill {
            source.remote.etcd.kill();
        }
        source.remote.etcd.restart().await;
        source.reconnect().await;
    }

    /// Wipes an etcd, changes some of its former keys, and publishes everything again.
    pub(super) async fn wipe(&mut self, index: usize) {
        self.stamp += 1;
        let stamp = format!("2026-01-13T{:02}:{:02}:{:02}Z", self.stamp / 3600, self.stamp / 60 % 60, self.stamp % 60);
        let source = &mut self.sources[index];
        source.remote.etcd.wipe();
        source.remote.etcd.restart().await;
        for (cluster, templates) in source.remote.clusters.iter_mut().zip(&source.templates) {
            for (key, template) in templates {
                match self.random.random_range(0..10_u32) {
                    0 => drop(cluster.entries.remove(key)),
                    1 | 2 => {
                        let fields = source.varying_fields.entry(key.clone()).or_default();
                        fields.change(key, &mut self.random);
                        cluster.entries.insert(key.clone(), fields.apply_to(key, template, cluster.id));
                    }
                    _ => {}
                }
            }
        }
        let Remote { etcd, form, clusters, .. } = &source.remote;
        put_heartbeat(etcd).await;
        for cluster in clusters {
            put_config(etcd, *form, cluster).await;
            put_entries(etcd, *form, cluster).await;
            put_canaries(etcd, *form, cluster, &stamp).await;
        }
        source.reconnect().await;
    }

    /// Compacts the history of an etcd, so that a watch cannot be resumed.
    pub(super) async fn compact(&mut self, index: usize) {
        let etcd = &self.sources[index].remote.etcd;
        let revision = etcd.put("unrelated", "1").await;
        etcd.compact(revision).await;
    }
}

impl VaryingFields {
    fn change(&mut self, key: &str, random: &mut StdRng) {
        // the stream sends a patch if only the backends of a service change
        if key.contains("/services/") && random.random_bool(0.5) {
            self.backend += 1;
            return;
        }
        self.flavour = random.random_range(0..FLAVOURS);
        self.serial += 1;
    }

    /// Returns the value of the template with these fields.
    fn apply_to(self, key: &str, template: &[u8], cluster_id: u32) -> Vec<u8> {
        let text = std::str::from_utf8(template).expect("must be text: the mesh writes nothing else");
        let Self { flavour, serial, backend } = self;
        let labels = format!(r#""flavour":"f{flavour}","serial":"{serial}","#);
        let text = match key.split('/').nth(2) {
            Some("nodes") => replace_after(text, r#""Labels":{"#, 0, &labels),
            Some("identities") => format!("{text}k8s:flavour=f{flavour};k8s:serial={serial};"),
            Some("services") => {
                let shared = flavour % 2 == 0;
                let text = replace_after(text, r#""labels":{"#, 0, &labels);
                let text = text.replace(r#""shared":true"#, r#""shared":?"#).replace(r#""shared":false"#, r#""shared":?"#);
                let text = text.replace(r#""shared":?"#, &format!(r#""shared":{shared}"#));
                let new = format!(
                    r#""10.{cluster_id}.9.{}":{{"http":{{"Protocol":"TCP","Port":{}}}}},"#,
                    backend % 7 + 1,
                    1_000 + backend % 1_000
                );
                replace_after(&text, r#""backends":{"#, 0, &new)
            }
            _ => {
                let identity = (cluster_id << 16) | (256 + flavour);
                let text = replace_after(text, r#""ID":"#, count_digits_after(text, r#""ID":"#), &identity.to_string());
                let text = replace_string_after(&text, r#""K8sNamespace":""#, &format!("ns-{flavour}"));
                let text = replace_string_after(&text, r#""K8sPodName":""#, &format!("pod-{flavour}"));
                replace_string_after(&text, r#""HostIP":""#, &format!("172.19.{}.{}", serial / 250 % 250, serial % 250 + 1))
            }
        };
        text.into_bytes()
    }
}

/// Replaces the `replaced` bytes after the first occurrence of a mark. Returns the text unchanged
/// if it lacks the mark.
fn replace_after(text: &str, mark: &str, replaced: usize, new: &str) -> String {
    let Some(start) = text.find(mark).map(|start| start + mark.len()) else { return text.to_owned() };
    format!("{}{new}{}", &text[..start], &text[start + replaced..])
}

/// Replaces the string after a mark, up to its closing quote.
fn replace_string_after(text: &str, mark: &str, new: &str) -> String {
    let length = text.find(mark).and_then(|start| text[start + mark.len()..].find('"')).unwrap_or(0);
    replace_after(text, mark, length, new)
}

/// Returns the number of digits after a mark.
fn count_digits_after(text: &str, mark: &str) -> usize {
    text.find(mark).map_or(0, |start| text[start + mark.len()..].bytes().take_while(u8::is_ascii_digit).count())
}

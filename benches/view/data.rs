//! A generated mesh of a million keys in Cilium's form, some 316 MB: 900k ipcache entries, 50k
//! nodes, 40k identities and 10k services of 255 clusters. It is generated cluster by cluster, so
//! that the generation leaves no memory behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use meshkeep::internals::model::{
    Change, ClusterId, ClusterName, Command, EntryKey, IpEntry, Kind, LeaseId, MaxConnectedClusters, Object, Record, Revision, Scope,
    Sequence, SourceStamp,
};
use meshkeep::internals::view::derive_entries;
use meshkeep::internals::wire::{self, Context};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) use crate::processes::sized;

/// Returns the number of clusters: 255, or 3 in a small run.
pub(crate) fn clusters() -> u32 {
    sized(255, 3)
}

pub(crate) const IPS: u32 = 3_529;
const NODES: u32 = 196;
pub(crate) const IDENTITIES: u32 = 157;
const SERVICES: u32 = 39;

/// Factor for the size of each cluster, for sets with more than a million keys.
pub(crate) static SCALE: AtomicU32 = AtomicU32::new(1);

const REPLICA_SETS: [&str; 5] = ["cart", "checkout", "web", "payments-api", "search"];

pub(crate) fn cluster(number: u32) -> ClusterName {
    ClusterName::parse(&format!("cluster-{number}")).expect("must be a name")
}

pub(crate) fn letters(random: &mut StdRng, count: usize) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..count).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect()
}

/// Returns the address of an ipcache entry.
pub(crate) fn address(cluster: u32, index: u32) -> std::net::Ipv4Addr {
    std::net::Ipv4Addr::from((10 << 24) | (cluster << 16) | ((index / 250) << 8) | (index % 250 + 1))
}

/// Returns the value of an ipcache entry with the pod `pod`.
pub(crate) fn ip_value(cluster: u32, index: u32, pod: &str) -> String {
    let (ip, id) = (address(cluster, index), (cluster << 16) + 256 + (index * 7 + index / 13) % IDENTITIES);
    let (host, namespace) = (index / 20 % NODES % 250 + 1, index * 31 % 40);
    format!(
        r#"{{"IP":"{ip}","Mask":null,"HostIP":"172.{}.{}.{host}","ID":{id},"Key":0,"Metadata":"","K8sNamespace":"team-{namespace}","K8sPodName":"{pod}","NamedPorts":[{{"Name":"http","Port":8080,"Protocol":"TCP"}}]}}"#,
        16 + cluster / 250,
        cluster % 250
    )
}

fn node_value(random: &mut StdRng, cluster: u32, index: u32, name: &str) -> String {
    let (b, d) = (index / 250, index % 250 + 1);
    let key = format!("{}{}=", letters(random, 21), letters(random, 22));
    let boot = format!("{:08x}-{:04x}-4{:03x}-8000-{:012x}", random.random::<u32>(), random.random::<u16>(), 7, random.random::<u32>());
    let size = index % 3 * 2 + 2;
    format!(
        concat!(
            r#"{{"Name":"{name}","Cluster":"cluster-{c}","IPAddresses":[{{"Type":"InternalIP","IP":"172.{h}.{l}.{d}"}},"#,
            r#"{{"Type":"CiliumInternalIP","IP":"10.{c}.{b}.{d}"}},{{"Type":"CiliumInternalIP","IP":"fd00:10:{c:x}:{i:x}::e2d6"}}],"#,
            r#""IPv4AllocCIDR":{{"IP":"10.{c}.{d}.0","Mask":"////AA=="}},"IPv4SecondaryAllocCIDRs":null,"#,
            r#""IPv6AllocCIDR":{{"IP":"fd00:10:{c:x}:{i:x}::","Mask":"//////////8AAAAAAAAAAA=="}},"IPv6SecondaryAllocCIDRs":null,"#,
            r#""IPv4HealthIP":"10.{c}.{d}.134","IPv6HealthIP":"fd00:10:{c:x}:{i:x}::d812","IPv4IngressIP":"","IPv6IngressIP":"","#,
            r#""ClusterID":{c},"Source":"custom-resource","EncryptionKey":0,"Labels":{{"beta.kubernetes.io/arch":"amd64","#,
            r#""beta.kubernetes.io/instance-type":"m5.{s}xlarge","failure-domain.beta.kubernetes.io/region":"eu-west-1","#,
            r#""kubernetes.io/arch":"amd64","kubernetes.io/hostname":"{name}","kubernetes.io/os":"linux","#,
            r#""node.kubernetes.io/instance-type":"m5.{s}xlarge","topology.kubernetes.io/region":"eu-west-1","#,
            r#""topology.kubernetes.io/zone":"eu-west-1{z}"}},"Annotations":{{"network.cilium.io/wg-pub-key":"{key}"}},"#,
            r#""WireguardPubKey":"{key}","BootID":"{boot}"}}"#
        ),
        name = name,
        c = cluster,
        // another network for every 250 nodes
        h = 16 + cluster / 250 + index / 250 * 2,
        l = cluster % 250,
        b = b,
        d = d,
        i = index,
        s = size,
        z = ["a", "b", "c"][index as usize % 3],
        key = key,
        boot = boot
    )
}

fn service_value(random: &mut StdRng, cluster: u32, index: u32, name: &str) -> String {
    let backend =
        |b: u32| format!(r#""10.{cluster}.{}.{}":{{"http":{{"Protocol":"TCP","Port":8080}}}}"#, index % 14, b * 7 + index % 7 + 1);
    let backends: Vec<String> = (0..random.random_range(1..9)).map(backend).collect();
    format!(
        r#"{{"cluster":"cluster-{cluster}","namespace":"team-{}","name":"{name}","frontends":{{"10.200.0.{}":{{"http":{{"Protocol":"TCP","Port":80}}}}}},"backends":{{{}}},"labels":{{}},"selector":{{"app":"{name}"}},"includeExternal":true,"shared":true,"clusterID":{cluster}}}"#,
        index % 40,
        index,
        backends.join(",")
    )
}

/// Returns the keys and values of one kind of one cluster, in key order.
pub(crate) fn values(kind: Kind, number: u32) -> Vec<(EntryKey, String)> {
    let mut random = StdRng::seed_from_u64(u64::from(number) * 4 + kind as u64);
    let sets: Vec<String> =
        (0..IPS / 4).map(|i| format!("{}-{}-{}", REPLICA_SETS[i as usize % 5], i % 97, letters(&mut random, 9))).collect();
    let entry = |index: u32| match kind {
        Kind::EndpointSlice | Kind::NodeIp | Kind::ServiceExport | Kind::Cluster | Kind::Problem | Kind::Notice => {
            (index.to_string(), String::new())
        }
        Kind::Ip => {
            let pod = format!("{}-{}", sets[random.random_range(0..sets.len())], letters(&mut random, 5));
            (address(number, index).to_string(), ip_value(number, index, &pod))
        }
        Kind::Node => {
            let name = format!("ip-10-{number}-{}-{}.eu-west-1.compute.internal", index / 250, index % 250);
            let value = node_value(&mut random, number, index, &name);
            (name, value)
        }
        Kind::Identity => {
            let (app, namespace) = (&sets[index as usize % sets.len()], index % 40);
            let value = format!(
                "k8s:app={app};k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=team-{namespace};k8s:io.cilium.k8s.policy.cluster=cluster-{number};k8s:io.cilium.k8s.policy.serviceaccount=default;k8s:io.kubernetes.pod.namespace=team-{namespace};"
            );
            (((number << 16) + 256 + index).to_string(), value)
        }
        Kind::Service => {
            let name = format!("svc-{}-{index}", letters(&mut random, 4));
            (format!("team-{}/{name}", index % 40), service_value(&mut random, number, index, &name))
        }
    };
    let count = match kind {
        Kind::Identity => IDENTITIES,
        Kind::Ip => IPS,
        Kind::Node => NODES,
        Kind::Service => SERVICES,
        Kind::EndpointSlice | Kind::NodeIp | Kind::ServiceExport | Kind::Cluster | Kind::Problem | Kind::Notice => 0,
    };
    let count = count * SCALE.load(Ordering::Relaxed);
    let entries = (0..count).map(entry).map(|(name, value)| (EntryKey::new(kind, cluster(number), name), value));
    let mut entries: Vec<(EntryKey, String)> = entries.collect();
    entries.sort();
    entries
}

pub(crate) fn decode(key: &EntryKey, value: &[u8]) -> Arc<Object> {
    let context = Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::Clusters255 };
    Arc::new(wire::decode(key, value, &context).expect("must be a value that agents accept"))
}

/// Returns the records of one kind of one cluster. Sequences and revisions are spread over those of
/// a million changes.
pub(crate) fn records(kind: Kind, number: u32) -> Vec<Record> {
    let mut random = StdRng::seed_from_u64(u64::from(number));
    let record = |(key, value): (EntryKey, String)| {
        let sequence = Sequence(random.random_range(1..1_000_000));
        Record {
            object: Some(decode(&key, value.as_bytes())),
            key,
            value: value.into_bytes().into(),
            good_value: None,
            rejection: None,
            source: SourceStamp {
                mod_revision: Revision(random.random_range(1_000_000..3_000_000)),
                lease: LeaseId(0x7fff_1234_5678 + random.random_range(0..4)),
                held: false,
            },
            create_sequence: sequence,
            last_sequence: sequence,
            version: 1,
            generation: 0,
        }
    };
    values(kind, number).into_iter().map(record).collect()
}

/// Returns the entries that are derived from a node.
pub(crate) fn derived(record: &Record) -> Vec<Record> {
    let Some(Object::Node(node)) = record.object.as_deref() else { return Vec::new() };
    let to_record = |entry: IpEntry| Record {
        key: EntryKey::of_node_ip(&record.key, entry.prefix),
        value: wire::derived_value(&entry).into(),
        object: Some(Arc::new(Object::Ip(entry))),
        source: SourceStamp { mod_revision: record.source.mod_revision, ..SourceStamp::default() },
        ..record.clone()
    };
    derive_entries(node).into_iter().map(to_record).collect()
}

/// Returns the numbers of the first `count` clusters in key order.
pub(crate) fn clusters_in_key_order(count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (1..=count).collect();
    numbers.sort_by_key(|number| EntryKey::new(Kind::Ip, cluster(*number), "x"));
    numbers
}

/// Returns a change of a random ipcache entry of the first `clusters` clusters: another pod gets
/// the address.
pub(crate) fn change(random: &mut StdRng, revision: i64, clusters: u32) -> Command {
    let (number, index) = (random.random_range(1..=clusters), random.random_range(0..IPS * SCALE.load(Ordering::Relaxed)));
    let key = EntryKey::new(Kind::Ip, cluster(number), address(number, index).to_string());
    let value = ip_value(number, index, &format!("cart-7-{}-{}", letters(random, 9), letters(random, 5))).into_bytes();
    let decoded = Ok(decode(&key, &value));
    let source = SourceStamp { mod_revision: Revision(revision), lease: LeaseId(7), held: false };
    let scope = Scope { cluster: key.cluster.clone(), kind: Kind::Ip };
    Command::Apply { scope, changes: vec![Change::Put { key, value: value.into(), decoded, source }], cursor: None }
}

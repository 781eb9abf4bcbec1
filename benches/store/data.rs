//! Entries in Cilium's form. Nine in ten are ipcache entries, as in docs/develop/measurements.md
//! §1.

use std::sync::Arc;

use meshkeep::internals::model::{ClusterName, EntryKey, Kind, LeaseId, Record, Revision, Sequence, SourceStamp};

/// Number of clusters that have entries.
pub(super) const CLUSTER_COUNT: u64 = 250;

/// Returns the key of an entry. Of 100 keys, one is a service, four are identities, five nodes and
/// 90 addresses.
pub(super) fn key(number: u64) -> EntryKey {
    let (cluster, within) = (number % CLUSTER_COUNT, number / CLUSTER_COUNT);
    let cluster = ClusterName::parse(&format!("cluster-{cluster:03}")).expect("a good name");
    let (kind, name) = match within % 100 {
        0 => (Kind::Service, format!("namespace-{}/service-{within}", within % 17)),
        1..=4 => (Kind::Identity, ((number % CLUSTER_COUNT + 1) << 16 | (256 + within)).to_string()),
        5..=9 => (Kind::Node, format!("ip-10-{}-{}.eu-central-1.compute.internal", within / 250, within % 250)),
        _ => (Kind::Ip, address(number)),
    };
    EntryKey::new(kind, cluster, name)
}

fn address(number: u64) -> String {
    format!("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255)
}

/// Returns the value of an entry in its `version`th state.
pub(super) fn value(key: &EntryKey, number: u64, version: u64) -> String {
    let mixed = mix(number ^ version << 40);
    match key.kind {
        Kind::Ip => format!(
            r#"{{"IP":"{}","Mask":null,"HostIP":"172.{}.{}.{}","ID":{},"Key":255,"Metadata":"cilium-global:{}:{}:{}","K8sNamespace":"namespace-{}","K8sPodName":"workload-{}-{:08x}-{:05x}","K8sServiceAccount":"default"}}"#,
            key.name,
            16 + mixed % 16,
            mixed >> 8 & 255,
            mixed >> 16 & 255,
            65_536 + mixed % 40_000,
            key.cluster,
            number % 97,
            number % 31,
            number % 17,
            number % 211,
            mixed >> 24 & 0xffff_ffff,
            mixed & 0xf_ffff
        ),
        Kind::Identity => format!(
            "k8s:app=workload-{};k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=namespace-{};k8s:io.cilium.k8s.policy.cluster={};k8s:io.cilium.k8s.policy.serviceaccount=default;k8s:io.kubernetes.pod.namespace=namespace-{};k8s:version=v{version};",
            number % 211,
            number % 17,
            key.cluster,
            number % 17
        ),
        Kind::Node => format!(
            r#"{{"Name":"{}","Cluster":"{}","IPAddresses":[{{"Type":"InternalIP","IP":"172.16.{}.{}"}},{{"Type":"CiliumInternalIP","IP":"10.{}.{}.1"}}],"IPv4AllocCIDR":{{"IP":"10.{}.{}.0","Mask":"////AA=="}},"IPv4SecondaryAllocCIDRs":null,"IPv6AllocCIDR":null,"IPv6SecondaryAllocCIDRs":null,"IPv4HealthIP":"10.{}.{}.2","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":{},"Source":"local","EncryptionKey":0,"Labels":{{"beta.kubernetes.io/arch":"amd64","beta.kubernetes.io/os":"linux","kubernetes.io/arch":"amd64","kubernetes.io/hostname":"{}","kubernetes.io/os":"linux","node.kubernetes.io/instance-type":"m6i.4xlarge","topology.kubernetes.io/region":"eu-central-1","topology.kubernetes.io/zone":"eu-central-1{}","eks.amazonaws.com/nodegroup":"workers-{}"}},"Annotations":{{"network.cilium.io/wg-pub-key":"{:016x}{:016x}"}},"NodeIdentity":0,"WireguardPubKey":"{:016x}{:016x}","BootID":"{:08x}-{:04x}-4a4d-9c1b-{:012x}"}}"#,
            key.name,
            key.cluster,
            mixed & 255,
            mixed >> 8 & 255,
            number >> 8 & 255,
            number & 255,
            number >> 8 & 255,
            number & 255,
            number >> 8 & 255,
            number & 255,
            number % CLUSTER_COUNT + 1,
            key.name,
            char::from(b'a' + u8::try_from(number % 3).unwrap_or(0)),
            number % 5,
            mix(mixed),
            mix(mixed + 1),
            mix(mixed + 2),
            mix(mixed + 3),
            mixed & 0xffff_ffff,
            mixed >> 32 & 0xffff,
            mixed >> 16
        ),
        Kind::EndpointSlice | Kind::NodeIp | Kind::ServiceExport | Kind::Cluster | Kind::Problem | Kind::Notice => String::new(),
        Kind::Service => format!(
            r#"{{"cluster":"{}","namespace":"namespace-{}","name":"service-{}","frontends":{{"10.96.{}.{}":{{"http":{{"protocol":"TCP","port":80}}}}}},"backends":{{"10.{}.{}.{}":{{"http":{{"protocol":"TCP","port":8080}}}},"10.{}.{}.{}":{{"http":{{"protocol":"TCP","port":8080}}}}}},"labels":{{}},"selector":{{"app":"workload-{}"}},"clusterID":{},"includeExternal":false,"shared":true}}"#,
            key.cluster,
            number % 17,
            number,
            number >> 8 & 255,
            number & 255,
            mixed & 255,
            mixed >> 8 & 255,
            mixed >> 16 & 255,
            mixed >> 24 & 255,
            mixed >> 32 & 255,
            mixed >> 40 & 255,
            number % 211,
            number % CLUSTER_COUNT + 1
        ),
    }
}

/// Returns the record of an entry in its `version`th state, announced at `sequence`.
pub(super) fn record(number: u64, version: u64, sequence: u64) -> Record {
    let key = key(number);
    let value = value(&key, number, version);
    Record {
        value: value.into_bytes().into(),
        key,
        good_value: None,
        object: None,
        rejection: None,
        source: SourceStamp {
            mod_revision: Revision(i64::try_from(1_000 + sequence).unwrap_or(0)),
            lease: LeaseId(0x1234_5678_9abc),
            held: false,
        },
        create_sequence: Sequence(number + 1),
        last_sequence: Sequence(sequence),
        version,
        generation: 0,
    }
}

/// Returns a shared [`record`].
pub(super) fn shared(number: u64, version: u64, sequence: u64) -> Arc<Record> {
    Arc::new(record(number, version, sequence))
}

/// Mixes the bits of a number (splitmix64).
pub(super) fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

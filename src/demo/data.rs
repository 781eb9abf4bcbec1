//! Contents of the simulated clusters, as Cilium's agents would write them.

use std::net::Ipv4Addr;

use crate::model::Kind;

/// Number of pods per node, as in small clusters.
const PODS_PER_NODE: u32 = 50;

/// Namespace and name of the apps that pods belong to. Each app is a service and an identity.
const APPS: [(&str, &str); 6] =
    [("shop", "cart"), ("shop", "checkout"), ("shop", "catalog"), ("mail", "smtp"), ("db", "postgres"), ("web", "front")];

/// First identity of a cluster within its range: those below 256 are reserved.
const FIRST_IDENTITY: u32 = 256;

/// Kind, name and value of an entry.
pub(super) type SimulatedEntry = (Kind, String, Vec<u8>);

/// Returns the address of a pod.
pub(super) fn address(cluster_id: u32, pod: u32) -> Ipv4Addr {
    let [_, _, high, low] = (pod + 10).to_be_bytes();
    let [_, _, _, cluster] = cluster_id.to_be_bytes();
    Ipv4Addr::new(10, cluster, high, low)
}

fn node_address(cluster_id: u32, node: u32) -> Ipv4Addr {
    let [_, _, _, cluster] = cluster_id.to_be_bytes();
    let [_, _, high, low] = (node + 2).to_be_bytes();
    Ipv4Addr::new(172, 16 + cluster, high, low)
}

fn identity(cluster_id: u32, app: usize) -> u32 {
    (cluster_id << 16) + FIRST_IDENTITY + u32::try_from(app).unwrap_or_default()
}

/// Returns a pod's entry. A different version is a different pod of the same app, with the same
/// address.
pub(super) fn pod(cluster_id: u32, pod: u32, version: u32) -> SimulatedEntry {
    let app = pod as usize % APPS.len();
    let ((namespace, name), ip) = (APPS[app], address(cluster_id, pod));
    let (host, id) = (node_address(cluster_id, pod / PODS_PER_NODE), identity(cluster_id, app));
    let value = format!(
        r#"{{"IP":"{ip}","Mask":null,"HostIP":"{host}","ID":{id},"Key":0,"Metadata":"","K8sNamespace":"{namespace}","K8sPodName":"{name}-{version:05x}-{pod:05x}","K8sServiceAccount":"{name}"}}"#
    );
    (Kind::Ip, ip.to_string(), value.into_bytes())
}

/// Returns all entries of a cluster except its pods.
pub(super) fn fixed_entries(cluster: &str, cluster_id: u32, pods: u32) -> Vec<SimulatedEntry> {
    let nodes = (0..pods.div_ceil(PODS_PER_NODE).max(1)).map(|number| {
        let (name, ip) = (format!("{cluster}-worker-{number}"), node_address(cluster_id, number));
        let value = format!(
            r#"{{"Name":"{name}","Cluster":"{cluster}","IPAddresses":[{{"Type":"InternalIP","IP":"{ip}"}}],"IPv4AllocCIDR":null,"ClusterID":{cluster_id},"Source":"custom-resource","EncryptionKey":0,"Labels":{{"kubernetes.io/hostname":"{name}"}},"Annotations":null}}"#
        );
        (Kind::Node, name, value.into_bytes())
    });
    let identities = APPS.iter().enumerate().map(|(app, (namespace, name))| {
        let labels = format!("k8s:app={name};k8s:io.cilium.k8s.policy.cluster={cluster};k8s:io.kubernetes.pod.namespace={namespace};");
        (Kind::Identity, identity(cluster_id, app).to_string(), labels.into_bytes())
    });
    let services = APPS.iter().enumerate().map(|(app, (namespace, name))| {
        let pods = (0..pods).filter(|pod| *pod as usize % APPS.len() == app).take(8);
        let port = r#"{"http":{"Protocol":"TCP","Port":8080}}"#;
        let backends: Vec<String> = pods.map(|pod| format!(r#""{}":{port}"#, address(cluster_id, pod))).collect();
        let value = format!(
            r#"{{"cluster":"{cluster}","namespace":"{namespace}","name":"{name}","frontends":{{"10.96.{cluster_id}.{}":{port}}},"backends":{{{}}},"labels":{{"app":"{name}"}},"selector":{{"app":"{name}"}},"includeExternal":true,"shared":true,"clusterID":{cluster_id}}}"#,
            app + 10,
            backends.join(",")
        );
        (Kind::Service, format!("{namespace}/{name}"), value.into_bytes())
    });
    nodes.chain(identities).chain(services).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterId, ClusterName, EntryKey, MaxConnectedClusters};
    use crate::wire::{Context, decode};

    #[test]
    fn agents_accept_every_entry() {
        let cluster = ClusterName::parse("paris").unwrap();
        let context = Context { cluster: &cluster, cluster_id: ClusterId(1), max_connected_clusters: MaxConnectedClusters::default() };
        let entries = fixed_entries("paris", 1, 120).into_iter().chain((0..120).map(|number| pod(1, number, 7)));
        for (kind, name, value) in entries {
            let decoded = decode(&EntryKey::new(kind, cluster.clone(), name.as_str()), &value, &context);
            assert!(decoded.is_ok(), "{kind} {name}: {decoded:?}");
        }
    }
}

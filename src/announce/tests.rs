//! Tests of the plan by whole values, and of errors in files by file, line and reason.

use std::collections::BTreeMap;
use std::fs;

use tempfile::TempDir;

use super::files::read_files;
use super::plan::{ClusterPlan, Resource};
use crate::model::{ClusterId, ClusterName, EntryKey, Kind};
use crate::wire::{Context, decode};
use cilium_kvstore::allocator::AllocatorKey;

/// Example of docs/operate/announce.md, with a second address family and a second workload with the
/// same labels.
const EXAMPLE: &str = "cluster: {name: vms, id: 77}
nodes:
- name: rack1-host7
  addresses: [{type: InternalIP, ip: 192.168.7.7}, {type: InternalIP, ip: 'fd00::7'}]
  podCIDRs: [192.168.7.16/28, 'fd00:7::/64', 192.168.8.0/24]
workloads:
- namespace: legacy
  name: billing-db
  labels: {app: billing-db}
  serviceAccount: billing
  ips: [192.168.7.20, 'fd00:7:0::20']
  node: rack1-host7
- namespace: legacy
  name: billing-db-2
  labels: {'k8s:app': billing-db}
  serviceAccount: billing
  ips: [192.168.7.21]
- namespace: legacy
  name: printer
  labels: {'vm:app': printer}
  ips: [192.168.9.1]
services:
- namespace: shop
  name: billing-db
  ports: [{name: pg, protocol: TCP, port: 5432}]
  frontends: [10.96.7.20]
  backends: {labels: {app: billing-db}}
- namespace: shop
  name: printers
  ports: [{port: 9100}]
  backends: {ips: [192.168.9.1]}
  shared: false
";

/// Reads files with these texts, named `0.yaml` and so on. Errors have the form `<file>:<line>: …`.
fn read(texts: &[&str]) -> Result<ClusterPlan, Vec<String>> {
    let temp_dir = TempDir::new().unwrap();
    let paths: Vec<_> = (0..texts.len()).map(|number| temp_dir.path().join(format!("{number}.yaml"))).collect();
    for (path, text) in paths.iter().zip(texts) {
        fs::write(path, text).unwrap();
    }
    let directory = format!("{}/", temp_dir.path().display());
    read_files(&paths).map_err(|errors| errors.iter().map(|error| error.to_string().replace(&directory, "")).collect())
}

const BILLING: &str = "k8s:app=billing-db;k8s:io.cilium.k8s.policy.cluster=vms;k8s:io.cilium.k8s.policy.serviceaccount=billing;\
                       k8s:io.kubernetes.pod.namespace=legacy;";
const PRINTER: &str = "vm:app=printer;k8s:io.cilium.k8s.policy.cluster=vms;k8s:io.kubernetes.pod.namespace=legacy;";

fn numbers() -> BTreeMap<AllocatorKey, u32> {
    [(AllocatorKey::from_text(BILLING), 5_046_273), (AllocatorKey::from_text(PRINTER), 5_046_274)].into()
}

#[test]
fn the_example_is_published_as_the_protocol_describes() {
    let plan = read(&[EXAMPLE]).unwrap();
    let all: Vec<(String, String)> = Resource::ALL
        .into_iter()
        .flat_map(|resource| plan.keys(resource, &numbers()))
        .map(|(key, value)| (key, String::from_utf8(value).unwrap()))
        .collect();
    let ip = |ip: &str, host: &str, id: u32, rest: &str| {
        let value =
            format!(r#"{{"IP":"{ip}","Mask":null,"HostIP":"{host}","ID":{id},"Key":0,"Metadata":"","K8sNamespace":"legacy",{rest}}}"#);
        (format!("cilium/state/ip/v1/default/{ip}"), value)
    };
    let billing = |name: &str| format!(r#""K8sPodName":"{name}","K8sServiceAccount":"billing""#);
    let expected = [
        (
            "cilium/state/nodes/v1/vms/rack1-host7".to_owned(),
            [
                r#"{"Name":"rack1-host7","Cluster":"vms","IPAddresses":[{"Type":"InternalIP","IP":"192.168.7.7"},{"Type":"InternalIP","IP":"fd00::7"}],"#,
                r#""IPv4AllocCIDR":{"IP":"192.168.7.16","Mask":"////8A=="},"IPv4SecondaryAllocCIDRs":[{"IP":"192.168.8.0","Mask":"////AA=="}],"#,
                r#""IPv6AllocCIDR":{"IP":"fd00:7::","Mask":"//////////8AAAAAAAAAAA=="},"IPv6SecondaryAllocCIDRs":null,"#,
                r#""IPv4HealthIP":"","IPv6HealthIP":"","IPv4IngressIP":"","IPv6IngressIP":"","ClusterID":77,"Source":"custom-resource","#,
                r#""EncryptionKey":0,"Labels":null,"Annotations":null,"WireguardPubKey":"","BootID":""}"#,
            ]
            .concat(),
        ),
        ("cilium/state/identities/v1/id/5046273".to_owned(), BILLING.to_owned()),
        (
            "cilium/state/identities/v1/id/5046274".to_owned(),
            // sorted by key, without regard to the source
            PRINTER.to_owned(),
        ),
        ip("192.168.7.20", "192.168.7.7", 5_046_273, &billing("billing-db")),
        ip("192.168.7.21", "", 5_046_273, &billing("billing-db-2")),
        ip("192.168.9.1", "", 5_046_274, r#""K8sPodName":"printer""#),
        ip("fd00:7::20", "192.168.7.7", 5_046_273, &billing("billing-db")),
        (
            "cilium/state/services/v1/vms/shop/billing-db".to_owned(),
            [
                r#"{"cluster":"vms","namespace":"shop","name":"billing-db","frontends":{"10.96.7.20":{"pg":{"Protocol":"TCP","Port":5432}}},"#,
                r#""backends":{"192.168.7.20":{"pg":{"Protocol":"TCP","Port":5432}},"192.168.7.21":{"pg":{"Protocol":"TCP","Port":5432}},"#,
                r#""fd00:7::20":{"pg":{"Protocol":"TCP","Port":5432}}},"labels":null,"selector":{"app":"billing-db"},"#,
                r#""includeExternal":true,"shared":true,"clusterID":77}"#,
            ]
            .concat(),
        ),
        (
            "cilium/state/services/v1/vms/shop/printers".to_owned(),
            [
                r#"{"cluster":"vms","namespace":"shop","name":"printers","frontends":{},"#,
                r#""backends":{"192.168.9.1":{"":{"Protocol":"TCP","Port":9100}}},"labels":null,"selector":null,"#,
                r#""includeExternal":true,"shared":false,"clusterID":77}"#,
            ]
            .concat(),
        ),
    ];
    assert_eq!(all, expected);
    let (key, value) = plan.config();
    let config = r#"{"id":77,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#;
    assert_eq!((key.as_str(), String::from_utf8(value).unwrap().as_str()), ("cilium/cluster-config/vms", config));
    let canaries = Resource::ALL.map(|resource| plan.canary(resource));
    let canary = |resource: &str| format!("cilium/synced/vms/cilium/state/{resource}/v1");
    assert_eq!(canaries, ["nodes", "identities", "ip", "services"].map(canary));
    assert_eq!((plan.range().min().number(), plan.range().max().number()), (77 << 16, (78 << 16) - 1));
}

#[test]
fn readers_accept_every_published_value() {
    let plan = read(&[EXAMPLE]).unwrap();
    let cluster = ClusterName::parse("vms").unwrap();
    let context = Context { cluster: &cluster, cluster_id: ClusterId(77), max_connected_clusters: plan.max_connected_clusters };
    let mut count = 0;
    for resource in Resource::ALL {
        for (key, value) in plan.keys(resource, &numbers()) {
            let key = crate::wire::keys::entry_key(resource.kind(), &cluster, false, key.as_bytes()).unwrap();
            assert_eq!(decode(&key, &value, &context).unwrap().kind(), resource.kind());
            count += 1;
        }
    }
    assert_eq!(count, 9);
    let host = EntryKey::new(Kind::Ip, cluster.clone(), "192.168.7.20");
    let value = plan.keys(Resource::Ips, &numbers()).remove("cilium/state/ip/v1/default/192.168.7.20").unwrap();
    assert_eq!(decode(&host, &value, &context).unwrap().as_ip().unwrap().pod_name, "billing-db");
}

#[test]
fn only_workloads_without_a_number_are_left_out() {
    let plan = read(&[EXAMPLE]).unwrap();
    let some = [(AllocatorKey::from_text(PRINTER), 5_046_274)].into();
    assert_eq!(plan.keys(Resource::Ips, &some).into_keys().collect::<Vec<_>>(), ["cilium/state/ip/v1/default/192.168.9.1"]);
    assert_eq!(plan.keys(Resource::Identities, &some).len(), 1);
    assert_eq!(plan.identities().len(), 2);
}

#[test]
fn several_files_form_one_cluster() {
    let cluster = "cluster: {name: vms, id: 77, maxConnectedClusters: 511}\n";
    let workload =
        |name: &str, ip: &str| format!("workloads:\n- namespace: a\n  name: {name}\n  labels: {{app: x}}\n  ips: [{ip}]\n  node: host\n");
    let node = "nodes:\n- name: host\n  addresses: [{type: InternalIP, ip: 10.0.0.1}]\n";
    let plan = read(&[&workload("one", "10.0.0.2"), &format!("{cluster}{node}"), &workload("two", "10.0.0.3")]).unwrap();
    assert_eq!(plan.keys(Resource::Ips, &plan.identities().into_iter().map(|key| (key, 300)).collect()).len(), 2);
    assert_eq!(plan.range().min().number(), 77 << 15);
    assert_eq!(
        read(&[cluster, "cluster: {name: vms, id: 78}\n"]).unwrap_err(),
        ["1.yaml:1: cluster: differs from the cluster in 0.yaml: all files must have the same cluster"]
    );
    assert_eq!(
        read(&[cluster, &workload("one", "10.0.0.2").replace("host", "ghost")]).unwrap_err(),
        [r#"1.yaml:6: workloads[0].node: no node has the name "ghost""#]
    );
}

/// Returns the only error of a file.
fn error(text: &str) -> String {
    let mut errors = read(&[text]).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:#?}");
    errors.remove(0)
}

#[test]
fn errors_name_file_line_and_reason() {
    for (from, to, expected) in [
        (
            "labels: {app: billing-db}\n  serviceAccount",
            "labels: {app: billing-db}\n  serviceacount",
            "0.yaml:10: workloads[0]: unknown field `serviceacount`, expected one of `namespace`, `name`, `labels`, `serviceAccount`, `ips`, `node`",
        ),
        (
            "cluster: {name: vms, id: 77}",
            "cluster: {name: vms, id: 256}",
            "0.yaml:1: cluster.id: is 256, expected 1 to 255, the size of the mesh",
        ),
        (
            "cluster: {name: vms, id: 77}",
            "cluster: {name: default, id: 77}",
            "0.yaml:1: cluster.name: Cilium treats the name \"default\" as no name",
        ),
        (
            "cluster: {name: vms, id: 77}",
            "cluster: {name: vms, id: 77, maxConnectedClusters: 256}",
            "0.yaml:1: cluster.maxConnectedClusters: is 256, expected 255 or 511",
        ),
        ("cluster: {name: vms, id: 77}\n", "\n", "0.yaml:2: cluster: is missing: one file must have {name: …, id: …}"),
        ("fd00:7:0::20", "fe80::1%eth0", "0.yaml:11: workloads[0].ips[1]: \"fe80::1%eth0\" is not an address"),
        (
            "192.168.7.21",
            "127.0.0.1",
            "0.yaml:17: workloads[1].ips[0]: 127.0.0.1 is a loopback address: each client would connect to itself",
        ),
        (
            "ips: [192.168.7.21]",
            "ips: ['::ffff:169.254.169.254']",
            "0.yaml:17: workloads[1].ips[0]: ::ffff:169.254.169.254 is link-local: for each client it is another machine, or the cloud's metadata service (169.254.169.254)",
        ),
        (
            "10.96.7.20",
            "224.0.0.1",
            "0.yaml:26: services[0].frontends[0]: 224.0.0.1 is a multicast address, which does not belong to one machine",
        ),
        (
            "ip: 192.168.7.7}",
            "ip: 255.255.255.255}",
            "0.yaml:4: nodes[0].addresses[0].ip: 255.255.255.255 is the broadcast address, which does not belong to one machine",
        ),
        (
            "192.168.7.16/28",
            "0.0.0.0/0",
            "0.yaml:5: nodes[0].podCIDRs[0]: 0.0.0.0/0 cannot be a pod CIDR: 0.0.0.0 is in 0.0.0.0/8 (\"this network\"), where no machine can be reached",
        ),
        ("192.168.7.21", "192.168.7.20", "0.yaml:17: workloads[1].ips[0]: legacy/billing-db has the address 192.168.7.20 too"),
        (
            "192.168.7.16/28",
            "192.168.7.20/28",
            "0.yaml:5: nodes[0].podCIDRs[0]: 192.168.7.20/28 has bits set after its prefix length, expected 192.168.7.16/28",
        ),
        (
            "{'vm:app': printer}",
            "{'vm:app': 'a;b'}",
            "0.yaml:20: workloads[2].labels: the value of \"vm:app\" must not have a ';' or a line break",
        ),
        (
            "{'vm:app': printer}",
            "{'reserved:app': a}",
            "0.yaml:20: workloads[2].labels: the label source \"reserved\" is not allowed for machines",
        ),
        (
            "{'vm:app': printer}",
            "{io.kubernetes.pod.namespace: a}",
            "0.yaml:20: workloads[2].labels: \"io.kubernetes.pod.namespace\" is set from the cluster, the namespace and the service account: remove it",
        ),
        (
            "{'vm:app': printer}",
            "{a: b, 'vm:a': c}",
            "0.yaml:20: workloads[2].labels: \"a\" has two sources: Cilium keeps only one label per name",
        ),
        ("{'vm:app': printer}", "{a: b, a: c}", "0.yaml:20: workloads[2].labels: label \"a\" is repeated"),
        ("protocol: TCP", "protocol: ICMP", "0.yaml:25: services[0].ports[0].protocol: is \"ICMP\", expected TCP, UDP or SCTP"),
        ("port: 5432", "port: 65536", "0.yaml:25: services[0].ports[0].port: is 65536, expected 1 to 65535"),
        ("port: 5432", "port: -1", "0.yaml:25: services[0].ports[0].port: invalid type: integer `-1`, expected a whole number above zero"),
        ("id: 77", "id: 4294967296", "0.yaml:1: cluster.id: is 4294967296, expected 1 to 255, the size of the mesh"),
        ("{ips: [192.168.9.1]}", "{}", "0.yaml:31: services[1].backends: must have either labels or ips"),
        ("name: printers", "name: billing-db", "0.yaml:29: services[1].name: another service has the name shop/billing-db too"),
        ("name: printers", "name: a/b", "0.yaml:29: services[1].name: \"a/b\" is not a valid Kubernetes name: use a-z, 0-9, '-' and '.'"),
        (
            "addresses: [{type: InternalIP, ip: 192.168.7.7}, {type: InternalIP, ip: 'fd00::7'}]",
            "addresses: []",
            "0.yaml:4: nodes[0].addresses: is empty: a node needs at least one address",
        ),
        ("workloads:\n", "workloads\n", "0.yaml:7: did not find expected key"),
    ] {
        let wrong = EXAMPLE.replacen(from, to, 1);
        assert_ne!(wrong, EXAMPLE, "{from}");
        let reason = error(&wrong);
        assert!(reason == expected || reason.starts_with("0.yaml:") && expected.contains("did not find"), "\n{reason}\n{expected}");
    }
}

#[test]
fn unreadable_files_are_named_and_the_number_of_errors_is_limited() {
    let missing = read_files(&["/nowhere/at/all.yaml".into()]).unwrap_err();
    assert_eq!(missing[0].to_string(), "/nowhere/at/all.yaml: cannot be read: No such file or directory (os error 2)");
    let endless = read_files(&["/dev/zero".into()]).unwrap_err();
    assert_eq!(endless[0].to_string(), "/dev/zero: cannot be read: not a regular file");
    let deep = error(&format!("cluster: {{name: vms, id: 7}}\nworkloads: {}", "[".repeat(900_000)));
    assert_eq!(deep, "0.yaml:2: lists and mappings nested deeper than 32");
    let workload = |number: usize| format!("- {{namespace: a, name: n{number}, labels: {{app: x}}, ips: ['{number}']}}\n");
    let text = format!("cluster: {{name: vms, id: 7}}\nworkloads:\n{}", (0..50).map(workload).collect::<String>());
    let errors = read(&[&text]).unwrap_err();
    assert_eq!((errors.len(), errors[19].as_str()), (20, "0.yaml:22: workloads[19].ips[0]: \"19\" is not an address"));
}

/// Checks that the line is not searched for every error: that would read 2 MB 20,000 times.
#[test]
fn a_file_with_many_errors_is_reported_quickly() {
    let workload = |number: u32| {
        format!("- {{namespace: Legacy, name: w{number}, labels: {{app: a}}, ips: [10.0.{}.{}]}}\n", number >> 8, number & 255)
    };
    let text = "cluster: {name: vms, id: 77}\nworkloads:\n".to_owned() + &(0..20_000).map(workload).collect::<String>();
    let errors = read(&[&text]).unwrap_err();
    assert_eq!(errors.len(), 20);
    assert_eq!(errors[19], "0.yaml:22: workloads[19].namespace: \"Legacy\" is not a valid Kubernetes name: use a-z, 0-9, '-' and '.'");
}

//! `meshkeep announce --dry-run`, as a person runs it.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

const FILE: &str = "cluster: {name: vms, id: 77}
nodes:
- name: rack1-host7
  addresses: [{type: InternalIP, ip: 192.168.7.7}]
  podCIDRs: [192.168.7.16/28]
workloads:
- namespace: legacy
  name: billing-db
  labels: {app: billing-db}
  serviceAccount: billing
  ips: [192.168.7.20]
  node: rack1-host7
- namespace: legacy
  name: printer
  labels: {app: printer}
  ips: [192.168.9.1, 'fd00:9::1']
services:
- namespace: shop
  name: billing-db
  ports: [{name: pg, protocol: TCP, port: 5432}]
  frontends: [10.96.7.20]
  backends: {labels: {app: billing-db}}
";

#[test]
fn a_dry_run_prints_every_key_and_wrong_files_end_with_line_and_reason() {
    let place = TempDir::new().unwrap();
    let run = |text: &str| {
        fs::write(place.path().join("vms.yaml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.args(["announce", "--dry-run"]).arg(place.path().join("vms.yaml")).output().unwrap()
    };
    let output = run(FILE);
    let lines: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!((output.status.code(), lines.len()), (Some(0), 13), "{lines:#?}");
    assert_eq!(lines[0], "cilium/.heartbeat => <time>");
    let identity = "cilium/state/identities/v1/id/5046272 => k8s:app=billing-db;k8s:io.cilium.k8s.policy.cluster=vms;\
                    k8s:io.cilium.k8s.policy.serviceaccount=billing;k8s:io.kubernetes.pod.namespace=legacy;";
    assert!(lines.contains(&identity.to_owned()), "{lines:#?}");
    let config = r#"cilium/cluster-config/vms => {"id":77,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#;
    assert_eq!(lines[12], config);
    let output = run(&FILE.replacen("ips:", "addresses:", 1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && told.contains("vms.yaml:11: workloads[0]: unknown field `addresses`"), "{told}");
    let usage = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["announce", "vms.yaml"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

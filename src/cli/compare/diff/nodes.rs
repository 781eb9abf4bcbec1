//! Comparison of an agent's nodes with the mirror's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::comparison::{Difference, DifferenceKind, FieldDifference, MirrorFacts, NotCompared, TableComparison};
use crate::dto::objects::Node;
use crate::dump::agent::AgentNode;

/// Cluster whose nodes an agent names without their cluster (`Fullname`, Cilium's
/// `pkg/node/types`).
const DEFAULT_CLUSTER: &str = "default";

/// Compares the nodes of an agent with those of the mirror.
pub(super) fn compare(agent: &[AgentNode], mirror: &[Node], facts: &MirrorFacts) -> TableComparison {
    let mut comparison = TableComparison::default();
    let known: BTreeMap<&str, &AgentNode> = agent.iter().map(|node| (node.full_name.as_str(), node)).collect();
    let (mut missing, mut clusters_of_agent, mut mirrored) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for node in mirror {
        let name = if node.cluster == DEFAULT_CLUSTER { node.name.clone() } else { format!("{}/{}", node.cluster, node.name) };
        comparison.compared += 1;
        let difference = |kind| {
            let reason = facts.reason_of_old_value(&node.cluster, &node.change);
            Difference::new(kind, &name, Some(&node.cluster)).because(reason)
        };
        match known.get(name.as_str()) {
            None => missing.push(difference(DifferenceKind::Missing)),
            Some(found) => {
                clusters_of_agent.insert(node.cluster.as_str());
                let fields = differing_fields(found, node);
                if !fields.is_empty() {
                    comparison.differences.push(Difference { fields, ..difference(DifferenceKind::Different) });
                }
            }
        }
        mirrored.insert(name);
    }
    for name in known.keys().filter(|name| !mirrored.contains(**name)) {
        let cluster = name.split_once('/').map_or(DEFAULT_CLUSTER, |(cluster, _)| cluster);
        if facts.has_cluster(cluster) {
            comparison.compared += 1;
            let difference = Difference::new(DifferenceKind::Additional, name, Some(cluster)).because(facts.old_data(cluster));
            comparison.differences.push(difference);
        } else {
            comparison.skip(NotCompared::OtherCluster);
        }
    }
    comparison.add_missing(missing, &clusters_of_agent);
    comparison
}

fn differing_fields(agent: &AgentNode, node: &Node) -> Vec<FieldDifference> {
    let ips = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect::<BTreeSet<IpAddr>>();
    let addresses: BTreeSet<IpAddr> = node.addresses.iter().filter_map(|address| address.ip.parse().ok()).collect();
    // an agent prints only the first pod CIDR of each address family
    let pod_cidrs: BTreeSet<IpNet> =
        node.ipv4_pod_cidr.iter().chain(&node.ipv6_pod_cidr).filter_map(|cidr| cidr.parse::<IpNet>().ok()).map(|net| net.trunc()).collect();
    let fields = [
        FieldDifference::of_sets("addresses", &agent.addresses, &addresses),
        FieldDifference::of_sets("podCIDRs", &agent.pod_cidrs, &pod_cidrs),
        FieldDifference::of_sets("healthIPs", &agent.health_ips, &ips(&node.health_ips)),
        FieldDifference::of_sets("ingressIPs", &agent.ingress_ips, &ips(&node.ingress_ips)),
    ];
    fields.into_iter().flatten().collect()
}

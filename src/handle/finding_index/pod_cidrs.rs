//! Pod CIDRs by the nodes that announce them, and overlaps between nodes or clusters.
//!
//! Agents treat each CIDR as a route to its node (Cilium's `pkg/node/manager/manager.go`,
//! `podCIDREntries`), so one of two overlapping CIDRs loses its traffic. Some versions announced
//! hundreds of fictitious CIDRs on every node (cilium/cilium#46179). Nodes are therefore only
//! counted, and overlaps are reported once per cluster. One scan of the sorted CIDRs computes
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use imbl::OrdMap;
use ipnet::IpNet;

use crate::model::{ClusterName, EntryKey};

/// Pod CIDRs by the nodes that announce them. A clone is a cheap snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct PodCidrs {
    announced: OrdMap<(IpNet, ClusterName), AnnouncingNodes>,
    overlaps: Arc<BTreeMap<ClusterName, Overlaps>>,
    /// True if the overlaps may have changed since they were computed.
    is_stale: bool,
}

/// Nodes of one cluster that announce one CIDR.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct AnnouncingNodes {
    count: u32,
    /// Exclusive or of the hashes of the node names. If there is only one node, it is that node's
    /// hash.
    hash_xor: u64,
}

/// Number of nodes that announce a CIDR: one or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NodeCount {
    /// Hash of the node's name.
    One(u64),
    Several,
}

/// Pod CIDRs of a cluster that overlap others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// CIDRs that several of its nodes announce, or that overlap a CIDR of another of its nodes,
    /// sorted.
    pub between_nodes: Vec<IpNet>,
    /// CIDRs that overlap a CIDR of another cluster, sorted.
    pub between_clusters: Vec<IpNet>,
    /// Clusters that overlap with this one.
    pub others: BTreeSet<ClusterName>,
}

/// Announcing nodes by the index of their cluster.
type NodesByCluster = BTreeMap<usize, NodeCount>;

/// A CIDR whose subnets are being visited.
struct OpenCidr {
    net: IpNet,
    own: NodesByCluster,
    /// Nodes that announce a CIDR that contains this one.
    above: Rc<NodesByCluster>,
    /// Nodes that announce a CIDR inside this one, as far as they were visited.
    below: NodesByCluster,
}

/// Visits all CIDRs in order. A CIDR comes after the CIDRs that contain it.
struct OverlapScan {
    names: Vec<ClusterName>,
    /// CIDRs that contain the current one, the largest first.
    open: Vec<OpenCidr>,
    by_cluster: Vec<Overlaps>,
    /// Matrix of the pairs of clusters that overlap.
    overlapping: Vec<bool>,
}

impl AnnouncingNodes {
    fn nodes(self) -> Option<NodeCount> {
        match self.count {
            0 => None,
            1 => Some(NodeCount::One(self.hash_xor)),
            _ => Some(NodeCount::Several),
        }
    }
}

impl PodCidrs {
    /// Creates an empty index whose overlaps are computed when it has been filled.
    pub(super) fn stale() -> Self {
        Self { is_stale: true, ..Self::default() }
    }

    /// Replaces the CIDRs that a node announces.
    pub(super) fn replace(&mut self, cluster: &ClusterName, node: &str, old: &BTreeSet<IpNet>, new: &BTreeSet<IpNet>) {
        old.difference(new).for_each(|net| self.count(*net, cluster, node, false));
        new.difference(old).for_each(|net| self.count(*net, cluster, node, true));
    }

    fn count(&mut self, net: IpNet, cluster: &ClusterName, node: &str, is_added: bool) {
        let key = (net, cluster.clone());
        let before = self.announced.get(&key).copied().unwrap_or_default();
        let count = if is_added { before.count.saturating_add(1) } else { before.count.saturating_sub(1) };
        let after = AnnouncingNodes { count, hash_xor: before.hash_xor ^ node_hash(node) };
        match after.count {
            0 => drop(self.announced.remove(&key)),
            _ => drop(self.announced.insert(key, after)),
        }
        let several = [before, after].map(AnnouncingNodes::nodes).contains(&Some(NodeCount::Several));
        self.is_stale = self.is_stale || several || self.overlaps_any(net, cluster);
    }

    /// Returns whether a CIDR of a cluster overlaps any other CIDR.
    fn overlaps_any(&self, net: IpNet, cluster: &ClusterName) -> bool {
        let lowest = EntryKey::lowest().cluster;
        let cidrs_from = |net| self.announced.range((net, lowest.clone())..).map(|(key, _)| key);
        let mut inside = cidrs_from(net).take_while(|(other, _)| net.contains(other));
        let mut covering = (0..net.prefix_len()).filter_map(|length| IpNet::new(net.addr(), length).ok()).map(|wider| wider.trunc());
        inside.any(|(other, owner)| (*other, owner) != (net, cluster))
            || covering.any(|wider| cidrs_from(wider).next().is_some_and(|(first, _)| *first == wider))
    }

    /// Computes the overlaps if they may have changed. Returns the clusters whose overlaps may have
    /// changed.
    pub(super) fn recompute_overlaps(&mut self) -> BTreeSet<ClusterName> {
        if !self.is_stale {
            return BTreeSet::new();
        }
        let overlaps = OverlapScan::run(&self.announced);
        let clusters = overlaps.keys().chain(self.overlaps.keys()).cloned().collect();
        (self.overlaps, self.is_stale) = (Arc::new(overlaps), false);
        clusters
    }

    /// Returns the CIDRs of a cluster that overlap others, as of the last
    /// [`PodCidrs::recompute_overlaps`].
    pub(super) fn overlaps(&self, cluster: &ClusterName) -> Option<&Overlaps> {
        self.overlaps.get(cluster)
    }

    /// Returns the number of nodes of a cluster that announce a CIDR.
    pub(super) fn node_count(&self, net: IpNet, cluster: &ClusterName) -> u32 {
        self.announced.get(&(net, cluster.clone())).map_or(0, |announcing| announcing.count)
    }
}

impl OverlapScan {
    fn run(announced: &OrdMap<(IpNet, ClusterName), AnnouncingNodes>) -> BTreeMap<ClusterName, Overlaps> {
        let names: BTreeSet<&ClusterName> = announced.keys().map(|(_, cluster)| cluster).collect();
        let names: Vec<ClusterName> = names.into_iter().cloned().collect();
        let count = names.len();
        let mut scan =
            Self { names, open: Vec::new(), by_cluster: vec![Overlaps::default(); count], overlapping: vec![false; count * count] };
        let mut rest = announced.iter().peekable();
        while let Some(((net, _), _)) = rest.peek() {
            let net = *net;
            let mut own = NodesByCluster::new();
            while let Some(((_, cluster), announcing)) = rest.next_if(|((other, _), _)| *other == net) {
                let number = scan.names.binary_search(cluster).unwrap_or_default();
                own.extend(announcing.nodes().map(|nodes| (number, nodes)));
            }
            scan.open_cidr(net, own);
        }
        while scan.close_cidr() {}
        scan.into_overlaps()
    }

    fn open_cidr(&mut self, net: IpNet, own: NodesByCluster) {
        while self.open.last().is_some_and(|wider| !wider.net.contains(&net)) {
            self.close_cidr();
        }
        let above = self.open.last().map(|wider| {
            let mut above = (*wider.above).clone();
            join(&mut above, &wider.own);
            Rc::new(above)
        });
        self.open.push(OpenCidr { net, own, above: above.unwrap_or_default(), below: NodesByCluster::new() });
    }

    /// Closes the smallest open CIDR, all of whose subnets were visited. Returns false if none is
    /// open.
    fn close_cidr(&mut self) -> bool {
        let Some(mut frame) = self.open.pop() else { return false };
        let mut all = frame.own.clone();
        join(&mut all, &frame.above);
        join(&mut all, &frame.below);
        for cluster in frame.own.keys() {
            let overlaps = &mut self.by_cluster[*cluster];
            if all[cluster] == NodeCount::Several {
                overlaps.between_nodes.push(frame.net);
            }
            if all.len() > 1 {
                overlaps.between_clusters.push(frame.net);
                let others = all.keys().filter(|other| *other != cluster);
                others.for_each(|other| self.overlapping[cluster * self.names.len() + other] = true);
            }
        }
        if let Some(wider) = self.open.last_mut() {
            join(&mut frame.below, &frame.own);
            join(&mut wider.below, &frame.below);
        }
        true
    }

    fn into_overlaps(self) -> BTreeMap<ClusterName, Overlaps> {
        let Self { names, by_cluster, overlapping, .. } = self;
        let mut overlaps = BTreeMap::new();
        for (cluster, mut own) in by_cluster.into_iter().enumerate() {
            own.between_nodes.sort_unstable();
            own.between_clusters.sort_unstable();
            let others = names.iter().enumerate().filter(|(other, _)| overlapping[cluster * names.len() + other]);
            own.others = others.map(|(_, name)| name.clone()).collect();
            if own != Overlaps::default() {
                overlaps.insert(names[cluster].clone(), own);
            }
        }
        overlaps
    }
}

/// Adds the announcing nodes of `more` to `all`.
fn join(all: &mut NodesByCluster, more: &NodesByCluster) {
    for (cluster, nodes) in more {
        let known = all.entry(*cluster).or_insert(*nodes);
        if known != nodes {
            *known = NodeCount::Several;
        }
    }
}

fn node_hash(node: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    node.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    type AnnouncedCidrs = BTreeMap<(ClusterName, String), BTreeSet<IpNet>>;

    fn cluster(number: u32) -> ClusterName {
        ClusterName::parse(&format!("cluster-{number}")).unwrap()
    }

    fn overlap(one: &IpNet, other: &IpNet) -> bool {
        one.contains(other) || other.contains(one)
    }

    /// The expected overlaps, computed by comparing all pairs.
    fn compare_all_pairs(announced: &AnnouncedCidrs) -> BTreeMap<ClusterName, Overlaps> {
        let all: Vec<(&ClusterName, &String, &IpNet)> =
            announced.iter().flat_map(|((cluster, node), nets)| nets.iter().map(move |net| (cluster, node, net))).collect();
        let mut found = BTreeMap::<ClusterName, Overlaps>::new();
        for (cluster, node, net) in &all {
            let found = found.entry((*cluster).clone()).or_default();
            let overlapping_nets = || all.iter().filter(|(.., other)| overlap(net, other));
            if overlapping_nets().any(|(owner, other, _)| owner == cluster && other != node) {
                found.between_nodes.push(**net);
            }
            let others: BTreeSet<ClusterName> =
                overlapping_nets().map(|(owner, ..)| (*owner).clone()).filter(|owner| owner != *cluster).collect();
            if !others.is_empty() {
                found.between_clusters.push(**net);
                found.others.extend(others);
            }
        }
        for found in found.values_mut() {
            for nets in [&mut found.between_nodes, &mut found.between_clusters] {
                nets.sort();
                nets.dedup();
            }
        }
        found.retain(|_, found| *found != Overlaps::default());
        found
    }

    /// CIDRs of both families that are often nested.
    fn random_net(random: &mut StdRng) -> IpNet {
        let length = random.random_range(6..=12);
        let (second, third) = (random.random_range(0..4), random.random_range(0..3));
        let net = match random.random_bool(0.7) {
            true => IpNet::new([10, second << 4, third << 6, 0].into(), length),
            false => IpNet::new([0xfd00 + u16::from(second) * 16, u16::from(third), 0, 0, 0, 0, 0, 0].into(), length + 4),
        };
        net.unwrap().trunc()
    }

    #[test]
    fn overlaps_after_random_changes_equal_a_comparison_of_all_pairs() {
        let mut seen = (0, 0, 0);
        for seed in 0..40 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut cidrs, mut announced) = (PodCidrs::default(), AnnouncedCidrs::new());
            for step in 0..150 {
                let (cluster, node) = (cluster(random.random_range(0..3)), format!("node-{}", random.random_range(0..3)));
                let new: BTreeSet<IpNet> = (0..random.random_range(0..3)).map(|_| random_net(&mut random)).collect();
                let old = announced.insert((cluster.clone(), node.clone()), new.clone()).unwrap_or_default();
                cidrs.replace(&cluster, &node, &old, &new);
                cidrs.recompute_overlaps();
                assert_eq!(*cidrs.overlaps, compare_all_pairs(&announced), "seed {seed}, step {step}");
                let overlaps = cidrs.overlaps(&cluster);
                seen.0 += usize::from(overlaps.is_none());
                seen.1 += usize::from(overlaps.is_some_and(|overlaps| !overlaps.between_nodes.is_empty()));
                seen.2 += usize::from(overlaps.is_some_and(|overlaps| !overlaps.between_clusters.is_empty()));
            }
        }
        assert!(seen.0 > 100 && seen.1 > 100 && seen.2 > 100, "every case occurred: {seen:?}");
    }

    /// 256 fictitious CIDRs on each of 20 nodes of 255 clusters, and one CIDR that contains them
    /// all.
    #[test]
    fn cidrs_announced_by_many_nodes_use_one_entry_per_cluster() {
        let fictitious: BTreeSet<IpNet> = (0..=255).map(|second| IpNet::new([10, second, 0, 0].into(), 16).unwrap()).collect();
        let mut cidrs = PodCidrs::default();
        for number in 0..255 {
            for node in 0..20 {
                cidrs.replace(&cluster(number), &format!("node-{node}"), &BTreeSet::new(), &fictitious);
            }
        }
        cidrs.replace(&cluster(7), "wide", &BTreeSet::new(), &["10.0.0.0/8".parse().unwrap()].into());
        assert_eq!((cidrs.announced.len(), cidrs.recompute_overlaps().len()), (255 * 256 + 1, 255));
        let overlaps = cidrs.overlaps(&cluster(3)).unwrap();
        let counts = (overlaps.between_nodes.len(), overlaps.between_clusters.len(), overlaps.others.len());
        assert_eq!((counts, cidrs.node_count("10.3.0.0/16".parse().unwrap(), &cluster(3))), ((256, 256, 254), 20));
    }

    #[test]
    fn nodes_without_overlaps_need_no_overlap_scan() {
        let mut cidrs = PodCidrs::default();
        let net = |third: u8| BTreeSet::from([IpNet::new([10, 1, third, 0].into(), 24).unwrap()]);
        for third in 0..200 {
            cidrs.replace(&cluster(1), &format!("node-{third}"), &BTreeSet::new(), &net(third));
            assert!(!cidrs.is_stale);
        }
        cidrs.replace(&cluster(1), "node-7", &net(7), &net(201));
        assert!(!cidrs.is_stale);
        cidrs.replace(&cluster(1), "node-8", &net(8), &net(9));
        assert!(cidrs.is_stale);
    }
}

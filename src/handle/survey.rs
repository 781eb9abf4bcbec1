//! What shows only across keys: who names what is not there, what two clusters claim, and which services an address backs.
//!
//! A reader of the mirror like any other, kept up to date by the changes: it takes in a snapshot once, piece by piece, and then follows
//! the ring. Owns counts and sets of what is wrong, not the words for it; [`Finding`] names one, whoever tells of it reads the rest from
//! the [`Reading`]. Pure. Deliberately lacks: what is wrong with one cluster as a whole, which is read from its status when asked.

mod finding;
mod pod_cidrs;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

use super::{IdentityScope, Reading};
use crate::model::{ALLOCATED_IDENTITY_MIN, Announcement, ClusterName, EntryKey, Kind, Node, Object, Sequence};

pub use finding::Finding;
pub use pod_cidrs::Overlaps;

use pod_cidrs::PodCidrs;

/// How many keys one piece of the first look takes in, or how many findings it settles: some milliseconds, as one key takes up to 10 µs to
/// decode.
const PIECE_KEYS: usize = 512;

/// What was found up to a position. Cloning makes a snapshot.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Everything up to here is in it.
    position: Sequence,
    /// How many ip entries of a cluster name an identity.
    naming: OrdMap<(u32, ClusterName), u64>,
    /// How many ip entries of a cluster are behind a host address.
    hosted: OrdMap<(IpAddr, ClusterName), u64>,
    pod_cidrs: PodCidrs,
    /// Services and endpoint slices by the addresses behind them.
    backends: OrdSet<(IpAddr, EntryKey)>,
    /// What is wrong.
    findings: OrdSet<Finding>,
}

/// A survey whose first look is not over.
#[derive(Debug)]
pub struct FirstLook {
    reading: Reading,
    survey: Survey,
    next: Option<EntryKey>,
    touched: BTreeSet<Finding>,
}

impl FirstLook {
    /// Begins to look at a moment.
    #[must_use]
    pub fn new(reading: Reading) -> Self {
        let survey = Survey {
            position: reading.position().sequence,
            naming: OrdMap::new(),
            hosted: OrdMap::new(),
            pod_cidrs: PodCidrs::unsettled(),
            backends: OrdSet::new(),
            findings: OrdSet::new(),
        };
        Self { reading, survey, next: Some(EntryKey::lowest()), touched: BTreeSet::new() }
    }

    /// Takes in the next piece, or settles some of what is left to be judged; breaks with the survey after the last.
    pub fn advance(mut self) -> ControlFlow<Survey, Self> {
        let Some(next) = self.next.take() else {
            if self.touched.is_empty() {
                self.survey.judge_pod_cidrs();
                return ControlFlow::Break(self.survey);
            }
            let piece = std::iter::from_fn(|| self.touched.pop_first()).take(PIECE_KEYS).collect();
            self.survey.judge(&piece, &self.reading);
            return ControlFlow::Continue(self);
        };
        let mut records = self.reading.published().view.records_from(&next);
        for record in records.by_ref().take(PIECE_KEYS) {
            if let Some(object) = record.object.as_deref() {
                self.survey.count(&record.key, object, true, &mut self.touched);
                self.survey.replace(&record.key, None, Some(object));
            }
            if record.rejection.is_some() {
                self.touched.insert(Finding::IdentityOutOfRange(record.key.clone()));
            }
        }
        self.next = records.next().map(|record| record.key.clone());
        drop(records);
        // one for each ip entry, and nothing that is still to be counted can change it
        let (settled, open) =
            std::mem::take(&mut self.touched).into_iter().partition(|finding| matches!(finding, Finding::DuplicateAddress(_)));
        self.survey.judge(&settled, &self.reading);
        self.touched = open;
        ControlFlow::Continue(self)
    }
}

impl Survey {
    /// Takes in what changed since. False where that is no longer known: look anew.
    #[must_use]
    pub fn follow(&mut self, reading: &Reading) -> bool {
        let Some(announcements) = reading.announced_after(self.position) else { return false };
        let mut touched = BTreeSet::new();
        for announcement in announcements {
            self.take(announcement, &mut touched);
        }
        // judged by the newest state: whatever changed it is among what was taken in
        self.judge(&touched, reading);
        self.judge_pod_cidrs();
        self.position = reading.position().sequence;
        true
    }

    /// Up to where it goes.
    #[must_use]
    pub fn position(&self) -> Sequence {
        self.position
    }

    /// What is wrong, from one finding on, that one included.
    pub fn findings_from(&self, start: Option<&Finding>) -> impl Iterator<Item = &Finding> {
        let start = start.map_or(std::ops::Bound::Unbounded, |start| std::ops::Bound::Included(start.clone()));
        self.findings.range((start, std::ops::Bound::Unbounded))
    }

    /// Whether something is among what is wrong.
    #[must_use]
    pub fn has(&self, finding: &Finding) -> bool {
        self.findings.contains(finding)
    }

    /// How many ip entries of the cluster a dangling identity or host address concerns.
    #[must_use]
    pub fn entry_count(&self, finding: &Finding) -> Option<u64> {
        match finding {
            Finding::DanglingIdentity(cluster, identity) => self.naming.get(&(*identity, cluster.clone())).copied(),
            Finding::DanglingHostIp(cluster, ip) => self.hosted.get(&(*ip, cluster.clone())).copied(),
            Finding::OverlappingNodePodCidr(cluster) => self.overlaps(cluster).map(|overlaps| overlaps.between_nodes.len() as u64),
            Finding::OverlappingPodCidr(cluster) => self.overlaps(cluster).map(|overlaps| overlaps.between_clusters.len() as u64),
            Finding::DuplicateAddress(_) | Finding::IdentityOutOfRange(_) => None,
        }
    }

    /// The pod CIDRs of a cluster that overlap others.
    #[must_use]
    pub fn overlaps(&self, cluster: &ClusterName) -> Option<&Overlaps> {
        self.pod_cidrs.overlaps(cluster)
    }

    /// How many nodes of a cluster announce a pod CIDR.
    #[must_use]
    pub fn announcing_nodes(&self, net: IpNet, cluster: &ClusterName) -> u32 {
        self.pod_cidrs.node_count(net, cluster)
    }

    /// The findings that a pod CIDR of a cluster is part of.
    #[must_use]
    pub fn about_pod_cidr(&self, net: IpNet, cluster: &ClusterName) -> Vec<Finding> {
        let Some(overlaps) = self.overlaps(cluster) else { return Vec::new() };
        let between_nodes = overlaps.between_nodes.binary_search(&net).is_ok().then(|| Finding::OverlappingNodePodCidr(cluster.clone()));
        let between_clusters = overlaps.between_clusters.binary_search(&net).is_ok().then(|| Finding::OverlappingPodCidr(cluster.clone()));
        between_nodes.into_iter().chain(between_clusters).collect()
    }

    /// The services and endpoint slices that have an address behind them.
    pub fn backed_by(&self, ip: IpAddr) -> impl Iterator<Item = &EntryKey> {
        self.backends.range((ip, EntryKey::lowest())..).take_while(move |(at, _)| *at == ip).map(|(_, key)| key)
    }

    fn take(&mut self, announcement: &Announcement, touched: &mut BTreeSet<Finding>) {
        let key = &announcement.key;
        // a value that is refused leaves the object as it was
        touched.insert(Finding::IdentityOutOfRange(key.clone()));
        let (old, new) = (announcement.old_object(), announcement.new_object());
        if old == new {
            return;
        }
        if let Some(old) = &old {
            self.count(key, old, false, touched);
        }
        if let Some(new) = &new {
            self.count(key, new, true, touched);
        }
        self.replace(key, old.as_deref(), new.as_deref());
    }

    /// Counts an object in or out, and notes what has to be judged anew.
    fn count(&mut self, key: &EntryKey, object: &Object, is_in: bool, touched: &mut BTreeSet<Finding>) {
        let cluster = &key.cluster;
        match object {
            // that two nodes have one pod CIDR is told of the nodes
            Object::Ip(entry) if key.kind == Kind::NodeIp && !entry.prefix.host => {}
            Object::Ip(entry) => {
                touched.insert(Finding::DuplicateAddress(entry.prefix));
                if is_allocated(entry.identity) {
                    recount(&mut self.naming, (entry.identity, cluster.clone()), is_in);
                    touched.insert(Finding::DanglingIdentity(cluster.clone(), entry.identity));
                }
                if let Some(host_ip) = entry.host_ip {
                    recount(&mut self.hosted, (host_ip, cluster.clone()), is_in);
                    touched.insert(Finding::DanglingHostIp(cluster.clone(), host_ip));
                }
            }
            Object::Identity(identity) => drop(touched.insert(Finding::DanglingIdentity(cluster.clone(), identity.id))),
            Object::Node(node) => {
                touched.extend(node.addresses.iter().map(|address| Finding::DanglingHostIp(cluster.clone(), address.ip)));
            }
            Object::Service(_) | Object::EndpointSlice(_) | Object::ServiceExport(_) | Object::Cluster(_) => {}
        }
    }

    /// Takes in what is of one key alone: of a service of 5,000 backends of which one changed, that one is touched.
    fn replace(&mut self, key: &EntryKey, old: Option<&Object>, new: Option<&Object>) {
        if key.kind == Kind::Node {
            self.pod_cidrs.replace(&key.cluster, &key.name, &pod_cidrs_of(old), &pod_cidrs_of(new));
        }
        let (old, new) = (addresses_behind(old), addresses_behind(new));
        for ip in old.difference(&new) {
            self.backends.remove(&(*ip, key.clone()));
        }
        for ip in new.difference(&old) {
            self.backends.insert((*ip, key.clone()));
        }
    }

    /// Settles which pod CIDRs overlap, where that may have changed.
    fn judge_pod_cidrs(&mut self) {
        for cluster in self.pod_cidrs.settle() {
            let overlaps = self.pod_cidrs.overlaps(&cluster);
            let between_nodes = overlaps.is_some_and(|overlaps| !overlaps.between_nodes.is_empty());
            let between_clusters = overlaps.is_some_and(|overlaps| !overlaps.between_clusters.is_empty());
            self.settle(Finding::OverlappingNodePodCidr(cluster.clone()), between_nodes);
            self.settle(Finding::OverlappingPodCidr(cluster), between_clusters);
        }
    }

    fn settle(&mut self, finding: Finding, is_wrong: bool) {
        if is_wrong {
            self.findings.insert(finding);
        } else {
            self.findings.remove(&finding);
        }
    }

    /// Settles whether each of these is wrong.
    fn judge(&mut self, touched: &BTreeSet<Finding>, reading: &Reading) {
        for finding in touched {
            self.settle(finding.clone(), self.is_wrong(finding, reading));
        }
    }

    fn is_wrong(&self, finding: &Finding, reading: &Reading) -> bool {
        let view = &reading.published().view;
        match finding {
            Finding::DanglingIdentity(cluster, identity) => {
                self.naming.contains_key(&(*identity, cluster.clone())) && !view.has_identity(*identity, cluster)
            }
            Finding::DanglingHostIp(cluster, ip) => self.hosted.contains_key(&(*ip, cluster.clone())) && !view.has_node_at(*ip, cluster),
            Finding::DuplicateAddress(prefix) => view.clusters_at(*prefix).len() > 1,
            Finding::IdentityOutOfRange(key) => reading.identity_out_of_range(key).is_some(),
            Finding::OverlappingNodePodCidr(_) | Finding::OverlappingPodCidr(_) => self.has(finding),
        }
    }
}

/// The addresses behind a service or endpoint slice.
fn addresses_behind(object: Option<&Object>) -> BTreeSet<IpAddr> {
    match object {
        Some(Object::Service(service)) => service.backends.iter().map(|backend| backend.ip).collect(),
        Some(Object::EndpointSlice(slice)) => slice.decoded().endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect(),
        Some(Object::Node(_) | Object::Identity(_) | Object::Ip(_) | Object::ServiceExport(_) | Object::Cluster(_)) | None => {
            BTreeSet::new()
        }
    }
}

/// Whether a cluster has to announce an identity for it to be known.
fn is_allocated(identity: u32) -> bool {
    identity >= ALLOCATED_IDENTITY_MIN && IdentityScope::of(identity) == IdentityScope::Global
}

/// Counts one in or out; what is counted down to nothing goes.
fn recount<K: Ord + Clone>(counts: &mut OrdMap<K, u64>, key: K, is_in: bool) {
    let count = counts.get(&key).copied().unwrap_or(0);
    match (is_in, count) {
        (true, _) => drop(counts.insert(key, count + 1)),
        (false, 0 | 1) => drop(counts.remove(&key)),
        (false, _) => drop(counts.insert(key, count - 1)),
    }
}

/// The pod CIDRs that a node announces.
fn pod_cidrs_of(object: Option<&Object>) -> BTreeSet<IpNet> {
    let node = object.and_then(Object::as_node);
    node.into_iter().flat_map(Node::pod_cidrs).collect()
}

#[cfg(test)]
mod tests;

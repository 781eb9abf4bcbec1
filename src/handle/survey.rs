//! What shows only across keys: who names what is not there, what two clusters claim, and which services an address backs.
//!
//! A reader of the mirror like any other, kept up to date by the changes: it takes in a snapshot once, piece by piece, and then follows
//! the ring. Owns counts and sets of what is wrong, not the words for it; [`Finding`] names one, whoever tells of it reads the rest from
//! the [`Reading`]. Pure. Deliberately lacks: what is wrong with one cluster as a whole, which is read from its status when asked.

mod finding;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;

use imbl::{OrdMap, OrdSet};
use ipnet::IpNet;

use super::{IdentityScope, Reading};
use crate::model::{ALLOCATED_IDENTITY_MIN, Announcement, ClusterName, EntryKey, Object, Sequence};

pub use finding::Finding;

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
    /// Pod ranges and how many nodes of which cluster have them.
    pod_cidrs: OrdMap<IpNet, OrdMap<ClusterName, u64>>,
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
            pod_cidrs: OrdMap::new(),
            backends: OrdSet::new(),
            findings: OrdSet::new(),
        };
        Self { reading, survey, next: Some(EntryKey::lowest()), touched: BTreeSet::new() }
    }

    /// Takes in the next piece, or settles some of what is left to be judged; breaks with the survey after the last.
    pub fn advance(mut self) -> ControlFlow<Survey, Self> {
        let Some(next) = self.next.take() else {
            if self.touched.is_empty() {
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
                self.survey.replace_backends(&record.key, None, Some(object));
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
            Finding::DuplicateAddress(_) | Finding::IdentityOutOfRange(_) | Finding::OverlappingPodCidr(_) => None,
        }
    }

    /// The clusters with a pod range that overlaps this one, its own included.
    #[must_use]
    pub fn clusters_overlapping(&self, net: IpNet) -> BTreeSet<ClusterName> {
        self.overlapping(net).flat_map(|(_, clusters)| clusters.keys().cloned()).collect()
    }

    /// The pod ranges that overlap one, and who has them: those that cover it, and those inside.
    fn overlapping(&self, net: IpNet) -> impl Iterator<Item = (&IpNet, &OrdMap<ClusterName, u64>)> {
        let covering = (0..net.prefix_len()).filter_map(move |length| self.pod_cidrs.get_key_value(&supernet(net, length)?));
        let inside = self.pod_cidrs.range(net..).take_while(move |(other, _)| net.contains(&other.network()));
        covering.chain(inside.filter(move |(other, _)| net.contains(*other)))
    }

    /// The services and endpoint slices that have an address behind them.
    pub fn backed_by(&self, ip: IpAddr) -> impl Iterator<Item = &EntryKey> {
        self.backends.range((ip, EntryKey::lowest())..).take_while(move |(at, _)| *at == ip).map(|(_, key)| key)
    }

    fn take(&mut self, announcement: &Announcement, touched: &mut BTreeSet<Finding>) {
        let Announcement { key, old, new, .. } = announcement;
        // a value that is refused leaves the object as it was
        touched.insert(Finding::IdentityOutOfRange(key.clone()));
        let old = old.get();
        if old == new.as_ref() {
            return;
        }
        if let Some(old) = old {
            self.count(key, old, false, touched);
        }
        if let Some(new) = new {
            self.count(key, new, true, touched);
        }
        self.replace_backends(key, old.map(|old| &**old), new.as_deref());
    }

    /// Counts an object in or out, and notes what has to be judged anew.
    fn count(&mut self, key: &EntryKey, object: &Object, is_in: bool, touched: &mut BTreeSet<Finding>) {
        let cluster = &key.cluster;
        match object {
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
                let cidrs = node.ipv4_pod_cidr.iter().chain(&node.ipv6_pod_cidr).chain(&node.secondary_pod_cidrs);
                for net in cidrs.map(IpNet::trunc) {
                    self.count_pod_cidr(net, cluster, is_in);
                    touched.extend(self.overlapping(net).map(|(other, _)| Finding::OverlappingPodCidr(*other)));
                    touched.insert(Finding::OverlappingPodCidr(net));
                }
            }
            Object::Service(_) | Object::EndpointSlice(_) | Object::ServiceExport(_) | Object::Cluster(_) => {}
        }
    }

    fn count_pod_cidr(&mut self, net: IpNet, cluster: &ClusterName, is_in: bool) {
        let clusters = self.pod_cidrs.entry(net).or_default();
        recount(clusters, cluster.clone(), is_in);
        if clusters.is_empty() {
            self.pod_cidrs.remove(&net);
        }
    }

    /// Of a service of 5,000 backends of which one changed, that one is touched.
    fn replace_backends(&mut self, key: &EntryKey, old: Option<&Object>, new: Option<&Object>) {
        let (old, new) = (addresses_behind(old), addresses_behind(new));
        for ip in old.difference(&new) {
            self.backends.remove(&(*ip, key.clone()));
        }
        for ip in new.difference(&old) {
            self.backends.insert((*ip, key.clone()));
        }
    }

    /// Settles whether each of these is wrong.
    fn judge(&mut self, touched: &BTreeSet<Finding>, reading: &Reading) {
        for finding in touched {
            if self.is_wrong(finding, reading) {
                self.findings.insert(finding.clone());
            } else {
                self.findings.remove(finding);
            }
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
            Finding::OverlappingPodCidr(net) => self.pod_cidrs.contains_key(net) && self.clusters_overlapping(*net).len() > 1,
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

/// The network of a shorter length that a network is in.
fn supernet(net: IpNet, length: u8) -> Option<IpNet> {
    IpNet::new(net.addr(), length).ok().map(|net| net.trunc())
}

#[cfg(test)]
mod tests;

//! Index of the problems that only a comparison of keys shows, such as references to missing keys
//! and conflicts between clusters. It also finds services by backend address.
//!
//! A [`FindingIndex`] is built once from a whole snapshot. Later it is updated with the changes up
//! to a newer snapshot. Both are done piece by piece ([`FindingIndexBuilder`]). The index keeps
//! only the part of each object that other keys depend on ([`RecordReferences`]). It stores counts
//! and [`Finding`]s without texts; a caller makes the texts with queries to the [`Reading`].
//! Problems of a single cluster are detected from its status instead. Does no IO.

mod backends;
mod builder;
mod finding;
mod pod_cidrs;
mod slice_bytes;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::SystemTime;

use imbl::OrdMap;
use ipnet::IpNet;
use smol_str::SmolStr;

use super::{IdentityScope, Reading};
use crate::model::{ALLOCATED_IDENTITY_MIN, ClusterName, EntryKey, FindingKind, Kind, ObjectPrefix, Sequence};
use crate::view::RecordReferences;

pub use builder::FindingIndexBuilder;
pub use finding::Finding;
pub use pod_cidrs::Overlaps;

use backends::BackendIndex;
use pod_cidrs::PodCidrs;
use slice_bytes::SliceBytes;

/// Findings of one snapshot that result from comparing keys. A clone is a cheap snapshot.
#[derive(Debug, Clone)]
pub struct FindingIndex {
    /// Snapshot up to which changes were read.
    reading: Reading,
    /// Number of ipcache entries of a cluster that refer to an identity.
    by_identity: OrdMap<(u32, ClusterName), u32>,
    /// Number of ipcache entries of a cluster that refer to a host address.
    by_host: OrdMap<(IpAddr, ClusterName), u32>,
    pod_cidrs: PodCidrs,
    backends: BackendIndex,
    slice_bytes: SliceBytes,
    /// Current findings, with the time at which each was found.
    findings: OrdMap<Finding, SystemTime>,
    counts: BTreeMap<FindingKind, u64>,
}

impl FindingIndex {
    /// Returns the sequence up to which changes were read.
    #[must_use]
    pub fn position(&self) -> Sequence {
        self.reading.position().sequence
    }

    /// Returns numbers that change whenever the content of the index changes.
    #[must_use]
    pub fn content_version(&self) -> (Sequence, u64) {
        (self.position(), self.reading.content_version(&[], &Kind::ALL))
    }

    /// Returns the findings from `start` on.
    pub fn findings_from(&self, start: Option<&Finding>) -> impl Iterator<Item = &Finding> {
        let start = start.map_or(std::ops::Bound::Unbounded, |start| std::ops::Bound::Included(start.clone()));
        self.findings.range((start, std::ops::Bound::Unbounded)).map(|(finding, _)| finding)
    }

    /// Returns whether a finding is current.
    #[must_use]
    pub fn contains(&self, finding: &Finding) -> bool {
        self.findings.contains_key(finding)
    }

    /// Returns the number of findings by kind. A kind without current findings has 0 if it had any
    /// before.
    pub fn counts(&self) -> impl Iterator<Item = (FindingKind, u64)> {
        self.counts.iter().map(|(kind, count)| (*kind, *count))
    }

    /// Returns the time at which this process detected a current finding.
    #[must_use]
    pub fn detected_at(&self, finding: &Finding) -> Option<SystemTime> {
        self.findings.get(finding).copied()
    }

    /// Returns the number of ipcache entries or pod CIDRs that a finding is about, for findings
    /// that have a number.
    #[must_use]
    pub fn entry_count(&self, finding: &Finding) -> Option<u64> {
        match finding {
            Finding::DanglingIdentity(cluster, identity) => self.by_identity.get(&(*identity, cluster.clone())).copied().map(u64::from),
            Finding::DanglingHostIp(cluster, ip) => self.by_host.get(&(*ip, cluster.clone())).copied().map(u64::from),
            Finding::OverlappingNodePodCidr(cluster) => self.overlaps(cluster).map(|overlaps| overlaps.between_nodes.len() as u64),
            Finding::OverlappingPodCidr(cluster) => self.overlaps(cluster).map(|overlaps| overlaps.between_clusters.len() as u64),
            Finding::DuplicateAddress(_) | Finding::ExportConflict(_) | Finding::IdentityOutOfRange(_) | Finding::ServiceTooLarge(_) => {
                None
            }
        }
    }

    /// Returns the pod CIDRs of a cluster that overlap others.
    #[must_use]
    pub fn overlaps(&self, cluster: &ClusterName) -> Option<&Overlaps> {
        self.pod_cidrs.overlaps(cluster)
    }

    /// Returns the number of nodes of a cluster that announce a pod CIDR.
    #[must_use]
    pub fn announcing_node_count(&self, net: IpNet, cluster: &ClusterName) -> u32 {
        self.pod_cidrs.node_count(net, cluster)
    }

    /// Returns the findings that a pod CIDR of a cluster is part of.
    #[must_use]
    pub fn findings_about_pod_cidr(&self, net: IpNet, cluster: &ClusterName) -> Vec<Finding> {
        let Some(overlaps) = self.overlaps(cluster) else { return Vec::new() };
        let between_nodes = overlaps.between_nodes.binary_search(&net).is_ok().then(|| Finding::OverlappingNodePodCidr(cluster.clone()));
        let between_clusters = overlaps.between_clusters.binary_search(&net).is_ok().then(|| Finding::OverlappingPodCidr(cluster.clone()));
        between_nodes.into_iter().chain(between_clusters).collect()
    }

    /// Returns the decoded sizes of a service's endpoint slices by cluster, in bytes.
    pub fn slice_bytes(&self, service: &str) -> impl Iterator<Item = (&ClusterName, u64)> {
        self.slice_bytes.by_cluster(service)
    }

    /// Returns the services and endpoint slices that have this backend address.
    pub fn keys_with_backend(&self, ip: IpAddr) -> impl Iterator<Item = &EntryKey> {
        self.backends.keys_with_backend(ip)
    }

    /// Returns whether the backends of all clusters are known. A cluster may have more than the
    /// index can hold.
    #[must_use]
    pub fn has_all_backends(&self) -> bool {
        self.backends.is_complete()
    }

    /// Returns the prefix of an ipcache entry that was added or deleted. `None` for a pod CIDR that
    /// is derived from a node, because overlaps of pod CIDRs are separate findings.
    fn added_or_deleted_prefix(key: &EntryKey, old: Option<&RecordReferences>, new: Option<&RecordReferences>) -> Option<ObjectPrefix> {
        match (old, new) {
            (Some(RecordReferences::Ip { prefix, .. }), None) | (None, Some(RecordReferences::Ip { prefix, .. })) => {
                Some(*prefix).filter(|prefix| prefix.host || key.kind == Kind::Ip)
            }
            _ => None,
        }
    }

    /// Returns the findings that a change of a key may add or resolve.
    fn affected_findings(&self, key: &EntryKey, old: Option<&RecordReferences>, new: Option<&RecordReferences>) -> Vec<Finding> {
        let (cluster, mut findings) = (&key.cluster, Vec::new());
        for references in old.into_iter().chain(new) {
            match references {
                RecordReferences::Ip { identity, host_ip, .. } => {
                    findings.extend(is_allocated(*identity).then(|| Finding::DanglingIdentity(cluster.clone(), *identity)));
                    findings.extend(host_ip.map(|ip| Finding::DanglingHostIp(cluster.clone(), ip)));
                }
                RecordReferences::Identity(identity) => findings.push(Finding::DanglingIdentity(cluster.clone(), *identity)),
                // a node may be the host of addresses of any cluster
                RecordReferences::Node { addresses, .. } => {
                    let hosts = addresses.iter().flat_map(|ip| self.clusters_with_host(*ip).map(|cluster| (cluster.clone(), *ip)));
                    findings.extend(hosts.map(|(cluster, ip)| Finding::DanglingHostIp(cluster, ip)));
                }
                RecordReferences::Slice { service, .. } => findings.extend(service.clone().map(Finding::ServiceTooLarge)),
                RecordReferences::Backends(_) | RecordReferences::Export => {}
            }
        }
        findings
    }

    /// Returns the clusters that have ipcache entries with this host address.
    fn clusters_with_host(&self, ip: IpAddr) -> impl Iterator<Item = &ClusterName> {
        let start = (ip, EntryKey::lowest().cluster);
        self.by_host.range(start..).take_while(move |((host, _), _)| *host == ip).map(|((_, cluster), _)| cluster)
    }

    /// Replaces the old by the new references of a key.
    fn replace(&mut self, key: &EntryKey, old: Option<&RecordReferences>, new: Option<&RecordReferences>) {
        let cluster = &key.cluster;
        old.into_iter().for_each(|old| self.count_references(cluster, old, false));
        new.into_iter().for_each(|new| self.count_references(cluster, new, true));
        if key.kind == Kind::Node {
            self.pod_cidrs.replace(cluster, &key.name, &pod_cidrs_of(old), &pod_cidrs_of(new));
        }
        self.backends.replace(key, &backend_addresses(old), &backend_addresses(new));
        slice_of(old).into_iter().for_each(|(service, bytes)| self.slice_bytes.remove(cluster, service, bytes));
        slice_of(new).into_iter().for_each(|(service, bytes)| self.slice_bytes.add(cluster, service, bytes));
    }

    /// Counts the references of an ipcache entry, adding or subtracting them.
    fn count_references(&mut self, cluster: &ClusterName, references: &RecordReferences, is_added: bool) {
        let RecordReferences::Ip { identity, host_ip, .. } = references else { return };
        if is_allocated(*identity) {
            adjust_count(&mut self.by_identity, (*identity, cluster.clone()), is_added);
        }
        if let Some(host_ip) = host_ip {
            adjust_count(&mut self.by_host, (*host_ip, cluster.clone()), is_added);
        }
    }

    /// Updates the findings about overlapping pod CIDRs where they may have changed.
    fn update_overlap_findings(&mut self) {
        for cluster in self.pod_cidrs.recompute_overlaps() {
            let overlaps = self.pod_cidrs.overlaps(&cluster);
            let between_nodes = overlaps.is_some_and(|overlaps| !overlaps.between_nodes.is_empty());
            let between_clusters = overlaps.is_some_and(|overlaps| !overlaps.between_clusters.is_empty());
            self.set_finding(Finding::OverlappingNodePodCidr(cluster.clone()), between_nodes);
            self.set_finding(Finding::OverlappingPodCidr(cluster), between_clusters);
        }
    }

    fn set_finding(&mut self, finding: Finding, is_current: bool) {
        let was_current = self.contains(&finding);
        let count = self.counts.entry(finding.kind()).or_default();
        if is_current && !was_current {
            *count += 1;
            self.findings.insert(finding, SystemTime::now());
        } else if was_current && !is_current {
            *count -= 1;
            self.findings.remove(&finding);
        }
    }

    /// Adds or resolves each of the given findings.
    fn check_findings(&mut self, findings: impl IntoIterator<Item = Finding>) {
        for finding in findings {
            let is_current = self.applies(&finding);
            self.set_finding(finding, is_current);
        }
    }

    fn applies(&self, finding: &Finding) -> bool {
        let view = &self.reading.published.view;
        match finding {
            Finding::DanglingIdentity(cluster, identity) => {
                self.by_identity.contains_key(&(*identity, cluster.clone())) && !view.has_identity(*identity, cluster)
            }
            // the node may be in another cluster, because traffic reaches it there too
            Finding::DanglingHostIp(cluster, ip) => self.by_host.contains_key(&(*ip, cluster.clone())) && !view.has_any_node_at(*ip),
            Finding::DuplicateAddress(prefix) => view.clusters_at(*prefix).len() > 1,
            Finding::ExportConflict(service) => view.merged_exports(service).is_some_and(|exports| !exports.conflicts.is_empty()),
            Finding::IdentityOutOfRange(key) => self.reading.identity_out_of_range(key).is_some(),
            Finding::ServiceTooLarge(service) => self.slice_bytes.total(service) > self.reading.service_bytes_max(),
            Finding::OverlappingNodePodCidr(_) | Finding::OverlappingPodCidr(_) => self.contains(finding),
        }
    }
}

/// Returns the backend addresses of a service or endpoint slice.
fn backend_addresses(references: Option<&RecordReferences>) -> Cow<'_, BTreeSet<IpAddr>> {
    match references {
        Some(RecordReferences::Backends(addresses) | RecordReferences::Slice { addresses, .. }) => Cow::Borrowed(addresses),
        _ => Cow::default(),
    }
}

/// Returns the service of an endpoint slice, and the slice's decoded size.
fn slice_of(references: Option<&RecordReferences>) -> Option<(&SmolStr, u64)> {
    match references {
        Some(RecordReferences::Slice { service: Some(service), decoded_bytes, .. }) => Some((service, *decoded_bytes)),
        _ => None,
    }
}

fn pod_cidrs_of(references: Option<&RecordReferences>) -> Cow<'_, BTreeSet<IpNet>> {
    match references {
        Some(RecordReferences::Node { pod_cidrs, .. }) => Cow::Borrowed(pod_cidrs),
        _ => Cow::default(),
    }
}

/// Returns whether an identity is one that a cluster allocates and announces.
fn is_allocated(identity: u32) -> bool {
    identity >= ALLOCATED_IDENTITY_MIN && IdentityScope::of(identity) == IdentityScope::Global
}

/// Adds or subtracts one. Removes a count that reaches zero.
fn adjust_count<K: Ord + Clone>(counts: &mut OrdMap<K, u32>, key: K, is_added: bool) {
    match counts.get_mut(&key) {
        Some(count) if is_added => *count = count.saturating_add(1),
        Some(count) if *count > 1 => *count -= 1,
        Some(_) => drop(counts.remove(&key)),
        None if is_added => drop(counts.insert(key, 1)),
        None => {}
    }
}

#[cfg(test)]
mod tests;

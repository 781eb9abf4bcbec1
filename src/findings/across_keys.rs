//! Texts of findings across keys, made from a [`FindingIndex`].

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{NAMES_MAX, UnreadNodes, join_with_more, list_names};
use crate::dto::text::rfc3339;
use crate::handle;
use crate::handle::{FindingIndex, Reading};
use crate::model::{ClusterName, EntryKey, FindingObject, Kind, ObjectPrefix};

/// Returns a finding across keys with its text.
///
/// Returns `None` if the finding was resolved since the index was updated, or if it depends on data
/// that is still being read: an incomplete list does not show that a key is missing.
pub(crate) fn describe(finding: &handle::Finding, index: &FindingIndex, reading: &Reading, unread: &UnreadNodes) -> Option<FindingObject> {
    let described = match finding {
        handle::Finding::DanglingHostIp(cluster, ip) => dangling_host_finding(finding, cluster, *ip, reading, unread)?,
        handle::Finding::DanglingIdentity(cluster, identity) => dangling_identity_finding(finding, cluster, *identity, reading)?,
        handle::Finding::DuplicateAddress(prefix) => {
            let clusters: Vec<ClusterName> = reading.clusters_at(*prefix).into_iter().collect();
            (clusters.len() > 1).then_some(())?;
            let detail =
                format!("{} is announced by {}: agents use the entry that was written last", prefix_text(*prefix), list_names(&clusters));
            finding_across_keys(finding, &clusters, detail)
        }
        handle::Finding::ExportConflict(service) => export_conflict_finding(finding, service, reading)?,
        handle::Finding::IdentityOutOfRange(key) => {
            let (identity, range) = reading.identity_out_of_range(key)?;
            let (cluster, lowest, highest) = (&key.cluster, range.start(), range.end());
            let detail = format!(
                "{key} has identity {identity}, which is outside the range of {cluster}, {lowest} to {highest}: the key is not used"
            );
            FindingObject { key: Some(key.to_string()), ..finding_across_keys(finding, [cluster], detail) }
        }
        handle::Finding::OverlappingNodePodCidr(cluster) => {
            let nets = &index.overlaps(cluster)?.between_nodes;
            let names = nets.iter().take(NAMES_MAX).map(|net| format!("{net} ({} nodes)", index.announcing_node_count(*net, cluster)));
            let detail = format!(
                "pod CIDRs of {cluster} are shared by several of its nodes, or overlap: {}; traffic to such an address goes to the node that wrote last, and agents with encryption may drop it",
                join_with_more(names.collect(), nets.len())
            );
            finding_across_keys(finding, [cluster], detail)
        }
        handle::Finding::OverlappingPodCidr(cluster) => {
            let overlaps = index.overlaps(cluster)?;
            let (nets, others) = (&overlaps.between_clusters, overlaps.others.iter().cloned().collect::<Vec<_>>());
            let detail = format!(
                "pod CIDRs of {cluster} overlap those of {}: {}; routes and addresses of their pods collide",
                list_names(&others),
                join_with_more(nets.iter().take(NAMES_MAX).map(ToString::to_string).collect(), nets.len())
            );
            let mut clusters = others;
            clusters.push(cluster.clone());
            clusters.sort();
            finding_across_keys(finding, &clusters, detail)
        }
        handle::Finding::ServiceTooLarge(service) => service_too_large_finding(finding, service, index, reading)?,
    };
    Some(FindingObject { count: index.entry_count(finding), since: index.detected_at(finding).map(rfc3339), ..described })
}

/// Returns the finding about a host that is no node. The host may be a node of any cluster, so
/// there is no finding while the nodes of a cluster are read for the first time.
fn dangling_host_finding(
    finding: &handle::Finding,
    cluster: &ClusterName,
    ip: IpAddr,
    reading: &Reading,
    unread: &UnreadNodes,
) -> Option<FindingObject> {
    (reading.is_complete(cluster, Kind::Node) && !unread.is_loading && !reading.has_any_node_at(ip)).then_some(())?;
    let unknown = match unread.clusters.as_slice() {
        [] => String::new(),
        clusters => format!(" (the nodes of {} were never read)", list_names(clusters)),
    };
    let detail =
        format!("{cluster} has addresses on host {ip}, which is not a node of any cluster{unknown}: traffic to them has no tunnel");
    Some(finding_across_keys(finding, [cluster], detail))
}

fn dangling_identity_finding(finding: &handle::Finding, cluster: &ClusterName, identity: u32, reading: &Reading) -> Option<FindingObject> {
    (reading.is_complete(cluster, Kind::Identity) && !reading.has_identity(identity, cluster)).then_some(())?;
    let detail = format!(
        "{cluster} has addresses with identity {identity}, but does not announce that identity: policies by label do not match them"
    );
    let key = reading.ip_of_identity(identity, cluster).map(|key| key.to_string());
    Some(FindingObject { key, ..finding_across_keys(finding, [cluster], detail) })
}

fn export_conflict_finding(finding: &handle::Finding, service: &str, reading: &Reading) -> Option<FindingObject> {
    let exports = reading.merged_exports(service)?;
    let first = exports.conflicts.first()?;
    let names =
        exports.conflicts.iter().take(NAMES_MAX).map(|one| format!("{} of {} ({})", one.reason, list_names(&one.clusters), one.message));
    let names = join_with_more(names.collect(), exports.conflicts.len());
    let detail = format!("the exports of service {service} conflict: {names}; the oldest export is used");
    let in_conflict = exports.conflicts.iter().flat_map(|conflict| &conflict.clusters);
    let oldest = exports.exports.first().map(|record| &record.key.cluster);
    let clusters: BTreeSet<ClusterName> = in_conflict.chain(oldest).cloned().collect();
    let key = first.clusters.first().map(|cluster| EntryKey::new(Kind::ServiceExport, cluster.clone(), service).to_string());
    Some(FindingObject { key, ..finding_across_keys(finding, clusters, detail) })
}

fn service_too_large_finding(finding: &handle::Finding, service: &str, index: &FindingIndex, reading: &Reading) -> Option<FindingObject> {
    let total: u64 = index.slice_bytes(service).map(|(_, bytes)| bytes).sum();
    let (cluster, bytes) = index.slice_bytes(service).max_by_key(|(_, bytes)| *bytes)?;
    let bytes_max = reading.service_bytes_max();
    let key = reading.first_slice_of(service, cluster)?.to_string();
    let detail = format!(
        "the decoded endpoint slices of service {service} need {total} bytes, {bytes} of them for {cluster}, and the limit for all decoded values is {bytes_max}: the service is listed without its backends"
    );
    let found = finding_across_keys(finding, [cluster], detail);
    let advice = found.advice.replace("{cluster}", cluster.as_str()).replace("{key}", &key);
    Some(FindingObject { key: Some(key), advice, ..found })
}

/// Creates a finding across keys. Its id consists of its kind and its subject.
fn finding_across_keys(finding: &handle::Finding, clusters: impl IntoIterator<Item = impl ToString>, detail: String) -> FindingObject {
    FindingObject::new(finding.kind(), &finding.subject(), clusters, detail)
}

fn prefix_text(prefix: ObjectPrefix) -> String {
    if prefix.host { prefix.net.addr().to_string() } else { prefix.net.to_string() }
}

/// Describes the findings in `findings` that the index still has.
pub(crate) fn describe_existing(findings: &[handle::Finding], index: &FindingIndex, reading: &Reading) -> Vec<FindingObject> {
    // most addresses have no findings, and this checks all clusters
    let unread = LazyCell::new(|| UnreadNodes::new(reading));
    findings.iter().filter(|finding| index.contains(finding)).filter_map(|finding| describe(finding, index, reading, &unread)).collect()
}

/// Returns the namespace and the name in the key of a service or endpoint slice.
pub(crate) fn namespace_and_name(key: &EntryKey) -> Option<(&str, &str)> {
    key.name.split_once('/')
}

//! Findings in words: what is wrong, and what to do about it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::dto::problems::Finding;
use crate::handle;
use crate::handle::{ClusterReading, Reading, Survey};
use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Phase, WentBack};

/// How many names a text has before it says how many more there are: a line for people.
const SHOWN_MAX: usize = 5;

/// How long it is told that an etcd went back, since it did last: it is over at once, and who is called for it comes within the hour. Several
/// etcds behind one address do it again with each connection.
const WENT_BACK_TOLD: Duration = Duration::from_secs(3_600);

/// What else may be behind pod CIDRs that overlap: ranges that no pod has an address from (cilium/cilium#46179).
const MADE_UP: &str =
    "with ENI, Azure or multi-pool IPAM some versions of Cilium announce made-up ones (cilium/cilium#46179): upgrade those";

/// A finding across keys. `None` where what it rests on is just being read, as a list that is not complete says nothing of what is absent, and
/// where it is over since the survey.
pub(crate) fn told(finding: &handle::Finding, survey: &Survey, reading: &Reading) -> Option<Finding> {
    let (clusters, detail, key) = match finding {
        handle::Finding::DanglingHostIp(cluster, ip) => {
            (reading.is_complete(cluster, Kind::Node) && !reading.has_node_at(*ip, cluster)).then_some(())?;
            let detail = format!(
                "{cluster} has addresses behind host {ip}, and no node of that address: traffic to them has no tunnel; see whether the node was removed or its agent does not announce it"
            );
            (vec![cluster.clone()], detail, None)
        }
        handle::Finding::DanglingIdentity(cluster, identity) => {
            (reading.is_complete(cluster, Kind::Identity) && !reading.has_identity(*identity, cluster)).then_some(())?;
            let detail = format!(
                "{cluster} has addresses of identity {identity}, and does not announce that identity: policies by label do not match them; see whether its operator removed an identity that is still in use"
            );
            (vec![cluster.clone()], detail, reading.ip_of_identity(*identity, cluster))
        }
        handle::Finding::DuplicateAddress(prefix) => {
            let clusters: Vec<ClusterName> = reading.clusters_at(*prefix).into_iter().collect();
            (clusters.len() > 1).then_some(())?;
            let detail = format!(
                "{} is claimed by {}: agents use whichever wrote last; give the clusters address ranges that do not overlap",
                text_of(*prefix),
                listed(&clusters)
            );
            (clusters, detail, None)
        }
        handle::Finding::IdentityOutOfRange(key) => {
            let (identity, range) = reading.identity_out_of_range(key)?;
            let cluster = &key.cluster;
            let detail = format!(
                "{key} has identity {identity}, and {cluster} may only have {} to {}: the key is not used; see whether the cluster's id was changed while it was running",
                range.start(),
                range.end()
            );
            (vec![cluster.clone()], detail, Some(key.clone()))
        }
        handle::Finding::OverlappingNodePodCidr(cluster) => {
            let nets = &survey.overlaps(cluster)?.between_nodes;
            let shown = nets.iter().take(SHOWN_MAX).map(|net| format!("{net} ({} nodes)", survey.announcing_nodes(*net, cluster)));
            let detail = format!(
                "pod CIDRs of {cluster} belong to several of its nodes, or overlap another's: {}; what is for such an address goes to whichever node wrote last, and agents that encrypt may drop it; see that each node has ranges of its own; {MADE_UP}",
                and_more(shown.collect(), nets.len())
            );
            (vec![cluster.clone()], detail, None)
        }
        handle::Finding::OverlappingPodCidr(cluster) => {
            let overlaps = survey.overlaps(cluster)?;
            let (nets, others) = (&overlaps.between_clusters, overlaps.others.iter().cloned().collect::<Vec<_>>());
            let detail = format!(
                "pod CIDRs of {cluster} overlap those of {}: {}; routes and addresses of their pods collide; give the clusters pod ranges that do not overlap; {MADE_UP}",
                listed(&others),
                and_more(nets.iter().take(SHOWN_MAX).map(ToString::to_string).collect(), nets.len())
            );
            let mut clusters = others;
            clusters.push(cluster.clone());
            clusters.sort();
            (clusters, detail, None)
        }
    };
    Some(Finding {
        id: finding.to_string(),
        kind: finding.kind_name(),
        clusters: clusters.iter().map(ToString::to_string).collect(),
        detail,
        count: survey.entry_count(finding),
        key: key.map(|key| key.to_string()),
    })
}

/// What is wrong with clusters as a whole, by name. There are few clusters, so this is read from their state when it is asked for.
pub(crate) fn of_clusters(reading: &Reading) -> Vec<Finding> {
    let clusters: Vec<ClusterReading> = reading.cluster_names().iter().filter_map(|name| reading.cluster(name)).collect();
    let mut found: Vec<Finding> = clusters.iter().flat_map(of_cluster).collect();
    found.extend(duplicate_ids(&clusters));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found
}

fn of_cluster(cluster: &ClusterReading) -> Vec<Finding> {
    let name = &cluster.name;
    let one =
        |kind, detail, count| Finding { id: format!("{kind}/{name}"), kind, clusters: vec![name.to_string()], detail, count, key: None };
    let mut found = Vec::new();
    let Some(status) = &cluster.status else { return found };
    if status.config_gone {
        let detail = format!(
            "the cluster config of {name} is gone from its etcd, and the last one stays in use: see whether its clustermesh-apiserver or KVStoreMesh is alive"
        );
        found.push(one("clusterConfigLost", detail, None));
    }
    if let Some(refused) = status.refused.iter().find(|refused| refused.kind == Kind::Cluster) {
        let detail = format!(
            "the cluster config of {name} cannot be used: {}; what is held of it stays as it is; see what wrote {} (its bytes: /v1/rejected)",
            refused.reason,
            String::from_utf8_lossy(&refused.source_key)
        );
        found.push(one("clusterConfigRefused", detail, None));
    }
    if let Some(excess) = &status.too_large {
        found.push(one("clusterTooLarge", format!("{name} is not read: {excess}"), None));
    }
    if let Some(WentBack { error, count, .. }) = status.went_back.as_ref().filter(|one| one.last.elapsed() < WENT_BACK_TOLD) {
        let detail = format!(
            "{error}; {name} is read anew each time ({count} since meshkeep started), and what agents hold of it may be older than they know: give each etcd an address of its own, and restart agents after a restore"
        );
        found.push(one("revisionWentBack", detail, None));
    }
    if status.phase == Phase::SourceLost {
        let detail =
            format!("the data of {name} stands on leases that nobody renews: it is served as it was; see whether its KVStoreMesh is alive");
        found.push(one("sourceLost", detail, None));
    }
    let held: usize = status.resources.iter().map(|resource| resource.held_count).sum();
    if held > 0 {
        let detail = format!(
            "{held} keys of {name} went with the lease of the process that wrote them and are kept until it is back (docs/holds.md)"
        );
        found.push(one("heldEntries", detail, Some(held as u64)));
    }
    found
}

/// Ids that several clusters claim: their identities mean different labels under the same numbers.
fn duplicate_ids(clusters: &[ClusterReading]) -> impl Iterator<Item = Finding> {
    let mut by_id: BTreeMap<u32, Vec<ClusterName>> = BTreeMap::new();
    for cluster in clusters {
        // of two that claim one id the second is refused, and keeps the one that it had
        let claimed = cluster.status.as_ref().and_then(|status| status.claimed_id);
        let id = claimed.or(cluster.record.config.as_ref().map(|config| config.id));
        if let Some(id) = id.map(|id| id.0).filter(|id| *id > 0) {
            by_id.entry(id).or_default().push(cluster.name.clone());
        }
    }
    by_id.into_iter().filter(|(_, clusters)| clusters.len() > 1).map(|(id, clusters)| Finding {
        id: format!("duplicateClusterID/{id}"),
        kind: "duplicateClusterID",
        clusters: clusters.iter().map(ToString::to_string).collect(),
        detail: format!("{} all have the cluster id {id}: give each cluster of the mesh an id of its own", listed(&clusters)),
        count: None,
        key: None,
    })
}

fn text_of(prefix: ObjectPrefix) -> String {
    if prefix.host { prefix.net.addr().to_string() } else { prefix.net.to_string() }
}

/// Names for people; of many the first few.
fn listed(clusters: &[ClusterName]) -> String {
    and_more(clusters.iter().take(SHOWN_MAX).map(ToString::to_string).collect(), clusters.len())
}

/// The first few of so many.
fn and_more(shown: Vec<String>, count: usize) -> String {
    let more = count.saturating_sub(shown.len());
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Those of some possible findings that there are.
pub(crate) fn about(findings: &[handle::Finding], survey: &Survey, reading: &Reading) -> Vec<Finding> {
    findings.iter().filter(|finding| survey.has(finding)).filter_map(|finding| told(finding, survey, reading)).collect()
}

/// A key of a service or endpoint slice, taken apart.
pub(crate) fn namespace_and_name(key: &EntryKey) -> Option<(&str, &str)> {
    key.name.split_once('/')
}

//! Findings about single clusters. There are few clusters, so the findings are derived from their
//! state for each request.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::expiry::expiry_finding;
use super::finding;
use super::list_names;
use super::writer::silent_writer_finding;
use crate::dto::text::rfc3339;
use crate::handle::{ClusterReading, REJECTED_COUNTED_MAX, Reading};
use crate::model::{ClusterName, ClusterStatus, FindingObject, Kind, MissingConfigState, Phase, RevisionRollback};

/// Maximum time that a cluster may be in a phase before it lists. Agents wait a minute for a
/// cluster (`clustermesh-sync-timeout`).
pub(super) const PHASE_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum time that a cluster may list: a million keys over a slow line need some minutes.
pub(super) const LISTING_TIME_MAX: Duration = Duration::from_secs(600);

/// Time for which a revision that went back is reported.
///
/// The state itself is over at once; an operator reacts within an hour. If several etcds are behind
/// one address, it happens again with each connection.
const WENT_BACK_REPORTED_MAX: Duration = Duration::from_secs(3_600);

/// Returns the findings about all clusters.
pub(super) fn cluster_findings(reading: &Reading) -> Vec<FindingObject> {
    let clusters: Vec<ClusterReading> = reading.cluster_names().iter().filter_map(|name| reading.cluster(name)).collect();
    let mut findings: Vec<FindingObject> = clusters.iter().flat_map(|cluster| findings_of_cluster(cluster, reading)).collect();
    findings.extend(duplicate_id_findings(&clusters));
    findings
}

fn findings_of_cluster(cluster: &ClusterReading, reading: &Reading) -> Vec<FindingObject> {
    let name = &cluster.name;
    let mut findings: Vec<FindingObject> = rejected_values_finding(name, reading).into_iter().collect();
    let Some(status) = &cluster.status else { return findings };
    findings.extend(connection_finding(name, status));
    if let Some(slips) = &status.misspelt_keys {
        let detail = format!("the client file of {name} has a key that is not used: {slips}");
        let advice = "correct the key: meshkeep reads the file again when it changes";
        findings.push(finding("clusterFileMisspelt", name.as_str(), [name], detail, advice));
    }
    findings.extend(certificate_finding(name, status));
    findings.extend(config_findings(name, status));
    findings.extend(silent_writer_finding(name, status));
    if status.phase == Phase::SourceLost {
        let detail = format!("the leases of {name} are no longer renewed: meshkeep serves its last known state");
        let advice = format!("check that the KVStoreMesh of {name}, or its clustermesh-apiserver, is running");
        findings.push(FindingObject {
            since: wall_clock_text(status.phase_since),
            ..finding("sourceLost", name.as_str(), [name], detail, advice)
        });
    }
    let held: usize = status.resources.iter().map(|resource| resource.held_count).sum();
    if held > 0 {
        let detail = format!("{held} keys of {name} disappeared with the lease of their writer and are held until the writer is back");
        let advice = "wait until its KVStoreMesh writes or deletes them; see docs/use/holds.md";
        findings.push(FindingObject { count: Some(held as u64), ..finding("heldEntries", name.as_str(), [name], detail, advice) });
    }
    if status.progress_unanswered {
        let detail = format!(
            "the etcd of {name} sends changes but does not answer progress requests: meshkeep cannot distinguish an idle source from a broken connection"
        );
        let advice =
            "check whether a proxy in between buffers streams; connect to etcd directly, or make the proxy forward gRPC without buffering";
        findings.push(finding("progressUnanswered", name.as_str(), [name], detail, advice));
    }
    findings
}

/// Returns the finding about the connection to a cluster: its client file, its endpoints, its
/// access rights, or a phase that lasts too long.
fn connection_finding(name: &ClusterName, status: &ClusterStatus) -> Option<FindingObject> {
    let error = || status.last_error.as_deref().unwrap_or("there is no error message");
    if let Some(error) = &status.file_error {
        let detail = format!("the client file of {name} cannot be used: {error}");
        return Some(finding(
            "clusterFileInvalid",
            name.as_str(),
            [name],
            detail,
            "correct the file: meshkeep reads it again when it changes",
        ));
    }
    if let Some(state) = &status.missing_config {
        return missing_config_finding(name, status, state);
    }
    // these states have their own findings
    let has_own_finding = status.too_large.is_some() || status.refused.iter().any(|refused| refused.kind == Kind::Cluster);
    if has_own_finding || matches!(status.phase, Phase::Live | Phase::SourceLost) {
        return None;
    }
    match status.failed_in {
        Some(Phase::WaitingForFiles | Phase::Connecting) if matches!(status.phase, Phase::BackingOff | Phase::Connecting) => {
            let detail = format!("{name} cannot be reached: {}", error());
            let advice = "run `meshkeep doctor`, which tests each step of the connection; meshkeep serves the last known state";
            return Some(finding("clusterUnreachable", name.as_str(), [name], detail, advice));
        }
        Some(Phase::ReadingConfig | Phase::WaitingForCanary | Phase::Listing) => {
            let detail = format!("{name} can be reached but not read: {}", error());
            let advice =
                "run `meshkeep doctor`, which shows what the user may read and what is missing; meshkeep serves the last known state";
            return Some(finding("clusterUnreadable", name.as_str(), [name], detail, advice));
        }
        Some(_) | None => {}
    }
    let limit = if status.phase == Phase::Listing { LISTING_TIME_MAX } else { PHASE_TIME_MAX };
    if status.phase_since.elapsed() < limit {
        return None;
    }
    let detail = format!("{name} has been {} for more than {} s: {}", status.phase.api_name(), limit.as_secs(), error());
    let advice = match status.phase {
        Phase::WaitingForFiles => "put the certificate or key at the path that the client file names",
        Phase::ReadingConfig => "check that its clustermesh-apiserver has written cilium/cluster-config, and that the user may read it",
        Phase::WaitingForCanary => "check that its clustermesh-apiserver or KVStoreMesh has finished its first sync",
        _ => "run `meshkeep doctor`, which tests each step of the connection",
    };
    Some(FindingObject { since: wall_clock_text(status.phase_since), ..finding("clusterStuck", name.as_str(), [name], detail, advice) })
}

/// Returns the finding about an etcd without the cluster's config.
///
/// It is reported at once if the etcd probably belongs to another cluster, or if the user may not
/// read the config. Otherwise it is reported after a minute, because a KVStoreMesh that restarts
/// writes the configs of its clusters one after another.
fn missing_config_finding(name: &ClusterName, status: &ClusterStatus, state: &MissingConfigState) -> Option<FindingObject> {
    let MissingConfigState { since: missing_since, missing } = state;
    let is_certain = !status.config_deleted && (missing.denied || !missing.others.is_empty());
    if !is_certain && missing_since.elapsed() < PHASE_TIME_MAX {
        return None;
    }
    let rest = if status.config_deleted { "; meshkeep keeps the last known state" } else { "" };
    let detail = format!("{name} is not read: {}{rest}", missing.describe(name));
    let finding = finding("clusterConfigMissing", name.as_str(), [name], detail, missing.advice(name));
    Some(FindingObject { since: wall_clock_text(*missing_since), ..finding })
}

/// Returns the finding about the cluster's certificate that expires first.
fn certificate_finding(name: &ClusterName, status: &ClusterStatus) -> Option<FindingObject> {
    let what = format!("the client certificate or the CA for {name}");
    let advice = format!("renew it and replace the file that the client file of {name} names: the next connection uses it");
    expiry_finding((name.as_str(), &what), [name], status.certificate_expiry?, &advice)
}

/// Returns the findings about a cluster's config, its size and its revisions.
fn config_findings(name: &ClusterName, status: &ClusterStatus) -> Vec<FindingObject> {
    let mut findings = Vec::new();
    let has_own_finding = status.missing_config.as_ref().is_some_and(|state| missing_config_finding(name, status, state).is_some());
    if status.config_deleted && !has_own_finding {
        let detail = format!("the cluster config of {name} was deleted from its etcd: meshkeep uses the last one");
        let advice = "check that its clustermesh-apiserver or KVStoreMesh is running";
        findings.push(finding("clusterConfigLost", name.as_str(), [name], detail, advice));
    }
    if let Some(refused) = status.refused.iter().find(|refused| refused.kind == Kind::Cluster) {
        let key = String::from_utf8_lossy(&refused.source_key);
        let detail = format!("the cluster config of {name} cannot be used: {}; meshkeep keeps the last known state", refused.reason);
        let advice = format!("check what wrote {key} (/v1/rejected has its value)");
        let since = Some(rfc3339(refused.first_seen));
        findings.push(FindingObject { since, ..finding("clusterConfigRefused", name.as_str(), [name], detail, advice) });
    }
    if let Some(excess) = &status.too_large {
        let advice = "find out what fills its etcd, or raise --cluster-max-keys or --cluster-max-bytes";
        findings.push(finding("clusterTooLarge", name.as_str(), [name], format!("{name} is not read: {excess}"), advice));
    }
    if let Some(RevisionRollback { error, count, last }) =
        status.revision_rollback.as_ref().filter(|one| one.last.elapsed() < WENT_BACK_REPORTED_MAX)
    {
        let detail = format!(
            "{error}; meshkeep reads {name} again each time ({count} since the start), and agents may have older data than they expect"
        );
        let advice = "give each etcd its own address, and restart agents after a restore";
        findings
            .push(FindingObject { since: wall_clock_text(*last), ..finding("revisionWentBack", name.as_str(), [name], detail, advice) });
    }
    findings
}

/// Returns the finding about rejected values of a cluster.
fn rejected_values_finding(name: &ClusterName, reading: &Reading) -> Option<FindingObject> {
    let (count, first) = reading.rejected_of(name);
    let key = first?.to_string();
    let detail = match count {
        1 => format!("a value of {name} was rejected: the last good value stays in use"),
        REJECTED_COUNTED_MAX.. => format!("{count} or more values of {name} were rejected: the last good values stay in use"),
        _ => format!("{count} values of {name} were rejected: the last good values stay in use"),
    };
    let advice = format!("/v1/rejected?cluster={name} lists them with the reasons; check what wrote them");
    let count = Some(count as u64);
    Some(FindingObject { count, key: Some(key), ..finding("rejectedValues", name.as_str(), [name], detail, advice) })
}

/// Returns the findings about ids that several clusters have. The identities of such clusters have
/// the same numbers with different labels.
fn duplicate_id_findings(clusters: &[ClusterReading]) -> impl Iterator<Item = FindingObject> {
    let mut by_id: BTreeMap<u32, Vec<ClusterName>> = BTreeMap::new();
    for cluster in clusters {
        // if two clusters claim an id, the second is refused and keeps its earlier id
        let claimed = cluster.status.as_ref().and_then(|status| status.claimed_id);
        let id = claimed.or(cluster.record.config.as_ref().map(|config| config.id));
        if let Some(id) = id.map(|id| id.0).filter(|id| *id > 0) {
            by_id.entry(id).or_default().push(cluster.name.clone());
        }
    }
    by_id.into_iter().filter(|(_, clusters)| clusters.len() > 1).map(|(id, clusters)| {
        let detail = format!("{} all have the cluster id {id}", list_names(&clusters));
        finding("duplicateClusterID", &id.to_string(), &clusters, detail, "give each cluster of the mesh its own id")
    })
}

/// Converts a time of the monotonic clock to wall-clock time as text.
fn wall_clock_text(at: Instant) -> Option<String> {
    SystemTime::now().checked_sub(at.elapsed()).map(rfc3339)
}

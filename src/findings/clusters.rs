//! Findings about single clusters, derived from their statuses and from their rejected values.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::expiry::expiry_finding;
use super::list_names;
use super::writer::silent_writer_finding;
use crate::dto::text::rfc3339;
use crate::handle::{ClusterSummary, REJECTED_COUNTED_MAX, Reading};
use crate::model::{ClusterName, ClusterStatus, Divergence, FindingKind, FindingObject, Kind, MissingConfigState, Phase, RevisionRollback};

/// Maximum time that a cluster may stay in one of the phases before `listing`; then it is reported.
/// Agents wait a minute for a cluster (`clustermesh-sync-timeout`).
pub(super) const PHASE_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum time that a cluster may stay in the phase `listing`; then it is reported. A million keys
/// over a slow line need some minutes.
pub(super) const LISTING_TIME_MAX: Duration = Duration::from_secs(600);

/// Time for which a revision that went back is reported.
///
/// The state itself lasts only a moment, and an operator reacts within an hour. If several etcds
/// are behind one address, it happens again with each connection.
const ROLLBACK_REPORTED_MAX: Duration = Duration::from_secs(3_600);

/// Time for which a difference from the source is reported. The difference itself is repaired
/// within seconds, and an operator reacts within an hour.
const DIVERGENCE_REPORTED_MAX: Duration = Duration::from_secs(3_600);

/// Returns the findings that follow from the statuses of all clusters.
pub(super) fn status_findings(clusters: &[ClusterSummary]) -> Vec<FindingObject> {
    let mut findings = Vec::new();
    // clusters by id: if two clusters claim an id, the second is refused and keeps its earlier id
    let mut by_id: BTreeMap<u32, Vec<&ClusterName>> = BTreeMap::new();
    for cluster in clusters {
        let status = cluster.status.as_ref().map(|status| status.borrow());
        findings.extend(status.iter().flat_map(|status| findings_of_cluster(&cluster.name, status)));
        let id = status.and_then(|status| status.claimed_id).or(cluster.config_id);
        if let Some(id) = id.filter(|id| id.0 > 0) {
            by_id.entry(id.0).or_default().push(&cluster.name);
        }
    }
    findings.extend(by_id.into_iter().filter(|(_, clusters)| clusters.len() > 1).map(|(id, clusters)| duplicate_id_finding(id, clusters)));
    findings
}

/// Returns the findings about rejected values, one for each cluster that has any.
pub(super) fn rejected_values_findings(reading: &Reading) -> Vec<FindingObject> {
    reading.clusters_with_rejected(&Kind::ALL).iter().filter_map(|name| rejected_values_finding(name, reading)).collect()
}

fn findings_of_cluster(name: &ClusterName, status: &ClusterStatus) -> Vec<FindingObject> {
    let mut findings: Vec<FindingObject> = connection_finding(name, status).into_iter().collect();
    if let Some(warnings) = &status.file_warnings {
        let detail = format!("the client file of {name} has a key that is not used: {warnings}");
        findings.push(cluster_finding(FindingKind::ClusterFileMisspelt, name, detail));
    }
    findings.extend(certificate_finding(name, status));
    findings.extend(config_findings(name, status));
    findings.extend(silent_writer_finding(name, status));
    if status.phase == Phase::SourceLost {
        let detail = format!("the leases of {name} are no longer renewed: meshkeep serves its last known state");
        let since = wall_clock_text(status.phase_since);
        findings.push(FindingObject { since, ..cluster_finding(FindingKind::SourceLost, name, detail) });
    }
    findings.extend(divergence_finding(name, status));
    let held: usize = status.resources.iter().map(|resource| resource.held_count).sum();
    if held > 0 {
        let detail = format!("{held} keys of {name} disappeared with the lease of their writer and are held until the writer is back");
        findings.push(FindingObject { count: Some(held as u64), ..cluster_finding(FindingKind::HeldEntries, name, detail) });
    }
    if status.progress_unanswered {
        let detail = format!(
            "the etcd of {name} sends changes but does not answer progress requests: meshkeep cannot distinguish an idle source from a broken connection"
        );
        findings.push(cluster_finding(FindingKind::ProgressUnanswered, name, detail));
    }
    findings
}

/// Returns the finding about the connection to a cluster: its client file, its endpoints, its
/// access rights, or a phase that lasts too long.
fn connection_finding(name: &ClusterName, status: &ClusterStatus) -> Option<FindingObject> {
    let error = || status.last_error.as_deref().unwrap_or("there is no error message");
    if let Some(error) = &status.file_error {
        let detail = format!("the client file of {name} cannot be used: {error}");
        return Some(cluster_finding(FindingKind::ClusterFileInvalid, name, detail));
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
            return Some(cluster_finding(FindingKind::ClusterUnreachable, name, detail));
        }
        Some(Phase::ReadingConfig | Phase::WaitingForCanary | Phase::Listing) => {
            let detail = format!("{name} can be reached but not read: {}", error());
            return Some(cluster_finding(FindingKind::ClusterUnreadable, name, detail));
        }
        Some(_) | None => {}
    }
    let limit = if status.phase == Phase::Listing { LISTING_TIME_MAX } else { PHASE_TIME_MAX };
    if status.phase_since.elapsed() < limit {
        return None;
    }
    let detail = format!("{name} has been {} for more than {} s: {}", status.phase, limit.as_secs(), error());
    let stuck = cluster_finding(FindingKind::ClusterStuck, name, detail);
    let advice = match status.phase {
        Phase::WaitingForFiles => "put the certificate or key at the path that the client file names".to_owned(),
        Phase::ReadingConfig => {
            "check that its clustermesh-apiserver has written cilium/cluster-config, and that the user may read it".to_owned()
        }
        Phase::WaitingForCanary => "check that its clustermesh-apiserver or KVStoreMesh has finished its first sync".to_owned(),
        _ => stuck.advice,
    };
    Some(FindingObject { since: wall_clock_text(status.phase_since), advice, ..stuck })
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
    let (since, advice) = (wall_clock_text(*missing_since), missing.advice(name));
    Some(FindingObject { since, advice, ..cluster_finding(FindingKind::ClusterConfigMissing, name, detail) })
}

/// Returns the finding about the client certificate for a cluster or its CA, whichever expires
/// first.
fn certificate_finding(name: &ClusterName, status: &ClusterStatus) -> Option<FindingObject> {
    let expiry = status.certificate_expiry?;
    let what = format!("the client certificate or the CA for {name}");
    expiry_finding((name.as_str(), &what), [name], expiry)
}

/// Returns the findings about a cluster's config, its size and its revisions.
fn config_findings(name: &ClusterName, status: &ClusterStatus) -> Vec<FindingObject> {
    let mut findings = Vec::new();
    let has_own_finding = status.missing_config.as_ref().is_some_and(|state| missing_config_finding(name, status, state).is_some());
    if status.config_deleted && !has_own_finding {
        let detail = format!("the cluster config of {name} was deleted from its etcd: meshkeep uses the last one");
        findings.push(cluster_finding(FindingKind::ClusterConfigLost, name, detail));
    }
    if let Some(refused) = status.refused.iter().find(|refused| refused.kind == Kind::Cluster) {
        let detail = format!("the cluster config of {name} cannot be used: {}; meshkeep keeps the last known state", refused.reason);
        let since = Some(rfc3339(refused.first_seen));
        findings.push(FindingObject { since, ..cluster_finding(FindingKind::ClusterConfigRefused, name, detail) });
    }
    if let Some(excess) = &status.too_large {
        findings.push(cluster_finding(FindingKind::ClusterTooLarge, name, format!("{name} is not read: {excess}")));
    }
    if let Some(RevisionRollback { error, count, last }) =
        status.revision_rollback.as_ref().filter(|one| one.last.elapsed() < ROLLBACK_REPORTED_MAX)
    {
        let detail = format!(
            "{error}; meshkeep reads {name} again each time ({count} since the start), and agents may have older data than they expect"
        );
        findings.push(FindingObject { since: wall_clock_text(*last), ..cluster_finding(FindingKind::RevisionWentBack, name, detail) });
    }
    findings
}

/// Returns the finding about entries that differed from the source.
fn divergence_finding(name: &ClusterName, status: &ClusterStatus) -> Option<FindingObject> {
    let recent = |kind: Kind| {
        let divergence = status.resource(kind).verification.divergence.as_ref();
        divergence.filter(|one| one.found.elapsed() < DIVERGENCE_REPORTED_MAX).map(|one| (kind, one))
    };
    let all: Vec<(Kind, &Divergence)> = Kind::ALL.into_iter().filter_map(recent).collect();
    let newest = all.iter().map(|(_, divergence)| divergence.found).max()?;
    let describe = |(kind, divergence): &(Kind, &Divergence)| {
        let Divergence { keys, key_count, revision, .. } = divergence;
        let more = if *key_count > keys.len() as u64 { " and others" } else { "" };
        format!("{key_count} of {kind} at revision {revision} ({}{more})", keys.join(", "))
    };
    let described: Vec<String> = all.iter().map(describe).collect();
    let detail = format!(
        "the mirror of {name} differed from its source, in two comparisons: {}; meshkeep lists the keys again",
        described.join("; ")
    );
    Some(FindingObject {
        since: wall_clock_text(newest),
        count: Some(all.iter().map(|(_, divergence)| divergence.key_count).sum()),
        key: all.iter().find_map(|(_, divergence)| divergence.keys.first().cloned()),
        ..cluster_finding(FindingKind::MirrorDiverged, name, detail)
    })
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
    let count = Some(count as u64);
    Some(FindingObject { count, key: Some(key), ..cluster_finding(FindingKind::RejectedValues, name, detail) })
}

/// Returns the finding about an id that several clusters have. The identities of such clusters have
/// the same numbers with different labels.
fn duplicate_id_finding(id: u32, clusters: Vec<&ClusterName>) -> FindingObject {
    let clusters: Vec<ClusterName> = clusters.into_iter().cloned().collect();
    let detail = format!("{} all have the cluster id {id}", list_names(&clusters));
    FindingObject::new(FindingKind::DuplicateClusterId, &id.to_string(), &clusters, detail)
}

/// Returns a finding about one cluster.
fn cluster_finding(kind: FindingKind, name: &ClusterName, detail: String) -> FindingObject {
    FindingObject::new(kind, name.as_str(), [name], detail)
}

/// Converts a time of the monotonic clock to wall-clock time as text.
fn wall_clock_text(at: Instant) -> Option<String> {
    SystemTime::now().checked_sub(at.elapsed()).map(rfc3339)
}

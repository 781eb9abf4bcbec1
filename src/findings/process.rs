//! Findings about this process: its config directory, its store and its own files.

use super::expiry::expiry_finding;
use super::{FindingSources, list_names};
use crate::dto::text::rfc3339;
use crate::handle::{HistoryStatus, PersistState};
use crate::model::{ClusterName, FindingKind, FindingObject};
use crate::server::TLS_CERTIFICATE;

const NO_CLUSTERS: [&str; 0] = [];

/// Returns the findings about the history.
fn history_findings(history: &HistoryStatus) -> impl Iterator<Item = FindingObject> {
    let unwritable = history.failure.as_ref().map(|error| {
        let detail = format!("the history is not written: {error}. Answers about the time of the lost changes are incomplete");
        FindingObject::new(FindingKind::HistoryUnwritable, "", NO_CLUSTERS, detail)
    });
    let losses = (!history.damaged.is_empty()).then(|| {
        let count = history.damaged.len();
        let segments = if count == 1 { "segment" } else { "segments" };
        let names = list_names(&history.damaged);
        let detail = format!("meshkeep cannot read {count} {segments} of the history: {names}. Answers about their time are incomplete");
        let count = u64::try_from(count).ok();
        FindingObject { count, ..FindingObject::new(FindingKind::HistoryLosses, "", NO_CLUSTERS, detail) }
    });
    unwritable.into_iter().chain(losses)
}

/// Returns the findings about this process.
pub(super) fn process_findings(sources: &FindingSources) -> Vec<FindingObject> {
    let (handle, files) = (&sources.handle, &sources.files);
    let mut findings = Vec::new();
    let directory = handle.directory();
    if let Some(error) = &directory.error {
        let detail = format!("the config directory cannot be read: {error}; meshkeep keeps all clusters");
        findings.push(FindingObject::new(FindingKind::DirectoryUnreadable, "", NO_CLUSTERS, detail));
    }
    for (file, reason) in &directory.invalid {
        let cluster = ClusterName::parse(file).ok();
        let advice = "correct the file, or remove it: meshkeep reads it again when it changes".to_owned();
        let detail = format!("the file {file} cannot be used: {reason}");
        findings.push(FindingObject { advice, ..FindingObject::new(FindingKind::ClusterFileInvalid, file, cluster, detail) });
    }
    if let Some(none) = handle.missing_clusters().filter(|none| none.is_overdue) {
        let detail = format!("there is no remote cluster to mirror: {}", none.reason);
        let finding = FindingObject::new(FindingKind::NoClusters, "", NO_CLUSTERS, detail);
        findings.push(FindingObject { since: Some(rfc3339(none.since)), ..finding });
    }
    let unwritable = |detail: String| FindingObject::new(FindingKind::StoreUnwritable, "", NO_CLUSTERS, detail);
    match handle.persistence() {
        PersistState::Healthy => {}
        PersistState::Failing { error } => {
            findings.push(unwritable(format!("the store cannot be written: {error}; new changes are only in memory or in the log")));
        }
        PersistState::Stopped { error } => {
            let advice = "free space on the disk of --data-dir, then restart meshkeep".to_owned();
            findings.push(FindingObject { advice, ..unwritable(format!("meshkeep no longer writes the store: {error}")) });
        }
    }
    let losses = handle.store_report().losses;
    if !losses.is_empty() {
        let detail = format!("the store was damaged before the start: {}", losses.join("; "));
        findings.push(FindingObject::new(FindingKind::StoreLosses, "", NO_CLUSTERS, detail));
    }
    findings.extend(handle.history_status().iter().flat_map(history_findings));
    // it is not an error if another meshkeep is the leader
    if let Some(error) = handle.reflection().and_then(|reflection| reflection.error) {
        let detail = format!("the etcd of reflect --to cannot be written: {error}; its keys are no longer updated");
        findings.push(FindingObject::new(FindingKind::TargetUnwritable, "", NO_CLUSTERS, detail));
    }
    if handle.is_log_failing() {
        let detail = "the store's log cannot be written: after a crash, subscribers with a newer position get a reset";
        findings.push(FindingObject::new(FindingKind::LogGap, "", NO_CLUSTERS, detail));
    }
    for (name, failure) in files.states() {
        let Some(failure) = failure else { continue };
        let detail = format!("the {name} has changed and cannot be used: {failure}; meshkeep uses the last good content");
        findings.push(FindingObject::new(FindingKind::StaleFile, name, NO_CLUSTERS, detail));
    }
    let expiry = sources.certificate.as_ref().and_then(|certificate| certificate.current().expiry);
    let expiring = expiry.and_then(|expiry| expiry_finding((TLS_CERTIFICATE, "the certificate of the API"), NO_CLUSTERS, expiry));
    let advice = "renew it and replace the files of --tls-cert and --tls-key: meshkeep uses new files within a second";
    findings.extend(expiring.map(|finding| FindingObject { advice: advice.to_owned(), ..finding }));
    let omitted_count = sources.start_times.omitted_count();
    if omitted_count > 0 {
        let detail = format!("the change stream omits {omitted_count} findings, because there are too many: `kind=problem` has the others");
        let finding = FindingObject::new(FindingKind::FindingsOmitted, "", NO_CLUSTERS, detail);
        findings.push(FindingObject { count: Some(omitted_count), ..finding });
    }
    findings
}

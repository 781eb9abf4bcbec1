//! Findings about this process: its config directory, its store and its own files.

use super::FindingSources;
use super::expiry::expiry_finding;
use super::finding;
use crate::dto::text::rfc3339;
use crate::handle::PersistState;
use crate::model::{ClusterName, FindingObject};
use crate::server::TLS_CERTIFICATE;

/// Returns the findings about this process.
pub(super) fn process_findings(sources: &FindingSources) -> Vec<FindingObject> {
    const NO_CLUSTERS: [&str; 0] = [];
    let (handle, files) = (&sources.handle, &sources.files);
    let mut findings = Vec::new();
    let directory = handle.directory();
    if let Some(error) = &directory.error {
        let detail = format!("the config directory cannot be read: {error}; meshkeep keeps all clusters");
        let advice = "check that --clustermesh-config is the right directory and that meshkeep may read it";
        findings.push(finding("directoryUnreadable", "", NO_CLUSTERS, detail, advice));
    }
    for (file, reason) in &directory.invalid {
        let cluster = ClusterName::parse(file).ok();
        let advice = "correct the file, or remove it: meshkeep reads it again when it changes";
        findings.push(finding("clusterFileInvalid", file, cluster, format!("the file {file} cannot be used: {reason}"), advice));
    }
    if let Some(none) = handle.missing_clusters().filter(|none| none.is_overdue) {
        let detail = format!("there is no remote cluster to mirror: {}", none.reason);
        let advice = "check that --clustermesh-config is the right directory, and that the Secret mounted there has the right name and namespace and a file for each cluster; if no cluster is expected yet, start meshkeep with --allow-no-clusters";
        findings.push(FindingObject { since: Some(rfc3339(none.since)), ..finding("noClusters", "", NO_CLUSTERS, detail, advice) });
    }
    let unwritten = match handle.persistence() {
        PersistState::Healthy => None,
        PersistState::Failing { error } => Some((
            format!("the store cannot be written: {error}; new changes are only in memory or in the log"),
            "free space on the disk of --data-dir, or find out why it cannot be written; meshkeep tries again every second",
        )),
        PersistState::Stopped { error } => {
            Some((format!("meshkeep no longer writes the store: {error}"), "free space on the disk of --data-dir, then restart meshkeep"))
        }
    };
    findings.extend(unwritten.map(|(detail, advice)| finding("storeUnwritable", "", NO_CLUSTERS, detail, advice)));
    let losses = handle.store().losses;
    if !losses.is_empty() {
        let detail = format!("the store was damaged before the start: {}", losses.join("; "));
        let advice = "meshkeep reads the missing data from the remote clusters again, and the next start resolves the finding; check the disk of --data-dir, and remove the files that were set aside when you no longer need them";
        findings.push(finding("storeLosses", "", NO_CLUSTERS, detail, advice));
    }
    // it is not an error if another meshkeep is the leader
    if let Some(error) = handle.reflection().and_then(|reflection| reflection.error) {
        let detail = format!("the etcd of reflect --to cannot be written: {error}; its keys are no longer updated");
        let advice = "check that it runs and has space, and that the user of the client file may read and write below cilium/: meshkeep tries again until it succeeds";
        findings.push(finding("targetUnwritable", "", NO_CLUSTERS, detail, advice));
    }
    if handle.is_log_failing() {
        let detail = "the store's log cannot be written: after a crash, subscribers with a newer position get a reset";
        let advice = "free space on the disk of --data-dir, or find out why its log/ cannot be written";
        findings.push(finding("logGap", "", NO_CLUSTERS, detail, advice));
    }
    for (name, failure) in files.states() {
        let Some(failure) = failure else { continue };
        let detail = format!("the {name} has changed and cannot be used: {failure}; meshkeep uses the last good content");
        findings.push(finding("staleFile", name, NO_CLUSTERS, detail, "correct the file: meshkeep reads it again when it changes"));
    }
    let expiry = sources.certificate.as_ref().and_then(|certificate| certificate.current().expiry);
    let advice = "renew it and replace the files of --tls-cert and --tls-key: meshkeep uses new files within a second";
    let what = "the certificate of the API";
    findings.extend(expiry.and_then(|expiry| expiry_finding((TLS_CERTIFICATE, what), NO_CLUSTERS, expiry, advice)));
    let omitted_count = sources.start_times.omitted_count();
    if omitted_count > 0 {
        let detail = format!("the change stream omits {omitted_count} findings, because there are too many: `kind=problem` has the others");
        let advice = "resolve the findings in the stream; /v1/problems lists all";
        findings.push(FindingObject { count: Some(omitted_count), ..finding("findingsOmitted", "", NO_CLUSTERS, detail, advice) });
    }
    findings
}

//! What is wrong with this process: its directory, its store and its own files.

use super::FindingSources;
use super::expiry::expiring;
use super::finding;
use crate::dto::text::rfc3339;
use crate::handle::PersistState;
use crate::model::{ClusterName, ToldFinding};
use crate::server::TLS_CERTIFICATE;

/// All of it.
pub(super) fn of_process(sources: &FindingSources) -> Vec<ToldFinding> {
    const NOBODY: [&str; 0] = [];
    let (handle, files) = (&sources.handle, &sources.files);
    let mut found = Vec::new();
    let directory = handle.directory();
    if let Some(error) = &directory.error {
        let detail = format!("the config directory cannot be read: {error}; no cluster is removed meanwhile");
        let advice = "see that --clustermesh-config names the directory and that meshkeep may read it";
        found.push(finding("directoryUnreadable", "", NOBODY, detail, advice));
    }
    for (file, reason) in &directory.invalid {
        let cluster = ClusterName::parse(file).ok();
        let advice = "correct the file, or remove it: it is read anew when it changes";
        found.push(finding("clusterFileInvalid", file, cluster, format!("the file {file} cannot be used: {reason}"), advice));
    }
    if let Some(none) = handle.no_clusters().filter(|none| none.lasts) {
        let detail = format!("there is no remote cluster to mirror: {}", none.reason);
        let advice = "see that --clustermesh-config names the directory, and that the Secret which is mounted there has the right name and namespace and a file for each cluster; if there shall be no cluster yet, start meshkeep with --allow-no-clusters";
        found.push(ToldFinding { since: Some(rfc3339(none.since)), ..finding("noClusters", "", NOBODY, detail, advice) });
    }
    let unwritten = match handle.persistence() {
        PersistState::Healthy => None,
        PersistState::Failing { error } => Some((
            format!("the store cannot be written: {error}; what comes meanwhile is in memory or in the log alone"),
            "make room on the disk of --data-dir, or see why it cannot be written; it is tried again each second",
        )),
        PersistState::Stopped { error } => {
            Some((format!("the store is not written any more: {error}"), "make room on the disk of --data-dir, then start meshkeep again"))
        }
    };
    found.extend(unwritten.map(|(detail, advice)| finding("storeUnwritable", "", NOBODY, detail, advice)));
    let losses = handle.store().losses;
    if !losses.is_empty() {
        let detail = format!("what was stored before the start is not all there: {}", losses.join("; "));
        let advice = "what is missing is read from the remote clusters again, and the finding ends with the next start; look at the disk of --data-dir, and remove what was set aside there once nobody needs it";
        found.push(finding("storeLosses", "", NOBODY, detail, advice));
    }
    // that another one writes is nothing wrong
    if let Some(error) = handle.reflection().and_then(|reflection| reflection.error) {
        let detail = format!("the etcd of reflect --to cannot be written: {error}; what is there stays, and gets older");
        let advice = "see that it runs and has space, and that the user of the client file may read and write below cilium/: it is tried again until it succeeds";
        found.push(finding("targetUnwritable", "", NOBODY, detail, advice));
    }
    if handle.is_log_failing() {
        let detail = "the log cannot be written: after a crash, positions from now on are answered with a reset";
        let advice = "make room on the disk of --data-dir, or see why its log/ cannot be written";
        found.push(finding("logGap", "", NOBODY, detail, advice));
    }
    for (name, failure) in files.states() {
        let Some(failure) = failure else { continue };
        let detail = format!("the {name} has changed and cannot be used: {failure}; what was read before stays in force");
        found.push(finding("staleFile", name, NOBODY, detail, "correct the file: it is read anew when it changes"));
    }
    let expiry = sources.certificate.as_ref().and_then(|certificate| certificate.now().expiry);
    let advice = "renew it and replace the files of --tls-cert and --tls-key: new ones work within a second";
    let what = "the certificate that the API is served with";
    found.extend(expiry.and_then(|expiry| expiring((TLS_CERTIFICATE, what), NOBODY, expiry, advice)));
    let untold = sources.ledger.untold();
    if untold > 0 {
        let detail = format!("the change stream has no room for {untold} of the findings across keys: `kind=problem` tells the others");
        let advice = "see to those that are told; /v1/problems lists all";
        found.push(ToldFinding { count: Some(untold), ..finding("findingsOmitted", "", NOBODY, detail, advice) });
    }
    found
}

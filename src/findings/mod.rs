//! Findings: detecting them, publishing them in the change stream, and posting them to
//! `--on-problem`.
//!
//! Findings about clusters and this process are derived from their state. Findings across keys,
//! such as an address that two clusters announce, come from an index over all keys, the
//! [`FindingIndex`].

mod across_keys;
mod clusters;
mod detector;
mod expiry;
mod index_task;
mod limits;
mod process;
mod publisher;
mod start_times;
mod status_cache;
mod unread_nodes;
mod webhook;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::handle::{FindingIndex, Handle, Reading};
use crate::model::{FindingKind, FindingObject, Severity};
use crate::server::{ReloadableFile, ReloadableFiles, TlsConfig};
use start_times::FindingStartTimes;
use status_cache::StatusFindingCache;

pub(crate) use across_keys::{describe, describe_existing, namespace_and_name};
pub(crate) use detector::detect_findings;
pub(crate) use index_task::{CurrentFindingIndex, FindingIndexHandle};
pub(crate) use limits::{PUBLISHED_BYTES_MAX, PUBLISHED_COUNT_MAX};
#[cfg(test)]
pub(crate) use publisher::{FindingPublisher, FindingSet};
pub(crate) use unread_nodes::UnreadNodes;
pub(crate) use webhook::{WebhookSender, WebhookState};

pub use webhook::OnProblemError;

/// Maximum number of names that a text lists before "and N more".
const NAMES_MAX: usize = 5;

/// State from which findings are derived. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FindingSources {
    handle: Handle,
    /// Index of the findings across keys.
    pub(crate) index: FindingIndexHandle,
    /// Start times of findings about clusters and this process.
    start_times: FindingStartTimes,
    /// Findings that follow from the statuses of clusters.
    status_findings: StatusFindingCache,
    /// Findings to post, and the results of posting.
    pub(crate) webhook: WebhookState,
    /// Files with the token and the certificates.
    pub(crate) files: ReloadableFiles,
    /// Certificate of the HTTPS server, if there is one.
    pub(crate) certificate: Option<Arc<ReloadableFile<TlsConfig>>>,
}

impl FindingSources {
    /// Starts the task that keeps the finding index up to date. It ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let index = FindingIndexHandle::new(handle.clone(), stop);
        Self {
            handle,
            index,
            start_times: FindingStartTimes::default(),
            status_findings: StatusFindingCache::default(),
            webhook: WebhookState::default(),
            files: ReloadableFiles::default(),
            certificate: None,
        }
    }
}

/// Returns the findings about clusters and this process, sorted by id, each with its start time.
pub(crate) fn current_findings(sources: &FindingSources, reading: &Reading) -> Vec<FindingObject> {
    let mut findings = sources.status_findings.findings(reading);
    findings.extend(clusters::rejected_values_findings(reading));
    findings.extend(process::process_findings(sources));
    findings.sort_by(|one, other| one.id.cmp(&other.id));
    findings.dedup_by(|one, other| one.id == other.id);
    sources.start_times.record(&mut findings);
    findings
}

/// Returns the number of findings by kind, severity and cluster, 0 for kinds without any.
///
/// The cluster is `None` for findings about several clusters or none, and for findings across keys,
/// which are counted in the newest index.
pub(crate) fn counts(sources: &FindingSources, reading: &Reading) -> BTreeMap<(FindingKind, Severity, Option<String>), u64> {
    let mut counts: BTreeMap<_, u64> = FindingKind::ALL.into_iter().map(|kind| ((kind, kind.severity(), None), 0)).collect();
    for finding in current_findings(sources, reading) {
        let cluster = match finding.clusters.as_slice() {
            [cluster] => Some(cluster.clone()),
            _ => None,
        };
        *counts.entry((finding.kind, finding.severity, cluster)).or_default() += 1;
    }
    let index = sources.index.newest();
    for (kind, count) in index.iter().flat_map(FindingIndex::counts) {
        counts.insert((kind, kind.severity(), None), count);
    }
    counts
}

/// Returns up to [`NAMES_MAX`] names as text, and the number of names that are left out.
fn list_names(names: &[impl fmt::Display]) -> String {
    join_with_more(names.iter().take(NAMES_MAX).map(ToString::to_string).collect(), names.len())
}

/// Joins names, and adds the number of names that are left out if `count`, the number of all names,
/// is larger.
fn join_with_more(names: Vec<String>, count: usize) -> String {
    let more = count.saturating_sub(names.len());
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}

//! Findings: detecting them, publishing them in the change stream, and posting them to
//! `--on-problem`.
//!
//! Findings about clusters and this process are derived from their state for each request, those
//! across keys from a [`FindingIndex`]. Each has a kind ([`KINDS`]) with its severity.

mod across_keys;
mod clusters;
mod detector;
mod expiry;
mod kinds;
mod process;
mod publisher;
mod start_times;
mod surveyor;
mod unread_nodes;
mod webhook;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::handle::{FindingIndex, Handle, Reading};
use crate::model::{ClusterName, FindingObject, Severity};
use crate::server::{ReloadableFile, ReloadableFiles, TlsConfig};
use start_times::FindingStartTimes;

pub(crate) use across_keys::{about, namespace_and_name, told};
pub(crate) use detector::keep;
pub(crate) use kinds::{KINDS, TOLD_BYTES_MAX, TOLD_COUNT_MAX, finding};
#[cfg(test)]
pub(crate) use publisher::{FindingPublisher, FindingSet};
pub(crate) use surveyor::{Surveyed, Surveyor};
pub(crate) use unread_nodes::UnreadNodes;
pub(crate) use webhook::{Poster, WebhookState};

pub use webhook::OnProblemError;

/// Maximum number of names that a text lists before "and N more".
const SHOWN_MAX: usize = 5;

/// State from which findings are derived. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FindingSources {
    handle: Handle,
    /// Survey of findings across keys.
    pub(crate) surveyor: Surveyor,
    /// Start times of findings about clusters and this process.
    ledger: FindingStartTimes,
    /// Findings to post, and the results of posting.
    pub(crate) posts: WebhookState,
    /// Files with the token and the certificates.
    pub(crate) files: ReloadableFiles,
    /// Certificate of the HTTPS server, if there is one.
    pub(crate) certificate: Option<Arc<ReloadableFile<TlsConfig>>>,
}

impl FindingSources {
    /// Starts the survey, which ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let surveyor = Surveyor::new(handle.clone(), stop);
        Self {
            handle,
            surveyor,
            ledger: FindingStartTimes::default(),
            posts: WebhookState::default(),
            files: ReloadableFiles::default(),
            certificate: None,
        }
    }
}

/// Returns the findings about clusters and this process, sorted by id, each with its start.
pub(crate) fn standing(sources: &FindingSources, reading: &Reading) -> Vec<FindingObject> {
    let mut found = clusters::of_clusters(reading);
    found.extend(process::of_process(sources));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found.dedup_by(|one, other| one.id == other.id);
    sources.ledger.note(&mut found);
    found
}

/// Returns the number of findings by kind and severity, 0 for kinds without any. Findings across
/// keys count as far as the newest survey has them.
pub(crate) fn counts(sources: &FindingSources, reading: &Reading) -> BTreeMap<(&'static str, Severity), u64> {
    let mut counts: BTreeMap<(&'static str, Severity), u64> = KINDS.iter().map(|kind| (*kind, 0)).collect();
    for finding in standing(sources, reading) {
        *counts.entry((finding.kind, finding.severity)).or_default() += 1;
    }
    let survey = sources.surveyor.newest();
    for (kind, count) in survey.iter().flat_map(FindingIndex::counts) {
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        known.map(|kind| counts.insert(*kind, count));
    }
    counts
}

/// Returns names as text, the first [`SHOWN_MAX`] of many.
fn listed(clusters: &[ClusterName]) -> String {
    and_more(clusters.iter().take(SHOWN_MAX).map(ToString::to_string).collect(), clusters.len())
}

/// Returns `shown` as text, with the number of those that are left out.
fn and_more(shown: Vec<String>, count: usize) -> String {
    let more = count.saturating_sub(shown.len());
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

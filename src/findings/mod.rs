//! What is wrong, and what to do about it: detecting findings, publishing them in the change stream, and posting them to `--on-problem`.
//!
//! Findings about clusters and this process are made from their state when they are asked for, those across keys from a
//! [`Survey`]. Each has a kind ([`KINDS`]) with its severity.

mod across_keys;
mod clusters;
mod expiry;
mod kinds;
mod ledger;
mod lookout;
mod posts;
mod process;
mod surveyor;
mod teller;
mod unread;
mod writer;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::handle::{Handle, Reading, Survey};
use crate::model::{ClusterName, Severity, ToldFinding};
use crate::server::{Kept, KeptFiles, Serving};
use ledger::Ledger;

pub(crate) use across_keys::{about, namespace_and_name, told};
pub(crate) use kinds::{KINDS, TOLD_BYTES_MAX, TOLD_COUNT_MAX, finding};
pub(crate) use lookout::keep;
pub(crate) use posts::{Poster, Posts};
pub(crate) use surveyor::{Surveyed, Surveyor};
#[cfg(test)]
pub(crate) use teller::{Found, Teller};
pub(crate) use unread::UnreadNodes;

pub use posts::OnProblemError;

/// How many names a text has before it says how many more there are: a line for people.
const SHOWN_MAX: usize = 5;

/// What findings are made from, and what is known of them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FindingSources {
    handle: Handle,
    /// What is wrong across keys.
    pub(crate) surveyor: Surveyor,
    /// Since when each finding about clusters and this process is there.
    ledger: Ledger,
    /// What is there to be posted, and what became of it.
    pub(crate) posts: Posts,
    /// The token and the certificates.
    pub(crate) files: KeptFiles,
    /// Our certificate, where TLS is served.
    pub(crate) certificate: Option<Arc<Kept<Serving>>>,
}

impl FindingSources {
    /// Starts the survey, which ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let surveyor = Surveyor::new(handle.clone(), stop);
        Self { handle, surveyor, ledger: Ledger::default(), posts: Posts::default(), files: KeptFiles::default(), certificate: None }
    }
}

/// What is wrong with clusters as a whole and with this process, by id, each with since when.
pub(crate) fn standing(sources: &FindingSources, reading: &Reading) -> Vec<ToldFinding> {
    let mut found = clusters::of_clusters(reading);
    found.extend(process::of_process(sources));
    found.sort_by(|one, other| one.id.cmp(&other.id));
    found.dedup_by(|one, other| one.id == other.id);
    sources.ledger.note(&mut found);
    found
}

/// How many findings there are, by kind and severity, each kind with 0 where there are none; what shows across keys as far as it is known by now.
pub(crate) fn counts(sources: &FindingSources, reading: &Reading) -> BTreeMap<(&'static str, Severity), u64> {
    let mut counts: BTreeMap<(&'static str, Severity), u64> = KINDS.iter().map(|kind| (*kind, 0)).collect();
    for finding in standing(sources, reading) {
        *counts.entry((finding.kind, finding.severity)).or_default() += 1;
    }
    let survey = sources.surveyor.newest();
    for (kind, count) in survey.iter().flat_map(Survey::counts) {
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        known.map(|kind| counts.insert(*kind, count));
    }
    counts
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

//! Route of the findings.

use std::collections::VecDeque;

use axum::extract::State;
use axum::response::Response;

use crate::admission::Scanner;
use crate::api::paging::list_request::{ListRequest, checked_limit};
use crate::api::paging::pages::{RowSource, SliceOutcome, respond_with_page_of};
use crate::api::problem::Problem;
use crate::api::query::{ListQuery, Parameters, ProblemsQuery};
use crate::api::state::ApiState;
use crate::dto::findings::{Finding, FindingList};
use crate::findings::{CurrentFindingIndex, UnreadNodes, current_findings, describe};
use crate::handle::{self, FindingIndex};
use crate::model::{ClusterName, FindingKind, FindingObject, Kind, Severity};

/// Maximum number of findings across keys and of rejected keys for which a page is built without a
/// change of threads. Each takes a few microseconds.
const SHORT_COUNT_MAX: u64 = 50;

/// Findings: everything that looks wrong in the mesh.
///
/// First findings about clusters and about meshkeep itself: something cannot be reached, read,
/// used or written, or expires soon. Then findings across keys: dangling identities and hosts,
/// addresses that several clusters claim, conflicting exports, and pod CIDRs that overlap with
/// another node's or another cluster's (one finding per cluster). `complete` is false shortly
/// after a start, while meshkeep scans everything.
#[utoipa::path(get, path = "/v1/problems", operation_id = "listProblems", tag = "problems", params(ProblemsQuery),
    responses((status = 200, description = "A page of findings.", body = FindingList)))]
pub(crate) async fn list_problems(
    State(state): State<ApiState>,
    query: Parameters<ProblemsQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    checked_limit(query.values.common()?.limit)?;
    let reading = state.handle.reading().await?;
    let CurrentFindingIndex { index, is_complete } = state.findings.index.wait_for_index(&reading).await;
    let across_keys = index.iter().flat_map(FindingIndex::counts).map(|(_, count)| count).sum::<u64>();
    let is_short = across_keys + reading.rejected_count() <= SHORT_COUNT_MAX;
    respond_with_page_of((reading.into(), Some(is_complete)), is_short, scanner, query, move |listing, query| {
        let meta = listing.meta(&Kind::ALL)?;
        let filter = FindingFilter::parse(query, listing.filter.clusters.clone())?;
        Ok((meta, finding_rows(listing, current_findings(&state.findings, &listing.reading), index, filter)))
    })
    .await
}

/// Filter of the findings.
struct FindingFilter {
    kind: Option<FindingKind>,
    severity: Option<Severity>,
    clusters: Vec<ClusterName>,
}

impl FindingFilter {
    fn parse(query: &ProblemsQuery, clusters: Vec<ClusterName>) -> Result<Self, Problem> {
        let unknown_kind = |_| {
            let kinds = FindingKind::ALL.map(FindingKind::api_name).join(", ");
            Problem::bad_parameter("kind", format!("there is no such kind of finding: use one of {kinds}"))
        };
        let unknown_severity = |_| Problem::bad_parameter("severity", "use critical, warning or info");
        let kind = query.kind.clone().map(|kind| kind.into_known().map_err(unknown_kind)).transpose()?;
        let severity = query.severity.clone().map(|severity| severity.into_known().map_err(unknown_severity)).transpose()?;
        Ok(Self { kind, severity, clusters })
    }

    fn matches(&self, finding: &FindingObject) -> bool {
        let is_of = |names: &[String]| self.clusters.iter().any(|cluster| names.iter().any(|name| **name == *cluster.as_str()));
        self.kind.is_none_or(|kind| kind == finding.kind)
            && self.severity.is_none_or(|severity| severity == finding.severity)
            && (self.clusters.is_empty() || is_of(&finding.clusters))
    }
}

/// Returns the rows of a page: first `current`, the findings about clusters and this process, then
/// those across keys.
fn finding_rows(listing: &ListRequest, current: Vec<FindingObject>, index: Option<FindingIndex>, filter: FindingFilter) -> RowSource {
    let reading = listing.reading.clone();
    let unread = UnreadNodes::new(&reading);
    let is_selected = move |finding: &FindingObject| filter.matches(finding);
    let first = listing.start_text().unwrap_or_default();
    let mut start: Option<handle::Finding> = first.parse().ok();
    // a page that begins with a finding across keys comes after all findings about clusters
    let about_clusters = if start.is_some() { Vec::new() } else { current };
    let mut about_clusters: VecDeque<Finding> =
        about_clusters.into_iter().filter(|finding| *finding.id >= *first && is_selected(finding)).map(Finding::from).collect();
    Box::new(move |page, slice| {
        while let Some(finding) = about_clusters.front() {
            if !page.push(finding) {
                return SliceOutcome::Ended(Some(finding.id.clone()));
            }
            about_clusters.pop_front();
        }
        let Some(index) = &index else { return SliceOutcome::Ended(None) };
        let from = start.take();
        for finding in index.findings_from(from.as_ref()) {
            if slice.is_over() {
                start = Some(finding.clone());
                return SliceOutcome::Paused(finding.to_string());
            }
            slice.count_row();
            let Some(described) = describe(finding, index, &reading, &unread).filter(&is_selected).map(Finding::from) else { continue };
            if !page.push(&described) {
                start = Some(finding.clone());
                return SliceOutcome::Ended(Some(described.id));
            }
        }
        SliceOutcome::Ended(None)
    })
}

//! What looks wrong across the mesh.

use std::collections::VecDeque;

use axum::extract::State;
use axum::response::Response;

use crate::api::dto::problems::{Finding, FindingList};
use crate::api::findings::{of_clusters, told};
use crate::api::pages::{Rows, Step, page_of};
use crate::api::paging::{Listing, checked_limit};
use crate::api::problem::Problem;
use crate::api::query::{ListQuery, Parameters, ProblemsQuery};
use crate::api::scans::Scanner;
use crate::api::state::ApiState;
use crate::api::surveyor::Surveyed;
use crate::handle::{self, Survey};
use crate::model::{ClusterName, Kind};

/// What looks wrong in the mesh.
///
/// Findings about clusters first, then those across keys: identities and hosts that are named and not there, addresses that several
/// clusters claim, pod CIDRs that overlap another node's or another cluster's (told once for each cluster). Kept up to date by changes;
/// `complete` is false in the first moments after a start, while everything is looked at.
#[utoipa::path(get, path = "/v1/problems", operation_id = "listProblems", tag = "problems", params(ProblemsQuery),
    responses((status = 200, description = "A page of findings.", body = FindingList)))]
pub(crate) async fn list_problems(
    State(state): State<ApiState>,
    query: Parameters<ProblemsQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    checked_limit(query.values.parts()?.limit)?;
    let reading = state.handle.reading().await?;
    let Surveyed { survey, is_complete } = state.surveyor.survey(&reading).await;
    page_of(reading, Some(is_complete), scanner, query, |listing, query| {
        let meta = listing.meta(&Kind::ALL)?;
        Ok((meta, findings(listing, survey, query.kind.clone())))
    })
    .await
}

/// The findings of a page, of this kind if one is given.
fn findings(listing: &Listing, survey: Option<Survey>, kind: Option<String>) -> Rows {
    let (reading, clusters) = (listing.reading.clone(), listing.filter.clusters.clone());
    let is_wanted = move |finding: &Finding| kind.as_ref().is_none_or(|kind| kind == finding.kind) && concerns(finding, &clusters);
    let first = listing.start_text().unwrap_or_default();
    let mut start: Option<handle::Finding> = first.parse().ok();
    // a page that begins with one across keys has those about clusters behind it
    let about_clusters = if start.is_some() { Vec::new() } else { of_clusters(&reading) };
    let mut about_clusters: VecDeque<Finding> =
        about_clusters.into_iter().filter(|finding| *finding.id >= *first && is_wanted(finding)).collect();
    Box::new(move |page, slice| {
        while let Some(finding) = about_clusters.front() {
            if !page.take(finding) {
                return Step::Ended(Some(finding.id.clone()));
            }
            about_clusters.pop_front();
        }
        let Some(survey) = &survey else { return Step::Ended(None) };
        let from = start.take();
        for finding in survey.findings_from(from.as_ref()) {
            if slice.is_over() {
                start = Some(finding.clone());
                return Step::Paused(finding.to_string());
            }
            slice.look();
            let Some(told) = told(finding, survey, &reading).filter(&is_wanted) else { continue };
            if !page.take(&told) {
                start = Some(finding.clone());
                return Step::Ended(Some(told.id));
            }
        }
        Step::Ended(None)
    })
}

fn concerns(finding: &Finding, clusters: &[ClusterName]) -> bool {
    clusters.is_empty() || clusters.iter().any(|cluster| finding.clusters.iter().any(|name| **name == *cluster.as_str()))
}

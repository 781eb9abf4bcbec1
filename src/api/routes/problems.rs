//! What looks wrong across the mesh.

use axum::Json;
use axum::extract::State;

use crate::api::dto::problems::{Finding, FindingList};
use crate::api::findings::{of_clusters, told};
use crate::api::paging::Listing;
use crate::api::problem::Problem;
use crate::api::query::{Parameters, ProblemsQuery};
use crate::api::state::ApiState;
use crate::api::surveyor::Surveyed;
use crate::handle;
use crate::model::{ClusterName, Kind};

/// What looks wrong in the mesh.
///
/// Findings about clusters first, then those across keys: identities and hosts that are named and not there, addresses that several
/// clusters claim, pod CIDRs that overlap another node's or another cluster's (told once for each cluster). Kept up to date by changes;
/// `complete` is false in the first moments after a start, while everything is looked at.
#[utoipa::path(get, path = "/v1/problems", operation_id = "listProblems", tag = "problems", params(ProblemsQuery),
    responses((status = 200, description = "A page of findings.", body = FindingList)))]
pub(crate) async fn list_problems(State(state): State<ApiState>, query: Parameters<ProblemsQuery>) -> Result<Json<FindingList>, Problem> {
    let listing = Listing::begin(&state, &query).await?;
    let Surveyed { survey, is_complete: complete } = state.surveyor.survey(&listing.reading).await;
    let start: Option<handle::Finding> = listing.start.as_deref().and_then(|id| id.parse().ok());
    let (reading, kind) = (&listing.reading, query.values.kind.as_deref());
    let of_clusters = if start.is_some() { Vec::new() } else { of_clusters(reading) };
    let from = |finding: &Finding| listing.start.as_ref().is_none_or(|start| finding.id >= *start);
    let across = survey.iter().flat_map(|survey| {
        let findings = survey.findings_from(start.as_ref()).filter(|finding| kind.is_none_or(|kind| kind == finding.kind_name()));
        findings.filter_map(|finding| told(finding, survey, reading))
    });
    let is_wanted = |finding: &Finding| kind.is_none_or(|kind| kind == finding.kind) && concerns(finding, &listing.filter.clusters);
    let mut items: Vec<Finding> =
        of_clusters.into_iter().filter(from).chain(across).filter(is_wanted).take(listing.limit.saturating_add(1)).collect();
    let next = if items.len() > listing.limit { items.pop().map(|finding| finding.id) } else { None };
    let meta = listing.meta(&Kind::ALL)?;
    Ok(Json(FindingList { complete, items, next_page_token: listing.token(next), meta }))
}

fn concerns(finding: &Finding, clusters: &[ClusterName]) -> bool {
    clusters.is_empty() || clusters.iter().any(|cluster| finding.clusters.iter().any(|name| **name == *cluster.as_str()))
}

//! Routes of requested verifications: comparisons of the mirror with the etcds of the clusters.

use axum::Json;
use axum::extract::State;

use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{Parameters, StartVerificationsQuery, VerificationsQuery, parse_clusters};
use crate::api::state::ApiState;
use crate::dto::problem::ProblemDocument;
use crate::dto::status::{ClusterVerification, VerificationList};
use crate::handle::{Handle, Reading};
use crate::model::ClusterName;

/// Results of the newest requested verification of each cluster.
///
/// A verification is complete once `answered` is at least the `requested` of the answer that
/// started it.
#[utoipa::path(get, path = "/v1/verifications", operation_id = "listVerifications", tag = "clusters", params(VerificationsQuery),
    responses(
        (status = 200, description = "The results.", body = VerificationList),
        (status = 404, description = "There is no such object.", body = ProblemDocument)
    ))]
pub(crate) async fn list_verifications(
    State(state): State<ApiState>,
    query: Parameters<VerificationsQuery>,
) -> Result<Json<VerificationList>, Problem> {
    let reading = state.handle.reading().await?;
    let names = chosen_clusters(&reading, &query.values.cluster)?;
    Ok(Json(results(&state.handle, &reading, &names)))
}

/// Compare clusters with their etcds now.
///
/// Starts the comparison and answers at once, with the earlier results. It changes nothing, at most
/// one comparison of a cluster runs at a time, and it keeps to the limits of requests to the etcds.
/// A cluster that is not connected is compared once it is.
#[utoipa::path(post, path = "/v1/verifications", operation_id = "startVerifications", tag = "clusters",
    params(StartVerificationsQuery),
    responses(
        (status = 200, description = "The numbers of the requests, and the earlier results.", body = VerificationList),
        (status = 403, description = "A web page of another origin sent the request, or the token is only for reading.", body = ProblemDocument),
        (status = 404, description = "There is no such object.", body = ProblemDocument)
    ))]
pub(crate) async fn start_verifications(
    State(state): State<ApiState>,
    query: Parameters<StartVerificationsQuery>,
) -> Result<Json<VerificationList>, Problem> {
    let reading = state.handle.reading().await?;
    let names = chosen_clusters(&reading, &query.values.cluster)?;
    for name in &names {
        state.handle.verification_requests().request(name.as_str(), query.values.values.unwrap_or(false));
    }
    Ok(Json(results(&state.handle, &reading, &names)))
}

/// Returns the named clusters, or all clusters that have a client file.
fn chosen_clusters(reading: &Reading, names: &[String]) -> Result<Vec<ClusterName>, Problem> {
    let mut chosen = parse_clusters(names)?;
    let has_file = |name: &ClusterName| reading.cluster(name).is_some_and(|cluster| cluster.status.is_some());
    if let Some(missing) = chosen.iter().find(|name| !has_file(name)) {
        return Err(Problem::new(
            ProblemCode::NotFound,
            format!("there is no cluster {missing} with a client file: /v1/clusters lists all clusters"),
        ));
    }
    if chosen.is_empty() {
        chosen = reading.cluster_names().into_iter().filter(has_file).collect();
    }
    chosen.sort();
    chosen.dedup();
    Ok(chosen)
}

fn results(handle: &Handle, reading: &Reading, names: &[ClusterName]) -> VerificationList {
    let clusters = names.iter().filter_map(|name| reading.cluster(name));
    let requests = handle.verification_requests();
    let items = clusters.map(|cluster| ClusterVerification::new(&cluster, requests.newest(cluster.name.as_str()))).collect();
    VerificationList { items }
}

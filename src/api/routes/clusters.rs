//! Routes of the process and of the clusters.

use std::collections::VecDeque;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::{bad_path, cluster_in_path};
use crate::admission::Scanner;
use crate::api::paging::pages::{RowSource, SliceOutcome, respond_with_page};
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{ItemQuery, Parameters, PlainQuery};
use crate::api::render::tag_basis::ContentHash;
use crate::api::state::ApiState;
use crate::dto::ClusterList;
use crate::dto::meta::ItemMeta;
use crate::dto::status::{Cluster, Status};
use crate::handle::{ClusterReading, Origin, SourceMeta};
use crate::model::Kind;

/// State of the process. Available while the store is loading.
///
/// Numbers of mirrored objects, number of clusters in each phase, state of the store, and
/// whether meshkeep can read the config directory.
#[utoipa::path(get, path = "/v1/status", operation_id = "getStatus", tag = "status", params(ItemQuery),
    responses((status = 200, description = "The state.", body = Status)))]
pub(crate) async fn get_status(State(state): State<ApiState>, query: Parameters<ItemQuery>) -> Result<Response, Problem> {
    let meta_options = query.values.meta_options()?;
    let reading = state.handle.try_reading();
    if let Some(reading) = &reading {
        meta_options.check_clusters(reading, &Kind::ALL, |_| true)?;
    }
    let status = Status::new(&state.handle, reading.as_ref(), &state.findings.files);
    let stable = Status { now: String::new(), uptime_seconds: 0.0, position: None, ..status.clone() };
    let content = serde_json::to_vec(&stable).map_err(|error| Problem::internal(format!("an answer cannot be written: {error}")))?;
    Ok((Extension(ContentHash::new(content)), Json(status)).into_response())
}

/// All clusters that have a client file or mirrored data.
///
/// Each cluster has its phase, its age and the error of its last attempt, and for each kind the
/// number of mirrored and of confirmed keys.
#[utoipa::path(get, path = "/v1/clusters", operation_id = "listClusters", tag = "clusters", params(PlainQuery),
    responses((status = 200, description = "A page of clusters.", body = ClusterList)))]
pub(crate) async fn list_clusters(
    State(state): State<ApiState>,
    query: Parameters<PlainQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        let wanted = &listing.filter.clusters;
        let start = listing.start_cluster()?;
        let mut names = listing.reading.cluster_names();
        names.retain(|name| (wanted.is_empty() || wanted.contains(name)) && start.as_ref().is_none_or(|start| name >= start));
        let page = names.get(..listing.limit).unwrap_or(&names);
        let meta = listing.meta_where(&Kind::ALL, |name| page.binary_search(name).is_ok())?;
        let (reading, mut names) = (listing.reading.clone(), VecDeque::from(names));
        let rows: RowSource = Box::new(move |page, slice| {
            while let Some(name) = names.front() {
                if slice.is_over() {
                    return SliceOutcome::Paused(name.to_string());
                }
                slice.count_row();
                let cluster = reading.cluster(name);
                if cluster.is_some_and(|cluster| !page.push(&Cluster::from(&cluster))) {
                    return SliceOutcome::Ended(Some(name.to_string()));
                }
                names.pop_front();
            }
            SliceOutcome::Ended(None)
        });
        Ok((meta, rows))
    })
    .await
}

/// One cluster.
///
/// As in the list, with `meta`. 404 if the cluster has neither a client file nor mirrored data.
#[utoipa::path(get, path = "/v1/clusters/{cluster}", operation_id = "getCluster", tag = "clusters",
    params(("cluster" = String, Path, description = "Name of the cluster."), ItemQuery),
    responses((status = 200, description = "The cluster.", body = Cluster)))]
pub(crate) async fn get_cluster(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<ItemQuery>,
) -> Result<Json<Cluster>, Problem> {
    let Path(name) = path.map_err(|rejection| bad_path(&rejection))?;
    let meta_options = query.values.meta_options()?;
    let reading = state.handle.reading().await?;
    let missing = || Problem::new(ProblemCode::NotFound, format!("there is no cluster {name}: /v1/clusters lists all clusters"));
    let cluster = reading.cluster(&cluster_in_path(&name)?).ok_or_else(missing)?;
    let sources = sources(&cluster);
    meta_options.check(&sources)?;
    // `meta` is about the whole cluster, so it has no revision, which belongs to one kind only
    let origin = Origin::combine(sources.iter().map(|source| source.origin));
    let whole = sources.first().zip(origin).map(|(source, origin)| SourceMeta { revision: None, origin, ..source.clone() });
    let position = reading.position();
    let meta = whole.map_or_else(
        || ItemMeta::without_source(position, &[], meta_options),
        |whole| ItemMeta::from_source(&whole, position, &[], meta_options),
    );
    let mut answer = Cluster::from(&cluster);
    answer.meta = Some(meta);
    Ok(Json(answer))
}

fn sources(cluster: &ClusterReading) -> Vec<SourceMeta> {
    cluster.resources.iter().map(|resource| resource.source.clone()).collect()
}

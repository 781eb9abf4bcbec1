//! Routes of service exports and endpoint slices.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use super::objects::past::RequestedTime;
use super::{bad_path, cluster_in_path, find_object};
use crate::admission::Scanner;
use crate::api::paging::pages::{record_rows, respond_with_object, respond_with_page};
use crate::api::paging::scanner::DeferredScanner;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{ExportsQuery, Parameters, PastItemQuery};
use crate::api::state::ApiState;
use crate::dto::objects::exports::{EndpointSlice, ServiceExport};
use crate::dto::{EndpointSliceList, ServiceExportList};
use crate::handle::Reading;
use crate::model::{EntryKey, Kind, Record};

/// Services that clusters export to the cluster set (MCS).
///
/// As each cluster exports them, in order of cluster, namespace and name. `/v1/global-services`
/// merges them.
#[utoipa::path(get, path = "/v1/service-exports", operation_id = "listServiceExports", tag = "services", params(ExportsQuery),
    responses((status = 200, description = "A page of service exports.", body = ServiceExportList)))]
pub(crate) async fn list_service_exports(
    State(state): State<ApiState>,
    query: Parameters<ExportsQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        Ok((listing.meta(&[Kind::ServiceExport])?, record_rows(listing, Kind::ServiceExport, ServiceExport::from_record)?))
    })
    .await
}

/// One service export of one cluster.
///
/// As the cluster exports it, with its source and age in `meta`.
#[utoipa::path(get, path = "/v1/service-exports/{cluster}/{namespace}/{name}", operation_id = "getServiceExport", tag = "services",
    params(
        ("cluster" = String, Path, description = "The cluster that exports the object."),
        ("namespace" = String, Path, description = "Kubernetes namespace."),
        ("name" = String, Path, description = "Name of the object."),
        PastItemQuery
    ),
    responses((status = 200, description = "The service export.", body = ServiceExport)))]
pub(crate) async fn get_service_export(
    State(state): State<ApiState>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    query: Parameters<PastItemQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let Path((cluster, namespace, name)) = path.map_err(|rejection| bad_path(&rejection))?;
    let key = EntryKey::new(Kind::ServiceExport, cluster_in_path(&cluster)?, format!("{namespace}/{name}"));
    let meta_options = query.values.meta_options()?;
    let with_meta =
        |record: &Record, reading: &Reading, meta| Some(ServiceExport { meta: Some(meta), ..ServiceExport::from_record(record, reading)? });
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        return at.respond_with_object(&state.handle, &scanner, key, with_meta).await;
    }
    let reading = state.handle.reading().await?;
    let detail = || format!("cluster {cluster} has no service export {namespace}/{name}: /v1/service-exports lists all service exports");
    let export = find_object(&reading, &key, meta_options, with_meta)?;
    Ok(Json(export.ok_or_else(|| Problem::new(ProblemCode::NotFound, detail()))?).into_response())
}

/// Endpoint slices that clusters export.
///
/// In order of cluster, namespace and name. The label `kubernetes.io/service-name` has the name
/// of the service.
#[utoipa::path(get, path = "/v1/endpoint-slices", operation_id = "listEndpointSlices", tag = "services", params(ExportsQuery),
    responses((status = 200, description = "A page of endpoint slices.", body = EndpointSliceList)))]
pub(crate) async fn list_endpoint_slices(
    State(state): State<ApiState>,
    query: Parameters<ExportsQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        Ok((listing.meta(&[Kind::EndpointSlice])?, record_rows(listing, Kind::EndpointSlice, EndpointSlice::from_record)?))
    })
    .await
}

/// One endpoint slice of one cluster.
///
/// As the cluster exports it, with its source and age in `meta`.
#[utoipa::path(get, path = "/v1/endpoint-slices/{cluster}/{namespace}/{name}", operation_id = "getEndpointSlice", tag = "services",
    params(
        ("cluster" = String, Path, description = "The cluster that exports the object."),
        ("namespace" = String, Path, description = "Kubernetes namespace."),
        ("name" = String, Path, description = "Name of the object."),
        PastItemQuery
    ),
    responses((status = 200, description = "The endpoint slice.", body = EndpointSlice)))]
pub(crate) async fn get_endpoint_slice(
    State(state): State<ApiState>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    query: Parameters<PastItemQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let Path((cluster, namespace, name)) = path.map_err(|rejection| bad_path(&rejection))?;
    let key = EntryKey::new(Kind::EndpointSlice, cluster_in_path(&cluster)?, format!("{namespace}/{name}"));
    let meta_options = query.values.meta_options()?;
    let with_meta =
        |record: &Record, reading: &Reading, meta| Some(EndpointSlice { meta: Some(meta), ..EndpointSlice::from_record(record, reading)? });
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        return at.respond_with_object(&state.handle, &scanner, key, with_meta).await;
    }
    let reading = state.handle.reading().await?;
    // in a slice, because the source decides how large the object is
    respond_with_object(&scanner.admit()?, false, move || {
        let record = reading.record(&key);
        let _memory = record
            .map(|record| reading.reserve_memory_for(&record))
            .transpose()
            .map_err(|error| Problem::no_memory(&key.to_string(), error))?;
        let found = find_object(&reading, &key, meta_options, with_meta)?;
        let detail =
            || format!("cluster {cluster} has no endpoint slice {namespace}/{name}: /v1/endpoint-slices lists all endpoint slices");
        found.ok_or_else(|| Problem::new(ProblemCode::NotFound, detail()))
    })
    .await
}

//! Routes of global services: merged over the clusters that share them, with the backends that a
//! cluster would use.

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use smol_str::SmolStr;

use super::bad_path;
use crate::admission::Scanner;
use crate::api::dto::global_services::{BackendSelector, sources};
use crate::api::dto::meta::SourceCache;
use crate::api::paging::pages::{RowSource, into_outcome, respond_with_object, respond_with_page};
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{GlobalServiceQuery, GlobalServicesQuery, Parameters};
use crate::api::state::ApiState;
use crate::dto::GlobalServiceList;
use crate::dto::meta::ItemMeta;
use crate::dto::objects::global_services::GlobalService;
use crate::dto::values::{Affinity, ConflictFilter, closed};
use crate::handle::{Reading, ServiceEntry};
use crate::model::{ApiEnum, ClusterName, Kind};

/// Kinds that global services are merged from.
const KINDS: [Kind; 3] = [Kind::EndpointSlice, Kind::ServiceExport, Kind::Service];

/// Services that clusters share, merged over all clusters.
///
/// Filters select services; each is merged from all clusters that share it. A service whose
/// endpoint slices need more memory than `--decoded-max-bytes` is listed without them, with
/// `tooLarge`. A label filter lists it too, because its labels are not read.
#[utoipa::path(get, path = "/v1/global-services", operation_id = "listGlobalServices", tag = "services", params(GlobalServicesQuery),
    responses((status = 200, description = "A page of global services.", body = GlobalServiceList)))]
pub(crate) async fn list_global_services(
    State(state): State<ApiState>,
    query: Parameters<GlobalServicesQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, query| {
        let selector = selector(&listing.reading, query.affinity.clone(), query.from.as_deref())?;
        let conflict = query.conflict.clone().map(parse_conflict).transpose()?;
        let meta = listing.meta_where(&KINDS, |_| true)?;
        let (reading, filter) = (listing.reading.clone(), listing.filter.clone());
        let (mut start, mut sources) = (listing.start_text().map(SmolStr::new), SourceCache::default());
        let rows: RowSource = Box::new(move |page, slice| {
            let mut shown = |entry: &_| GlobalService::from_entry(&reading, entry, selector.as_ref(), &mut sources);
            let take = |entry: &_| conflict.is_some_and(|reason| !has_conflict(entry, reason)) || page.push(&shown(entry));
            let scanned = reading.scan_global_services(&filter, start.as_deref(), slice, take);
            into_outcome(scanned, &mut start)
        });
        Ok((meta, rows))
    })
    .await
}

/// One global service.
///
/// Merged over all clusters that share it: the backends with their clusters, the merged exports
/// and their conflicts, and with `affinity=` the backends that agents would use.
#[utoipa::path(get, path = "/v1/global-services/{namespace}/{name}", operation_id = "getGlobalService", tag = "services",
    params(
        ("namespace" = String, Path, description = "Kubernetes namespace."),
        ("name" = String, Path, description = "Name of the service."),
        GlobalServiceQuery
    ),
    responses((status = 200, description = "The service, merged over the clusters that share it.", body = GlobalService)))]
pub(crate) async fn get_global_service(
    State(state): State<ApiState>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Parameters<GlobalServiceQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    let Path((namespace, name)) = path.map_err(|rejection| bad_path(&rejection))?;
    let meta_options = query.values.meta_options()?;
    let reading = state.handle.reading().await?;
    // in a slice, because the clusters decide how large the merged service is
    respond_with_object(&scanner, false, move || {
        let selector = selector(&reading, query.values.affinity.clone(), query.values.from.as_deref())?;
        let detail = || format!("no cluster shares or exports a service {namespace}/{name}: /v1/global-services lists all global services");
        let full_name = format!("{namespace}/{name}");
        let found = reading.global_service(&full_name).map_err(|none| Problem::no_memory(&full_name, none))?;
        let found = found.ok_or_else(|| Problem::new(ProblemCode::NotFound, detail()))?;
        let sources = sources(&reading, &found);
        meta_options.check(&sources)?;
        let mut service = GlobalService::from_entry(&reading, &found, selector.as_ref(), &mut SourceCache::default());
        service.meta = Some(ItemMeta::without_source(reading.position(), &sources, meta_options));
        Ok(service)
    })
    .await
}

fn parse_conflict(conflict: ConflictFilter) -> Result<closed::ConflictFilter, Problem> {
    let names = || closed::ConflictFilter::values().map(ApiEnum::api_name).collect::<Vec<_>>().join(", ");
    conflict.into_known().map_err(|name| Problem::bad_parameter("conflict", format!("{name:?} is not one of {}", names())))
}

/// Returns whether the exports of a service have this conflict.
fn has_conflict(entry: &ServiceEntry, filter: closed::ConflictFilter) -> bool {
    let mut conflicts = entry.exports().into_iter().flat_map(|exports| &exports.conflicts);
    conflicts.any(|conflict| filter.0.is_none_or(|reason| conflict.reason == reason))
}

/// Returns the cluster and affinity that select backends; `None` if the request has no `affinity=`.
fn selector(reading: &Reading, wanted: Option<Affinity>, from: Option<&str>) -> Result<Option<BackendSelector>, Problem> {
    let Some(wanted) = wanted else {
        let lonely = || Problem::bad_parameter("from", "only works together with affinity: add affinity=none, local or remote");
        return if from.is_some() { Err(lonely()) } else { Ok(None) };
    };
    let unknown = |name| Problem::bad_parameter("affinity", format!("{name:?} is not one of none, local and remote"));
    let affinity = wanted.into_known().map_err(unknown)?;
    let own = reading.own_cluster();
    let from = match from {
        Some(name) => ClusterName::parse(name).map_err(|error| Problem::bad_parameter("from", error))?,
        None => own.cloned().ok_or_else(|| {
            Problem::bad_parameter(
                "affinity",
                "needs from=CLUSTER, the cluster whose agents choose, because meshkeep was started without --cluster-name",
            )
        })?,
    };
    if own != Some(&from) && !reading.cluster_names().contains(&from) {
        return Err(Problem::bad_parameter("from", format!("there is no cluster {from}: /v1/clusters lists all clusters")));
    }
    Ok(Some(BackendSelector { from, affinity }))
}

//! Routes of raw entries and rejected values.

use std::collections::BTreeMap;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::bad_path;
use crate::admission::Scanner;
use crate::api::paging::list_request::ListRequest;
use crate::api::paging::pages::{RowSource, SliceOutcome, into_outcome, respond_with_page};
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{EntriesQuery, ItemQuery, Parameters, PlainQuery};
use crate::api::state::ApiState;
use crate::dto::raw::{Entry, Rejected};
use crate::dto::text::seconds;
use crate::dto::{EntryList, RejectedList};
use crate::model::{ClusterName, EntryKey, Kind, RecordQuery, RefusedKey};

/// Raw entries: all mirrored keys with their newest bytes, valid or rejected.
///
/// In key order. The values are the source's bytes in base64. `prefix=` uses an index.
#[utoipa::path(get, path = "/v1/entries", operation_id = "listEntries", tag = "entries", params(EntriesQuery),
    responses((status = 200, description = "A page of entries.", body = EntryList)))]
pub(crate) async fn list_entries(
    State(state): State<ApiState>,
    query: Parameters<EntriesQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, query| {
        let prefix = query.prefix.as_deref().unwrap_or_default();
        let (clusters, kinds) = matching_scopes(listing, prefix);
        if kinds.is_empty() {
            let detail = format!("no key starts with {prefix:?}: keys are in cache form, such as cilium/cache/nodes/v1/paris/");
            return Err(Problem::bad_parameter("prefix", detail));
        }
        let meta = listing.meta_where(&kinds, |name| clusters.binary_search(name).is_ok())?;
        let (reading, mut start) = (listing.reading.clone(), listing.start_key()?);
        let plan = reading.plan_entry_list(prefix, &listing.filter.clusters);
        let rows: RowSource = Box::new(move |page, slice| {
            let scanned = reading.scan_entries(&plan, start.as_ref(), slice, |record| page.push(&Entry::from(record)));
            into_outcome(scanned, &mut start)
        });
        Ok((meta, rows))
    })
    .await
}

/// The newest bytes of one key, unmodified.
///
/// The headers `Meshkeep-Position`, `Meshkeep-Origin` and `Meshkeep-Age-Seconds` have their
/// source and age.
#[utoipa::path(get, path = "/v1/entries/{*key}", operation_id = "getEntry", tag = "entries",
    params(("key" = String, Path, description = "The key in `cilium/cache` form. Its slashes may be percent-encoded."), ItemQuery),
    responses((status = 200, description = "The bytes.", body = Vec<u8>, content_type = "application/octet-stream")))]
pub(crate) async fn get_entry(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<ItemQuery>,
) -> Result<Response, Problem> {
    let Path(text) = path.map_err(|rejection| bad_path(&rejection))?;
    let missing =
        || Problem::new(ProblemCode::NotFound, format!("there is no key {text}: /v1/entries?prefix= lists the keys below a prefix"));
    let key = EntryKey::from_cache_form(&text).filter(|key| key.kind.is_mirrored()).ok_or_else(missing)?;
    let reading = state.handle.reading_for(RecordQuery::Key(key.clone())).await?;
    let record = reading.record(&key).ok_or_else(missing)?;
    let source = reading.source_of(&record);
    query.values.meta_options()?.check(std::slice::from_ref(&source))?;
    let mut response = record.value.to_vec().into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert("meshkeep-origin", HeaderValue::from_static(source.origin.api_name()));
    if let Ok(position) = HeaderValue::try_from(reading.position().to_string()) {
        headers.insert("meshkeep-position", position);
    }
    if let Some(age) = source.age.and_then(|age| HeaderValue::try_from(seconds(age).to_string()).ok()) {
        headers.insert("meshkeep-age-seconds", age);
    }
    Ok(response)
}

/// Rejected values, each with the reason.
///
/// First cluster configs and keys of the sources that are not entries, as read over the newest
/// connection; then entries.
#[utoipa::path(get, path = "/v1/rejected", operation_id = "listRejected", tag = "entries", params(PlainQuery),
    responses((status = 200, description = "A page of rejected values.", body = RejectedList)))]
pub(crate) async fn list_rejected(
    State(state): State<ApiState>,
    query: Parameters<PlainQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        let meta = listing.meta(&Kind::ALL)?;
        let mut source_rows = rejected_by_sources(listing);
        let starts_in_sources = listing.start_text().is_some_and(|start| start.starts_with(SOURCE_TOKEN));
        let mut start = if starts_in_sources { None } else { listing.start_key()? };
        let reading = listing.reading.clone();
        let plan = reading.plan_entry_list("", &listing.filter.clusters);
        let rows: RowSource = Box::new(move |page, slice| {
            while let Some(entry) = source_rows.first_entry() {
                if slice.is_over() {
                    return SliceOutcome::Paused(entry.key().clone());
                }
                slice.count_row();
                if !page.push(entry.get()) {
                    return SliceOutcome::Ended(Some(entry.key().clone()));
                }
                entry.remove();
            }
            let scanned = reading.scan_rejected(&plan, start.as_ref(), slice, |record| {
                Rejected::from_record(record).is_none_or(|rejected| page.push(&rejected))
            });
            into_outcome(scanned, &mut start)
        });
        Ok((meta, rows))
    })
    .await
}

/// Prefix of the page start of a rejected value that is not stored as an entry.
const SOURCE_TOKEN: &str = "source/";

/// Returns the rejected values that are not stored as entries, by page start. Values before the
/// start of this page are left out.
fn rejected_by_sources(listing: &ListRequest) -> BTreeMap<String, Rejected> {
    let start = match listing.start_text() {
        None => "",
        Some(start) if start.starts_with(SOURCE_TOKEN) => start,
        Some(_) => return BTreeMap::new(),
    };
    let refused = listing.reading.refused(&listing.filter.clusters).into_iter();
    let rows =
        refused.map(|(cluster, refused)| (format!("{SOURCE_TOKEN}{cluster}/{}", refused.source_key.escape_ascii()), cluster, refused));
    let convert = |(page_start, cluster, refused): (String, ClusterName, RefusedKey)| {
        let has_config = listing.reading.cluster(&cluster).is_some_and(|reading| reading.record.config.is_some());
        (page_start, Rejected::from_source(&cluster, &refused, has_config))
    };
    rows.filter(|(page_start, ..)| **page_start >= *start).map(convert).collect()
}

/// Returns the clusters, in order, and the kinds that can have keys with a prefix.
fn matching_scopes(listing: &ListRequest, prefix: &str) -> (Vec<ClusterName>, Vec<Kind>) {
    let overlaps = |start: &str| start.starts_with(prefix) || prefix.starts_with(start);
    let mut kinds = Kind::ALL.to_vec();
    kinds.retain(|kind| overlaps(&format!("cilium/cache/{}/", kind.base())));
    let mut clusters = listing.reading.cluster_names();
    clusters.retain(|name| {
        let is_selected = listing.filter.clusters.is_empty() || listing.filter.clusters.contains(name);
        is_selected && kinds.iter().any(|kind| prefix.is_empty() || overlaps(&format!("cilium/cache/{}/{name}/", kind.base())))
    });
    (clusters, kinds)
}

//! Routes of the ipcache: lists, exact entries and lookups by longest prefix.

pub(crate) mod batch;
pub(crate) mod explain;
mod hints;
mod lookup_sources;

use std::net::IpAddr;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use ipnet::IpNet;

use crate::admission::Scanner;
use crate::api::paging::pages::{record_rows, respond_with_object, respond_with_page};
use crate::api::paging::scanner::DeferredScanner;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{IpcacheQuery, LookupQuery, Parameters, SharedItemQuery, parse_clusters, parse_network};
use crate::api::routes::objects::past::{RequestedTime, absent};
use crate::api::routes::{bad_path, past_reading};
use crate::api::state::ApiState;
use crate::dto::IpcacheList;
use crate::dto::lookup::LookupAnswer;
use crate::dto::meta::ItemMeta;
use crate::dto::objects::{IpcacheAnswer, IpcacheEntry};
use crate::handle::{LOOKUP_KINDS, PastLookup, PastReading};
use crate::model::{ClusterName, Kind, RecordQuery};
use lookup_sources::{IPCACHE_KINDS, LookupSources};

/// The ipcache entries of all clusters: announced entries, then entries derived from nodes.
///
/// Host entries and CIDRs, unresolved, in key order. `cidr=`, `identity=` and `node=` use an
/// index. `hostIP` of an entry that is derived from a node is always the node's address. Agents
/// set the tunnel endpoint of a node's own addresses only for those of the type
/// `CiliumInternalIP`, or with node encryption or the host firewall.
#[utoipa::path(get, path = "/v1/ipcache", operation_id = "listIpcache", tag = "ipcache", params(IpcacheQuery),
    responses((status = 200, description = "A page of entries.", body = IpcacheList)))]
pub(crate) async fn list_ipcache(
    State(state): State<ApiState>,
    query: Parameters<IpcacheQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        Ok((listing.meta(&IPCACHE_KINDS)?, record_rows(listing, Kind::Ip, IpcacheEntry::from_record)?))
    })
    .await
}

/// The entry for exactly one prefix.
///
/// An address means the prefix of full length. If there are several entries (of other clusters,
/// or a host entry and a CIDR of full length), host entries come first, then the order of a
/// lookup applies. The rest is in `others`.
#[utoipa::path(get, path = "/v1/ipcache/{*prefix}", operation_id = "getIpcacheEntry", tag = "ipcache",
    params(("prefix" = String, Path, description = "An address or a CIDR. Its slash may be percent-encoded."), SharedItemQuery),
    responses((status = 200, description = "The entry.", body = IpcacheAnswer)))]
pub(crate) async fn get_ipcache_entry(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<SharedItemQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let Path(text) = path.map_err(|rejection| bad_path(&rejection))?;
    let net = parse_network(&text).ok_or_else(|| Problem::bad_parameter("prefix", format!("{text:?} is not an address or CIDR")))?;
    let (wanted, meta_options) = (parse_clusters(&query.values.cluster)?, query.values.meta_options()?);
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        let past = past_reading(&state.handle).await?;
        return respond_with_object(&scanner.admit()?, false, move || entry_at(&past, net, &wanted, at)).await;
    }
    let reading = state.handle.reading_for(RecordQuery::Network(net)).await?;
    let found = reading.ips_at(net).filter(|record| wanted.is_empty() || wanted.contains(&record.key.cluster));
    let mut entries: Vec<_> = found
        .filter_map(|record| {
            let entry = IpcacheEntry::from_record(&record, &reading)?;
            Some((record, entry))
        })
        .collect();
    entries.sort_by_key(|(record, entry)| (!entry.host, reading.rank(record)));
    let sources: Vec<_> = entries.iter().map(|(record, _)| reading.source_of(record)).collect();
    meta_options.check(&sources)?;
    let mut entries = entries.into_iter();
    let missing = || {
        Problem::new(
            ProblemCode::NotFound,
            format!("no cluster has an entry {net}: /v1/ipcache/lookup?ip= returns the entry that covers an address"),
        )
    };
    let (record, entry) = entries.next().ok_or_else(missing)?;
    let meta = ItemMeta::from_record(&reading, &record, meta_options)?;
    Ok(Json(IpcacheAnswer { entry, others: entries.map(|(_, entry)| entry).collect(), meta }).into_response())
}

/// Returns the entry for exactly a network at an earlier time.
fn entry_at(past: &PastReading, net: IpNet, wanted: &[ClusterName], at: RequestedTime) -> Result<IpcacheAnswer, Problem> {
    let time = at.resolve(past, &IPCACHE_KINDS, wanted)?;
    let found = past.ips_at(net, wanted, &time);
    let missing = || absent(&found, &time, &format!("an entry {net}"), &format!("ip={}", net.addr()));
    let first = found.first().and_then(|record| Some((record, IpcacheEntry::from_record(record, &past.reading)?)));
    let (record, entry) = first.ok_or_else(missing)?;
    let others = found.records.iter().skip(1).filter_map(|other| IpcacheEntry::from_record(other, &past.reading));
    let meta = ItemMeta::at(past, &time, &found, Some(&record.key.cluster), at.meta_options);
    Ok(IpcacheAnswer { entry, others: others.collect(), meta })
}

/// The entry that an agent would use for an address.
///
/// The entry with the longest prefix. If several entries have this prefix, the first of these
/// rules that distinguishes them decides: an entry of the own cluster (if it is mirrored) wins,
/// then an announced entry over one derived from a node, then an entry whose newest value is
/// valid, then the newest entry.
#[utoipa::path(get, path = "/v1/ipcache/lookup", operation_id = "lookupIp", tag = "ipcache", params(LookupQuery),
    responses((status = 200, description = "The result; `match` is null if no entry covers the address.", body = LookupAnswer)))]
pub(crate) async fn lookup_ip(
    State(state): State<ApiState>,
    query: Parameters<LookupQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let (ip, meta_options) = (&query.values.ip, query.values.meta_options()?);
    let ip: IpAddr = ip.parse().map_err(|_| Problem::bad_parameter("ip", format!("{ip:?} is not an IP address")))?;
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        let past = past_reading(&state.handle).await?;
        return respond_with_object(&scanner.admit()?, false, move || lookup_at(&past, ip, at)).await;
    }
    let reading = state.handle.reading_for(RecordQuery::Covering(ip.to_canonical())).await?;
    let found = reading.lookup(ip.to_canonical());
    let meta = match found.first() {
        Some(first) => {
            let mut used = LookupSources::default();
            used.add(&found);
            let sources = used.sources(&reading);
            meta_options.check(&sources)?;
            ItemMeta::from_source(&reading.source_of(&first.record), reading.position(), &sources, meta_options)
        }
        None => ItemMeta::of_all_clusters(&reading, &IPCACHE_KINDS, meta_options)?,
    };
    Ok(Json(LookupAnswer::new(ip, &found, meta, &reading)).into_response())
}

/// Returns the entry that an agent would have used at a time.
fn lookup_at(past: &PastReading, ip: IpAddr, at: RequestedTime) -> Result<LookupAnswer, Problem> {
    let time = at.resolve(past, &LOOKUP_KINDS, &[])?;
    let PastLookup { matches, covering } = past.lookup_at(ip.to_canonical(), &time);
    let meta = ItemMeta::at(past, &time, &covering, matches.first().map(|found| &found.record.key.cluster), at.meta_options);
    Ok(LookupAnswer::new(ip, &matches, meta, &past.reading))
}

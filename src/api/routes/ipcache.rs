//! The ipcache: lists, exact entries and lookups by longest prefix.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::ToSchema;

use super::bad_path;
use crate::api::dto::IpcacheList;
use crate::api::dto::lookup::{LookupAnswer, LookupItem, LookupList};
use crate::api::dto::meta::{ItemMeta, ListMeta, check_age};
use crate::api::dto::objects::{IpcacheAnswer, IpcacheEntry};
use crate::api::paging::Listing;
use crate::api::problem::{Code, Problem};
use crate::api::query::{IpcacheQuery, ItemQuery, LookupQuery, Parameters, SharedItemQuery, clusters, network};
use crate::api::state::ApiState;
use crate::handle::{LookupMatch, Question, Reading, SourceMeta};
use crate::model::{ClusterName, Kind};

/// How many addresses one batch may hold (api.md): some 10 ms of work.
const BATCH_LENGTH_MAX: usize = 10_000;

/// What the ipcache is made of: nodes have entries too.
const IPCACHE_KINDS: [Kind; 2] = [Kind::Ip, Kind::Node];

/// What a lookup joins.
const LOOKUP_KINDS: [Kind; 3] = [Kind::Ip, Kind::Identity, Kind::Node];

/// A batch of lookups.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LookupRequest {
    /// The addresses, IPv4 or IPv6.
    #[schema(max_items = 10000)]
    ips: Vec<String>,
}

/// Entries of the ipcache of all clusters, unresolved: those that clusters announce, then those derived from nodes' addresses.
#[utoipa::path(get, path = "/v1/ipcache", operation_id = "listIpcache", tag = "ipcache", params(IpcacheQuery),
    responses((status = 200, description = "A page of entries.", body = IpcacheList)))]
pub(crate) async fn list_ipcache(State(state): State<ApiState>, query: Parameters<IpcacheQuery>) -> Result<Json<IpcacheList>, Problem> {
    let listing = Listing::begin(&state, &query).await?;
    let meta = listing.meta(&IPCACHE_KINDS)?;
    let page = listing.page(Kind::Ip)?;
    let items = page.records.iter().filter_map(|record| IpcacheEntry::of(record)).collect();
    Ok(Json(IpcacheList { items, next_page_token: listing.token(page.next), meta }))
}

/// The entry for exactly one prefix.
///
/// An address stands for the prefix of full length. Where there are several (of other clusters, or a host and a CIDR of full length)
/// host entries come first, then as in a lookup; the rest is in `others`.
#[utoipa::path(get, path = "/v1/ipcache/{*prefix}", operation_id = "getIpcacheEntry", tag = "ipcache",
    params(("prefix" = String, Path, description = "An address or a CIDR, its slash as it stands or percent-encoded."), SharedItemQuery),
    responses((status = 200, description = "The entry.", body = IpcacheAnswer)))]
pub(crate) async fn get_ipcache_entry(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<SharedItemQuery>,
) -> Result<Json<IpcacheAnswer>, Problem> {
    let Path(text) = path.map_err(|rejection| bad_path(&rejection))?;
    let net = network(&text).ok_or_else(|| Problem::parameter("prefix", format!("{text:?} is not an address or CIDR")))?;
    let wanted = clusters(&query.values.cluster)?;
    let reading = state.handle.reading_for(Question::Entries(net)).await?;
    let found = reading.ips_at(net).filter(|record| wanted.is_empty() || wanted.contains(&record.key.cluster));
    let mut entries: Vec<_> = found
        .filter_map(|record| {
            let entry = IpcacheEntry::of(&record)?;
            Some((record, entry))
        })
        .collect();
    entries.sort_by_key(|(record, entry)| (!entry.host, reading.rank(record)));
    let sources: Vec<_> = entries.iter().map(|(record, _)| reading.source_of(record)).collect();
    check_age(query.values.max_age, &sources)?;
    let mut entries = entries.into_iter();
    let missing =
        || Problem::new(Code::NotFound, format!("no cluster has an entry {net}: /v1/ipcache/lookup?ip= finds what covers an address"));
    let (record, entry) = entries.next().ok_or_else(missing)?;
    let meta = ItemMeta::of_record(&reading, &record, query.values.max_age)?;
    Ok(Json(IpcacheAnswer { entry, others: entries.map(|(_, entry)| entry).collect(), meta }))
}

/// The entry that an agent would use for an address: the longest prefix. Of several for it, one of the own cluster (where that is mirrored too)
/// comes before those of others, then one that is announced before one that is derived from a node, then one whose newest bytes can be
/// used, then the newest.
#[utoipa::path(get, path = "/v1/ipcache/lookup", operation_id = "lookupIp", tag = "ipcache", params(LookupQuery),
    responses((status = 200, description = "What covers the address; `match` is null where nothing does.", body = LookupAnswer)))]
pub(crate) async fn lookup_ip(State(state): State<ApiState>, query: Parameters<LookupQuery>) -> Result<Json<LookupAnswer>, Problem> {
    let LookupQuery { ip, max_age } = &query.values;
    let ip: IpAddr = ip.parse().map_err(|_| Problem::parameter("ip", format!("{ip:?} is not an IP address")))?;
    let reading = state.handle.reading_for(Question::Lookup(ip.to_canonical())).await?;
    let found = reading.lookup(ip.to_canonical());
    let used = Used::of(std::slice::from_ref(&found));
    let sources = used.sources(&reading);
    check_age(*max_age, &sources)?;
    let meta = match found.first() {
        Some(first) => ItemMeta::of(&reading.source_of(&first.record), reading.position(), &sources),
        None => ItemMeta::nowhere(reading.position(), &sources),
    };
    Ok(Json(LookupAnswer::new(ip, &found, meta)))
}

/// Lookups of up to 10,000 addresses at once, all from one moment.
#[utoipa::path(post, path = "/v1/ipcache/lookup", operation_id = "lookupIps", tag = "ipcache", params(ItemQuery),
    request_body(content = LookupRequest, description = "The addresses."),
    responses((status = 200, description = "One item for each address, in the order asked.", body = LookupList)))]
pub(crate) async fn lookup_ips(
    State(state): State<ApiState>,
    query: Parameters<ItemQuery>,
    body: Result<Json<LookupRequest>, JsonRejection>,
) -> Result<Json<LookupList>, Problem> {
    let Json(LookupRequest { ips }) = body.map_err(|rejection| bad_body(&rejection))?;
    if ips.len() > BATCH_LENGTH_MAX {
        return Err(Problem::parameter("ips", format!("{} addresses are too many: ask for at most {BATCH_LENGTH_MAX} at once", ips.len())));
    }
    let reading = state.handle.reading().await?;
    let parsed: Vec<Option<IpAddr>> = ips.iter().map(|ip| ip.parse().ok()).collect();
    let found: Vec<_> = parsed.iter().flatten().map(|ip| reading.lookup(ip.to_canonical())).collect();
    let sources = Used::of(&found).sources(&reading);
    check_age(query.values.max_age, &sources)?;
    let mut answers = found.iter();
    let items = ips.iter().zip(&parsed).map(|(text, ip)| match ip.and_then(|_| answers.next()) {
        Some(found) => LookupItem::new(text, found),
        None => LookupItem::failed(text),
    });
    let meta = ListMeta { position: reading.position().to_string(), sources: sources.iter().map(Into::into).collect() };
    Ok(Json(LookupList { items: items.collect(), meta }))
}

/// The clusters that lookups used; an address that nothing covers has used the ipcache of all.
#[derive(Debug, Default)]
struct Used {
    clusters: BTreeSet<ClusterName>,
    all: bool,
}

impl Used {
    fn of(lookups: &[Vec<LookupMatch>]) -> Self {
        let clusters = lookups.iter().flatten().map(|found| found.record.key.cluster.clone()).collect();
        Self { clusters, all: lookups.iter().any(Vec::is_empty) }
    }

    fn sources(&self, reading: &Reading) -> Vec<SourceMeta> {
        let joined = self.clusters.iter().flat_map(|cluster| LOOKUP_KINDS.map(|kind| reading.source(cluster, kind)));
        let others = reading.cluster_names().into_iter().filter(|name| self.all && !self.clusters.contains(name));
        let others = others.flat_map(|cluster| IPCACHE_KINDS.map(|kind| reading.source(&cluster, kind)));
        joined.chain(others).collect()
    }
}

fn bad_body(rejection: &JsonRejection) -> Problem {
    let code = match rejection.status() {
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
        _ => Code::BadRequest,
    };
    Problem::new(code, format!("send {{\"ips\":[…]}} as application/json: {}", rejection.body_text()))
}

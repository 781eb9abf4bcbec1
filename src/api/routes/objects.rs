//! Routes of nodes, services and identities.

pub(crate) mod history;
pub(in crate::api::routes) mod past;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};

use self::past::{RequestedTime, absent, with_last_version};
use super::{bad_path, cluster_in_path, find_object, past_reading};
use crate::admission::Scanner;
use crate::api::paging::list_builder::PageBuffer;
use crate::api::paging::list_request::ListRequest;
use crate::api::paging::pages::{RowSource, SliceOutcome, into_outcome, record_rows, respond_with_object, respond_with_page};
use crate::api::paging::scanner::DeferredScanner;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{
    IdentitiesQuery, NodesQuery, Parameters, PastItemQuery, PlainQuery, ServicesQuery, SharedItemQuery, parse_clusters,
};
use crate::api::state::ApiState;
use crate::dto::meta::ItemMeta;
use crate::dto::objects::{Identity, IdentityAnswer, IpcacheEntry, Node, Service};
use crate::dto::{IdentityList, IpcacheList, NodeList, ServiceList};
use crate::handle::{Filter, PastReading, Reading, SearchText};
use crate::model::{ALLOCATED_IDENTITY_MIN, ClusterName, EntryKey, IdentityScope, Kind, Record, RecordQuery};

/// Nodes of all clusters.
///
/// In order of cluster and name, with their addresses, pod CIDRs, keys and labels.
#[utoipa::path(get, path = "/v1/nodes", operation_id = "listNodes", tag = "nodes", params(NodesQuery),
    responses((status = 200, description = "A page of nodes.", body = NodeList)))]
pub(crate) async fn list_nodes(
    State(state): State<ApiState>,
    query: Parameters<NodesQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        Ok((listing.meta(&[Kind::Node])?, record_rows(listing, Kind::Node, Node::from_record)?))
    })
    .await
}

/// One node.
///
/// As its cluster announces it, with its source and age in `meta`.
#[utoipa::path(get, path = "/v1/nodes/{cluster}/{name}", operation_id = "getNode", tag = "nodes",
    params(("cluster" = String, Path, description = "Cluster of the node."), ("name" = String, Path, description = "Name of the node."), PastItemQuery),
    responses((status = 200, description = "The node.", body = Node)))]
pub(crate) async fn get_node(
    State(state): State<ApiState>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Parameters<PastItemQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let Path((cluster, name)) = path.map_err(|rejection| bad_path(&rejection))?;
    let key = EntryKey::new(Kind::Node, cluster_in_path(&cluster)?, name.as_str());
    let meta_options = query.values.meta_options()?;
    let with_meta = |record: &Record, reading: &Reading, meta| Some(Node { meta: Some(meta), ..Node::from_record(record, reading)? });
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        return at.respond_with_object(&state.handle, &scanner, key, with_meta).await;
    }
    let reading = state.handle.reading_for(RecordQuery::Key(key.clone())).await?;
    let missing = || Problem::new(ProblemCode::NotFound, format!("cluster {cluster} has no node {name}: /v1/nodes lists all nodes"));
    let node = find_object(&reading, &key, meta_options, with_meta)?.ok_or_else(missing)?;
    Ok(Json(node).into_response())
}

/// Services as each cluster exports them.
///
/// In order of cluster, namespace and name, not merged. `/v1/global-services` merges them.
#[utoipa::path(get, path = "/v1/services", operation_id = "listServices", tag = "services", params(ServicesQuery),
    responses((status = 200, description = "A page of services.", body = ServiceList)))]
pub(crate) async fn list_services(
    State(state): State<ApiState>,
    query: Parameters<ServicesQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        Ok((listing.meta(&[Kind::Service])?, record_rows(listing, Kind::Service, Service::from_record)?))
    })
    .await
}

/// One service of one cluster.
///
/// Frontends and backends as the cluster exports them, with source and age in `meta`.
#[utoipa::path(get, path = "/v1/services/{cluster}/{namespace}/{name}", operation_id = "getService", tag = "services",
    params(
        ("cluster" = String, Path, description = "The cluster that exports the object."),
        ("namespace" = String, Path, description = "Kubernetes namespace."),
        ("name" = String, Path, description = "Name of the service."),
        PastItemQuery
    ),
    responses((status = 200, description = "The service.", body = Service)))]
pub(crate) async fn get_service(
    State(state): State<ApiState>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    query: Parameters<PastItemQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let Path((cluster, namespace, name)) = path.map_err(|rejection| bad_path(&rejection))?;
    let key = EntryKey::new(Kind::Service, cluster_in_path(&cluster)?, format!("{namespace}/{name}"));
    let meta_options = query.values.meta_options()?;
    let with_meta = |record: &Record, reading: &Reading, meta| Some(Service { meta: Some(meta), ..Service::from_record(record, reading)? });
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        return at.respond_with_object(&state.handle, &scanner, key, with_meta).await;
    }
    let reading = state.handle.reading_for(RecordQuery::Key(key.clone())).await?;
    let detail = || format!("cluster {cluster} exports no service {namespace}/{name}: /v1/services lists all services");
    let service = find_object(&reading, &key, meta_options, with_meta)?;
    Ok(Json(service.ok_or_else(|| Problem::new(ProblemCode::NotFound, detail()))?).into_response())
}

/// Identities that clusters announce.
///
/// In order of cluster and number, with their labels. Reserved identities that no cluster
/// announces are listed only with `search=`; otherwise, request them one by one.
#[utoipa::path(get, path = "/v1/identities", operation_id = "listIdentities", tag = "identities", params(IdentitiesQuery),
    responses((status = 200, description = "A page of identities.", body = IdentityList)))]
pub(crate) async fn list_identities(
    State(state): State<ApiState>,
    query: Parameters<IdentitiesQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    respond_with_page(&state.handle, scanner, query, |listing, _| {
        if listing.past.is_some() {
            return Ok((listing.meta(&[Kind::Identity])?, record_rows(listing, Kind::Identity, Identity::from_record)?));
        }
        let mut reserved = ReservedRows::begin(listing);
        let (reading, mut start) = (listing.reading.clone(), if reserved.is_first { None } else { listing.start_key()? });
        let plan = reading.plan_list(Kind::Identity, &listing.filter);
        let rows: RowSource = Box::new(move |page, slice| {
            if let Some(next) = reserved.add_to(page) {
                return SliceOutcome::Ended(Some(next));
            }
            let scanned = reading.scan(&plan, start.as_ref(), slice, |record| {
                Identity::from_record(record, &reading).is_none_or(|identity| page.push(&identity))
            });
            into_outcome(scanned, &mut start)
        });
        Ok((listing.meta(&[Kind::Identity])?, rows))
    })
    .await
}

/// One numeric identity.
///
/// If several clusters have the same number, the answer is the newest identity, and `others`
/// has the rest. Reserved and well-known identities are known even if no cluster announces
/// them. If no cluster has the number any more, the problem has the last version
/// (`lastVersion`), as far back as the history reaches.
#[utoipa::path(get, path = "/v1/identities/{id}", operation_id = "getIdentity", tag = "identities",
    params(("id" = u32, Path, description = "The numeric identity."), SharedItemQuery),
    responses((status = 200, description = "The identity.", body = IdentityAnswer)))]
pub(crate) async fn get_identity(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<SharedItemQuery>,
    scanner: DeferredScanner,
) -> Result<Response, Problem> {
    let id = identity_in_path(path)?;
    let wanted = parse_clusters(&query.values.cluster)?;
    let meta_options = query.values.meta_options()?;
    if let Some(at) = RequestedTime::parse(query.values.at.as_ref(), meta_options)? {
        let past = past_reading(&state.handle).await?;
        return respond_with_object(&scanner.admit()?, false, move || identity_at(&past, id, &wanted, at)).await;
    }
    let reading = state.handle.reading_for(RecordQuery::Identity(id)).await?;
    let mut records: Vec<_> = reading.identities(id).filter(|record| wanted.is_empty() || wanted.contains(&record.key.cluster)).collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.last_sequence));
    let mut found = records.iter().filter_map(|record| Identity::from_record(record, &reading));
    let Some((identity, newest)) = found.next().zip(records.first()) else {
        if let Some(identity) = Identity::reserved(id).filter(|_| wanted.is_empty()) {
            let meta = ItemMeta::without_source(reading.position(), &[], meta_options);
            return Ok(Json(IdentityAnswer { identity, others: Vec::new(), meta }).into_response());
        }
        let detail = format!("no cluster has an identity {id}{}: /v1/identities lists all identities", describe_owner(&reading, id));
        return Err(with_last_version(&state.handle, &scanner, id, wanted, Problem::new(ProblemCode::NotFound, detail)).await);
    };
    let sources: Vec<_> = records.iter().map(|record| reading.source_of(record)).collect();
    meta_options.check(&sources)?;
    let meta = ItemMeta::from_source(&reading.source_of(newest), reading.position(), &[], meta_options);
    Ok(Json(IdentityAnswer { identity, others: found.collect(), meta }).into_response())
}

/// Returns an identity at an earlier time.
fn identity_at(past: &PastReading, id: u32, wanted: &[ClusterName], at: RequestedTime) -> Result<IdentityAnswer, Problem> {
    let time = at.resolve(past, &[Kind::Identity], wanted)?;
    let found = past.identities_at(id, wanted, &time);
    let meta = |cluster| ItemMeta::at(past, &time, &found, cluster, at.meta_options);
    let first = found.first().and_then(|record| Some((record, Identity::from_record(record, &past.reading)?)));
    let Some((record, identity)) = first else {
        let known = Identity::reserved(id).filter(|_| wanted.is_empty());
        let missing = || absent(&found, &time, &format!("an identity {id}"), &format!("identity={id}"));
        return known.map(|identity| IdentityAnswer { identity, others: Vec::new(), meta: meta(None) }).ok_or_else(missing);
    };
    let others = found.records.iter().skip(1).filter_map(|other| Identity::from_record(other, &past.reading));
    Ok(IdentityAnswer { identity, others: others.collect(), meta: meta(Some(&record.key.cluster)) })
}

/// The ipcache entries of an identity.
///
/// Of all clusters that use the number, or only of `cluster=`, in key order.
#[utoipa::path(get, path = "/v1/identities/{id}/ips", operation_id = "listIdentityIps", tag = "identities",
    params(("id" = u32, Path, description = "The numeric identity."), PlainQuery),
    responses((status = 200, description = "A page of ipcache entries.", body = IpcacheList)))]
pub(crate) async fn list_identity_ips(
    State(state): State<ApiState>,
    path: Result<Path<String>, PathRejection>,
    query: Parameters<PlainQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    let id = identity_in_path(path)?;
    respond_with_page(&state.handle, scanner, query, move |listing, _| {
        let filtered = listing.with_filter(Filter { identity: Some(id), ..listing.filter.clone() });
        Ok((filtered.meta(&[Kind::Ip, Kind::Node])?, record_rows(&filtered, Kind::Ip, IpcacheEntry::from_record)?))
    })
    .await
}

/// Beginning of the page starts at reserved identities. No key begins with it.
const RESERVED_START: &str = "reserved/";

/// Source of the labels of reserved identities, with the colon.
const RESERVED_SOURCE: &str = "reserved:";

/// Reserved identities that a search finds, which come before the announced identities.
struct ReservedRows {
    /// Identities that are not in a page yet, in descending order.
    identities: Vec<Identity>,
    /// True if the page begins before the first announced identity.
    is_first: bool,
}

impl ReservedRows {
    /// Returns the reserved identities from the page start on. None match if the list has another
    /// filter.
    fn begin(listing: &ListRequest) -> Self {
        let next = listing.start_text().map_or(Some("0"), |start| start.strip_prefix(RESERVED_START));
        let first = next.and_then(|next| next.parse().ok());
        let search = listing.filter.search.as_ref();
        let is_only_filter = Filter { search: None, ..listing.filter.clone() } == Filter::default();
        let matches = |identity: &Identity, search: &SearchText| {
            identity.labels.0.iter().any(|(key, _)| key.starts_with(RESERVED_SOURCE) && search.is_in_label(key, ""))
        };
        let identities = match (search, first) {
            (Some(search), Some(first)) if is_only_filter => {
                let all = (first..ALLOCATED_IDENTITY_MIN).rev().filter_map(Identity::reserved);
                all.filter(|identity| matches(identity, search)).collect()
            }
            _ => Vec::new(),
        };
        Self { identities, is_first: first.is_some() }
    }

    /// Adds the identities to a page. If it is full, returns the start of the next page.
    fn add_to(&mut self, page: &mut PageBuffer) -> Option<String> {
        while let Some(identity) = self.identities.last() {
            if !page.push(identity) {
                return Some(format!("{RESERVED_START}{}", identity.id));
            }
            self.identities.pop();
        }
        None
    }
}

/// Describes the owner of the range of an identity number that no cluster announces.
fn describe_owner(reading: &Reading, id: u32) -> String {
    match (IdentityScope::of(id), reading.owner_of_identity(id)) {
        (IdentityScope::Global, Some((owner, Some(cluster)))) => format!(", a number in the range of cluster {cluster} (id {owner})"),
        (IdentityScope::Global, Some((owner, None))) => {
            format!(", a number in the range of a cluster with id {owner}, which is unknown here")
        }
        (IdentityScope::Global, None) => String::new(),
        (IdentityScope::Local, _) => ", a number that is only valid on one node".to_owned(),
        (IdentityScope::RemoteNode, _) => ", a number for a remote node that is only valid on one node".to_owned(),
        (IdentityScope::Unknown, _) => ", a number of an unknown scope".to_owned(),
    }
}

fn identity_in_path(path: Result<Path<String>, PathRejection>) -> Result<u32, Problem> {
    let Path(text) = path.map_err(|rejection| bad_path(&rejection))?;
    text.parse().map_err(|_| Problem::bad_parameter("id", format!("{text:?} is not a numeric identity from 0 to {}", u32::MAX)))
}

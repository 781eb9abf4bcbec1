//! Route of earlier versions of entries.

use std::net::IpAddr;

use axum::extract::State;
use axum::response::Response;

use crate::admission::Scanner;
use crate::api::paging::list_request::checked_limit;
use crate::api::paging::pages::respond_with_slices;
use crate::api::problem::{Problem, ProblemCode};
use crate::api::query::{HistoryQuery, Parameters};
use crate::api::routes::cluster_in_path;
use crate::api::state::ApiState;
use crate::dto::problem::ProblemDocument;
use crate::dto::streamed::VersionList;
use crate::handle::{Handle, PastReading, VersionSelection};
use crate::model::{EntryKey, Kind, Sequence};

/// Versions of an address, a key, an identity, a pod or a node, newest first.
///
/// The current versions, and the versions that changes ended, as far back as the history reaches
/// (`--history-max-age`, `--history-max-bytes`). `ip`: every ipcache entry that covers the address.
/// `identity`: the identity and the ipcache entries that name it. `gaps` has the periods in which
/// meshkeep did not see changes when they happened.
#[utoipa::path(get, path = "/v1/history", operation_id = "listVersions", tag = "history", params(HistoryQuery),
    responses(
        (status = 200, description = "A page of versions.", body = VersionList),
        (status = 404, description = "There is no such object.", body = ProblemDocument)
    ))]
pub(crate) async fn list_versions(
    State(state): State<ApiState>,
    query: Parameters<HistoryQuery>,
    scanner: Scanner,
) -> Result<Response, Problem> {
    let limit = checked_limit(query.values.limit)?;
    let (selection, before) = (query.values.selection()?, query.values.before()?);
    let past = past_reading(&state.handle).await?;
    let mut work = past.query(selection, before, limit);
    respond_with_slices(&scanner, move |slice| {
        let write = |page| {
            serde_json::to_vec(&VersionList::new(&past, &page))
                .map_err(|error| Problem::internal(format!("an answer cannot be written: {error}")))
        };
        work.advance(slice).map_break(write)
    })
    .await
}

/// Returns the newest snapshot with its history.
///
/// # Errors
/// A problem if meshkeep keeps no history, or if the store is still loading.
pub(in crate::api::routes) async fn past_reading(handle: &Handle) -> Result<PastReading, Problem> {
    let without_history = || Problem::new(ProblemCode::NotFound, "meshkeep keeps no history: start it without --history off");
    handle.past_reading().await?.ok_or_else(without_history)
}

impl HistoryQuery {
    fn selection(&self) -> Result<VersionSelection, Problem> {
        let Self { ip, key, identity, pod, node, cluster, .. } = self;
        let bad = Problem::bad_parameter;
        let split = |name: &'static str, text: &str, form: &str| {
            let parts = text.split_once('/').map(|(first, second)| (first.to_owned(), second.to_owned()));
            parts.ok_or_else(|| bad(name, format!("{text:?} is not of the form {form}")))
        };
        let selections = [
            ip.as_ref().map(|text| {
                let ip: Result<IpAddr, _> = text.parse();
                ip.map(|ip| VersionSelection::Covering(ip.to_canonical())).map_err(|_| bad("ip", format!("{text:?} is not an IP address")))
            }),
            key.as_ref().map(|text| {
                let unknown = || bad("key", format!("{text:?} is not a key in cache form, such as cilium/cache/nodes/v1/paris/worker-1"));
                EntryKey::from_cache_form(text).filter(|key| key.kind < Kind::Cluster).map(VersionSelection::Key).ok_or_else(unknown)
            }),
            identity.map(|identity| Ok(VersionSelection::Identity(identity))),
            pod.as_ref().map(|text| {
                let (namespace, name) = split("pod", text, "NAMESPACE/NAME")?;
                Ok(VersionSelection::Pod { namespace, name })
            }),
            node.as_ref().map(|text| {
                let (cluster, name) = split("node", text, "CLUSTER/NAME")?;
                Ok(VersionSelection::Key(EntryKey::new(Kind::Node, cluster_in_path(&cluster)?, name)))
            }),
            cluster.as_ref().map(|text| {
                let clusters = vec![cluster_in_path(text)?];
                Ok(VersionSelection::Scopes { kinds: Kind::STORED.to_vec(), clusters })
            }),
        ];
        let mut given = selections.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(selection), None) => selection,
            (None, _) => Err(Problem::bad_parameter("ip", "is missing: give exactly one of ip, key, identity, pod, node and cluster")),
            (Some(_), Some(_)) => {
                Err(Problem::bad_parameter("ip", "is not the only selection: give exactly one of ip, key, identity, pod, node and cluster"))
            }
        }
    }

    fn before(&self) -> Result<Option<Sequence>, Problem> {
        let parse =
            |token: &String| token.parse().map(Sequence).map_err(|_| Problem::bad_parameter("pageToken", "is not a token of this list"));
        self.page_token.as_ref().map(parse).transpose()
    }
}

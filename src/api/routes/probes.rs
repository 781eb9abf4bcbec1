//! Probes like those of Kubernetes: `ok`, or with `?verbose` one line for each check. `exclude=`
//! skips a check.
//!
//! The lines contain names of clusters, keys and addresses of remote etcds, so only clients that
//! may read everything get them. An anonymous client always gets only `ok` or `not ok`.
//!
//! Unknown parameters are ignored, as in Kubernetes' own probes: a prober may send the same query
//! to many components, and must not find one of them failing because of it.

use std::collections::BTreeSet;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum_extra::extract::{Query, QueryRejection};

use crate::api::dto::status::store_state;
use crate::api::guard::Access;
use crate::api::state::ApiState;
use crate::handle::{ClusterReading, Handle, Origin};
use crate::model::Phase;

/// Access of the client. The guard sets it for each request.
type Who = Option<Extension<Access>>;

/// Parameters of a probe. Those that cannot be parsed are ignored.
type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A check, and why it fails.
struct Check {
    name: String,
    trouble: Option<String>,
    /// Set if a failure is only reported, because the answers are correct despite it.
    is_remark: bool,
}

/// Parameters of a probe.
#[derive(Debug, Default)]
struct Asked {
    verbose: bool,
    synced: bool,
    /// Names of the checks to skip.
    excluded: BTreeSet<String>,
}

/// Liveness of the process.
///
/// For liveness probes. It depends on no remote cluster and not on the store.
#[utoipa::path(get, path = "/livez", operation_id = "getLivez", tag = "probes",
    params(
        ("verbose" = Option<String>, Query, description = "List each check in the answer."),
        ("exclude" = Option<Vec<String>>, Query, description = "Skip the check of this name; repeatable.")
    ),
    responses((status = 200, description = "The process answers.", body = String, content_type = "text/plain")))]
pub(crate) async fn livez(who: Who, query: Pairs) -> Response {
    report("livez", &[check("ping", None)], asked(query), who)
}

/// Readiness for lookups; with `?synced`, also of every cluster.
///
/// With `?verbose`, one line for each check. Anonymous clients only get `ok` or `not ok`. Ready
/// does not mean synced: answers may be restored, and `origin` says so.
#[utoipa::path(get, path = "/readyz", operation_id = "getReadyz", tag = "probes",
    params(
        ("verbose" = Option<String>, Query, description = "List each check in the answer."),
        ("synced" = Option<String>, Query, description = "Also require at least one cluster, and that every cluster is live and confirmed."),
        ("exclude" = Option<Vec<String>>, Query, description = "Skip the check of this name, for example `cluster/paris`; repeatable.")
    ),
    responses(
        (status = 200, description = "All checks pass.", body = String, content_type = "text/plain"),
        (status = 503, description = "A check fails.", body = String, content_type = "text/plain")
    ))]
pub(crate) async fn readyz(State(state): State<ApiState>, who: Who, query: Pairs) -> Response {
    let asked = asked(query);
    report("readyz", &checks(&state, asked.synced), asked, who)
}

/// `/readyz` under another name, for tools that know only this one.
///
/// With `?verbose`, one line for each check.
#[utoipa::path(get, path = "/healthz", operation_id = "getHealthz", tag = "probes",
    params(
        ("verbose" = Option<String>, Query, description = "List each check in the answer."),
        ("exclude" = Option<Vec<String>>, Query, description = "Skip the check of this name; repeatable.")
    ),
    responses(
        (status = 200, description = "Lookups work.", body = String, content_type = "text/plain"),
        (status = 503, description = "A check fails.", body = String, content_type = "text/plain")
    ))]
pub(crate) async fn healthz(State(state): State<ApiState>, who: Who, query: Pairs) -> Response {
    report("healthz", &checks(&state, false), asked(query), who)
}

fn asked(query: Pairs) -> Asked {
    let mut asked = Asked::default();
    for (name, value) in query.into_iter().flat_map(|Query(pairs)| pairs) {
        match name.as_str() {
            "verbose" => asked.verbose = true,
            "synced" => asked.synced = true,
            "exclude" => drop(asked.excluded.insert(value)),
            _ => {}
        }
    }
    asked
}

fn checks(state: &ApiState, synced: bool) -> Vec<Check> {
    let reading = state.handle.try_reading();
    let loading = || "still loading".to_owned();
    let mut checks = vec![
        check("store", reading.is_none().then(loading)),
        storing(&state.handle),
        check("shutdown", state.stop.is_cancelled().then(|| "shutting down".to_owned())),
    ];
    if synced {
        let directory = state.handle.directory();
        let unreadable = || directory.error.unwrap_or_else(|| "not read yet".to_owned());
        checks.push(check("directory", (!directory.readable).then(unreadable)));
        checks.push(check("clusters", state.handle.no_clusters().map(|none| one_line(&none.reason))));
        if let Some(reading) = &reading {
            let configured = reading.configured_clusters();
            // if a file was valid before and cannot be read now, its cluster stays in use
            let unread = directory.invalid.into_iter().filter(|(file, _)| configured.iter().all(|name| name.as_str() != file));
            checks.extend(
                unread.map(|(file, reason)| {
                    check(&format!("cluster/{file}"), Some(format!("its file cannot be used: {}", one_line(&reason))))
                }),
            );
            checks.extend(configured.into_iter().filter_map(|name| reading.cluster(&name)).map(|cluster| cluster_check(&cluster)));
        }
    }
    checks
}

/// Checks that a cluster with a client file is live and all of its data is confirmed.
fn cluster_check(cluster: &ClusterReading) -> Check {
    let restored = cluster.resources.iter().find(|resource| resource.source.origin != Origin::Live);
    let trouble = match (cluster.phase, restored) {
        (Some(Phase::Live), None) => None,
        (Some(Phase::Live), Some(resource)) => Some(format!("{} not confirmed yet", resource.kind)),
        (phase, _) => {
            let error = cluster.status.as_ref().and_then(|status| status.last_error.as_deref());
            let error = error.map(|error| format!(": {}", one_line(error))).unwrap_or_default();
            Some(format!("{}{error}", phase.map_or("not started yet", Phase::api_name)))
        }
    };
    check(&format!("cluster/{}", cluster.name), trouble)
}

/// Checks the store. A failure is only reported, because the answers come from the remote clusters.
fn storing(handle: &Handle) -> Check {
    let (name, error) = store_state(handle);
    let trouble = match name {
        "healthy" | "loading" => None,
        "lost" => Some(format!("the store has lost data: {}", handle.store().losses.join("; "))),
        _ => Some(format!("{name}, new changes are only in memory or in the log: {}", error.unwrap_or_default())),
    };
    Check { is_remark: true, ..check("storing", trouble) }
}

fn check(name: &str, trouble: Option<String>) -> Check {
    Check { name: name.to_owned(), trouble, is_remark: false }
}

/// Puts an error on one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn report(probe: &str, checks: &[Check], mut asked: Asked, who: Who) -> Response {
    let (mut lines, mut passed) = (String::new(), true);
    for check in checks {
        lines += &match &check.trouble {
            _ if asked.excluded.remove(&check.name) => format!("[+]{} excluded: ok\n", check.name),
            None => format!("[+]{} ok\n", check.name),
            Some(trouble) if check.is_remark => format!("[!]{}: {trouble}\n", check.name),
            Some(trouble) => {
                passed = false;
                format!("[-]{} failed: {trouble}\n", check.name)
            }
        };
    }
    let status = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // clients without confirmed access get no details
    let is_anonymous = who.is_none_or(|Extension(access)| access == Access::Anonymous);
    if is_anonymous || (passed && !asked.verbose) {
        return (status, if passed { "ok" } else { "not ok" }).into_response();
    }
    if !asked.excluded.is_empty() {
        // without the names: text from clients is not sent back
        lines += "warn: there are no checks with some of the excluded names\n";
    }
    lines += &format!("{probe} check {}\n", if passed { "passed" } else { "failed" });
    (status, lines).into_response()
}

//! Probes like those of Kubernetes: `ok`, or with `?verbose` one line for each check. `exclude=`
//! skips a check.
//!
//! The lines contain names of clusters, keys and addresses of remote etcds, so only clients that
//! may read everything get them. An anonymous client always gets only `ok` or `not ok`.
//!
//! Unknown parameters are ignored, as in Kubernetes' own probes: a prober may send the same query
//! to many components, and none of them may fail because of it.

use std::collections::{BTreeMap, BTreeSet};

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum_extra::extract::{Query, QueryRejection};

use crate::api::dto::status::store_state;
use crate::api::guard::Access;
use crate::api::state::ApiState;
use crate::dto::values::closed::StoreState;
use crate::handle::{ClusterReading, Handle, Origin, Reading};
use crate::model::Phase;

/// Access of the client. The guard sets it for each request.
type CallerAccess = Option<Extension<Access>>;

/// Parameters of a probe. Those that cannot be parsed are ignored.
type ProbeQuery = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// A check, and why it fails.
struct ProbeCheck {
    name: String,
    failure: Option<String>,
    /// Set if a failure is only reported, because the answers are correct despite it.
    is_warning: bool,
}

/// Parameters of a probe.
#[derive(Debug, Default)]
struct ProbeOptions {
    verbose: bool,
    synced: bool,
    /// Names of the checks to skip.
    excluded_checks: BTreeSet<String>,
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
pub(crate) async fn livez(access: CallerAccess, query: ProbeQuery) -> Response {
    report("livez", &[new_check("ping", None)], parse_options(query), access)
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
pub(crate) async fn readyz(State(state): State<ApiState>, access: CallerAccess, query: ProbeQuery) -> Response {
    let options = parse_options(query);
    report("readyz", &checks(&state, &options), options, access)
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
pub(crate) async fn healthz(State(state): State<ApiState>, access: CallerAccess, query: ProbeQuery) -> Response {
    let options = ProbeOptions { synced: false, ..parse_options(query) };
    report("healthz", &checks(&state, &options), options, access)
}

fn parse_options(query: ProbeQuery) -> ProbeOptions {
    let mut options = ProbeOptions::default();
    for (name, value) in query.into_iter().flat_map(|Query(pairs)| pairs) {
        match name.as_str() {
            "verbose" => options.verbose = true,
            "synced" => options.synced = true,
            "exclude" => drop(options.excluded_checks.insert(value)),
            _ => {}
        }
    }
    options
}

fn checks(state: &ApiState, options: &ProbeOptions) -> Vec<ProbeCheck> {
    let reading = state.handle.try_reading();
    let loading = || "still loading".to_owned();
    let mut checks = vec![
        new_check("store", reading.is_none().then(loading)),
        store_check(&state.handle),
        new_check("shutdown", state.stop.is_cancelled().then(|| "shutting down".to_owned())),
    ];
    if options.synced {
        let directory = state.handle.directory();
        let unreadable = || directory.error.unwrap_or_else(|| "not read yet".to_owned());
        checks.push(new_check("directory", (!directory.readable).then(unreadable)));
        checks.push(new_check("clusters", state.handle.missing_clusters().map(|none| one_line(&none.reason))));
        if let Some(reading) = &reading {
            let fails = |check: &ProbeCheck| check.failure.is_some() && !check.is_warning;
            // if every check passes, its line is not needed
            if options.verbose || !reading.summary().is_synced || !directory.invalid.is_empty() || checks.iter().any(fails) {
                checks.extend(cluster_checks(reading, directory.invalid));
            }
        }
    }
    checks
}

/// Checks each cluster with a client file.
fn cluster_checks(reading: &Reading, invalid_files: BTreeMap<String, String>) -> Vec<ProbeCheck> {
    let configured = reading.configured_clusters();
    // if a file was valid before and cannot be read now, its cluster stays in use
    let unread = invalid_files.into_iter().filter(|(file, _)| configured.iter().all(|name| name.as_str() != file));
    let unread =
        unread.map(|(file, reason)| new_check(&format!("cluster/{file}"), Some(format!("its file cannot be used: {}", one_line(&reason)))));
    unread.chain(configured.iter().filter_map(|name| reading.cluster(name)).map(|cluster| cluster_check(&cluster))).collect()
}

/// Checks that a cluster with a client file is live and all of its data is confirmed.
fn cluster_check(cluster: &ClusterReading) -> ProbeCheck {
    let restored = cluster.resources.iter().find(|resource| resource.source.origin != Origin::Live);
    let failure = match (cluster.phase, restored) {
        (Some(Phase::Live), None) => None,
        (Some(Phase::Live), Some(resource)) => Some(format!("{} not confirmed yet", resource.kind)),
        (phase, _) => {
            let error = cluster.status.as_ref().and_then(|status| status.last_error.as_deref());
            let error = error.map(|error| format!(": {}", one_line(error))).unwrap_or_default();
            Some(format!("{}{error}", phase.map_or("not started yet", Phase::api_name)))
        }
    };
    new_check(&format!("cluster/{}", cluster.name), failure)
}

/// Checks the store. A failure is only reported, because the answers come from the remote clusters.
fn store_check(handle: &Handle) -> ProbeCheck {
    let (state, error) = store_state(handle);
    let failure = match state {
        StoreState::Healthy | StoreState::Loading => None,
        StoreState::Lost => Some(format!("the store has lost data: {}", handle.store_report().losses.join("; "))),
        StoreState::Failing | StoreState::Stopped => {
            Some(format!("{state}, new changes are only in memory or in the log: {}", error.unwrap_or_default()))
        }
    };
    ProbeCheck { is_warning: true, ..new_check("storing", failure) }
}

fn new_check(name: &str, failure: Option<String>) -> ProbeCheck {
    ProbeCheck { name: name.to_owned(), failure, is_warning: false }
}

/// Puts an error on one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn report(probe: &str, checks: &[ProbeCheck], mut options: ProbeOptions, access: CallerAccess) -> Response {
    let (mut lines, mut passed) = (String::new(), true);
    for check in checks {
        lines += &match &check.failure {
            _ if options.excluded_checks.remove(&check.name) => format!("[+]{} excluded: ok\n", check.name),
            None => format!("[+]{} ok\n", check.name),
            Some(failure) if check.is_warning => format!("[!]{}: {failure}\n", check.name),
            Some(failure) => {
                passed = false;
                format!("[-]{} failed: {failure}\n", check.name)
            }
        };
    }
    let status = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // anonymous clients get no details
    let is_anonymous = access.is_none_or(|Extension(access)| access == Access::Anonymous);
    if is_anonymous || (passed && !options.verbose) {
        return (status, if passed { "ok" } else { "not ok" }).into_response();
    }
    if !options.excluded_checks.is_empty() {
        // without the names: text from clients is not sent back
        lines += "warn: there are no checks with some of the excluded names\n";
    }
    lines += &format!("{probe} check {}\n", if passed { "passed" } else { "failed" });
    (status, lines).into_response()
}

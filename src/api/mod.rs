//! The HTTP face: routes, shapes, errors, the change stream and the OpenAPI document. Connections are `server`'s.
//!
//! Receives a [`Handle`](crate::handle::Handle) and asks it; emits HTTP. The only importer of tower-http; of axum with `server`,
//! of utoipa with `dto`. Deliberately lacks: any way to change the mirror, and any knowledge of etcd or of the store.

mod accept;
mod bind_error;
mod bound;
mod conditional;
mod dto;
mod etcd;
mod events;
mod fields;
mod guard;
mod hints;
mod lines;
mod making;
mod meant;
mod one_line;
mod openapi;
mod page_starts;
mod pages;
mod paging;
mod problem;
mod query;
mod render;
mod request_times;
mod routes;
mod scanner;
mod state;
mod tagging;
#[cfg(test)]
mod tests;
mod words;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::sync::Notify;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use guard::Guard;
use problem::{Code, Problem};
use state::ApiState;

use crate::model::{Causes, Due, ListenAddress, SecretUrl};
use crate::server::{ConnectionLimits, TlsFiles};

pub use bind_error::BindError;
pub use bound::Bound;
pub use etcd::etcd_service;

/// How large a request's body may be: 10,000 IPv6 addresses in JSON are 430 kB.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The only path that takes more than reading.
const BATCH_PATH: &str = "/v1/ipcache/lookup";

/// Panics of handlers that were logged lately: what makes one panic can be asked again and again.
static PANICS: Causes = Causes::new();

/// What the face needs beside its addresses.
#[derive(Debug, Clone, Default)]
pub struct ApiOptions {
    /// Where probes and metrics alone are served, to whoever asks.
    pub health_listen: Option<ListenAddress>,
    /// Where the mirror is served as an etcd (`Bound::with_etcd`), with TLS where there is any.
    pub etcd_listen: Option<ListenAddress>,
    /// `Host` values that are accepted beside the bound addresses and loopback names.
    pub allowed_hosts: Vec<String>,
    /// A file with the bearer token that every request must carry but probes and those for the files of the page; read again when it changes.
    pub token_file: Option<PathBuf>,
    /// TLS on every TCP address; its files are read again when they change.
    pub tls: Option<TlsFiles>,
    /// Says that token and certificates shall be read again in any case.
    pub reread: Arc<Notify>,
    /// Where findings that appear or go are posted.
    pub on_problem: Option<SecretUrl>,
    /// How many connections, and how long each may do nothing.
    pub limits: ConnectionLimits,
}

/// The OpenAPI document in either form, pretty and with a newline at the end: what is committed in `openapi/`.
#[must_use]
pub fn openapi_json(form: OpenapiForm) -> &'static str {
    match form {
        OpenapiForm::New => openapi::document(),
        OpenapiForm::Old => openapi::document_30(),
    }
}

/// The form of the OpenAPI document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenapiForm {
    /// 3.1.0.
    New,
    /// 3.0.3, for tools that know nothing newer.
    Old,
}

/// What the lines of a stream are, which its route cannot say.
#[derive(OpenApi)]
#[openapi(components(schemas(crate::dto::events::WatchEvent)))]
struct StreamLines;

/// The routes that the OpenAPI document describes.
fn documented_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(StreamLines::openapi()).merge(lookup_routes()).merge(stream_routes())
}

/// Those that answer and are done.
fn lookup_routes() -> OpenApiRouter<ApiState> {
    use routes::{batch, clusters, config, entries, explain, exports, global_services, ipcache, log, metrics, objects, probes, problems};
    OpenApiRouter::new()
        .routes(routes!(clusters::get_status))
        .routes(routes!(config::get_config))
        .routes(routes!(log::get_log))
        .routes(routes!(clusters::list_clusters))
        .routes(routes!(clusters::get_cluster))
        .routes(routes!(objects::list_nodes))
        .routes(routes!(objects::get_node))
        .routes(routes!(objects::list_services))
        .routes(routes!(objects::get_service))
        .routes(routes!(global_services::list_global_services))
        .routes(routes!(global_services::get_global_service))
        .routes(routes!(exports::list_service_exports))
        .routes(routes!(exports::get_service_export))
        .routes(routes!(exports::list_endpoint_slices))
        .routes(routes!(exports::get_endpoint_slice))
        .routes(routes!(objects::list_identities))
        .routes(routes!(objects::get_identity))
        .routes(routes!(objects::list_identity_ips))
        .routes(routes!(ipcache::list_ipcache))
        .routes(routes!(ipcache::lookup_ip, batch::lookup_ips))
        .routes(routes!(ipcache::get_ipcache_entry))
        .routes(routes!(explain::explain_ip))
        .routes(routes!(problems::list_problems))
        .routes(routes!(entries::list_entries))
        .routes(routes!(entries::get_entry))
        .routes(routes!(entries::list_rejected))
        .routes(routes!(events::changes::list_changes))
        .routes(routes!(metrics::get_metrics))
        .routes(routes!(probes::livez))
        .routes(routes!(probes::readyz))
        .routes(routes!(probes::healthz))
}

/// The routes of streams. They are never compressed: a proxy or client would hold back what the compressor has not flushed.
fn stream_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(events::watch_events))
}

/// The whole face over a state.
fn router(state: ApiState, guard: Guard) -> Router {
    let (lookups, _) = lookup_routes().split_for_parts();
    let (streams, _) = stream_routes().split_for_parts();
    let routes = lookups
        .route("/", get(routes::page::index))
        .route("/assets/{*path}", get(routes::page::asset))
        .route("/problems", get(routes::problem_pages::index))
        .route("/problems/{type}", get(routes::problem_pages::one))
        .route("/docs", get(routes::documents::docs))
        .route("/docs/style.css", get(routes::documents::docs_style))
        .route("/docs/script.js", get(routes::documents::docs_script))
        .route("/openapi.json", get(routes::documents::openapi_31))
        .route("/openapi-3.0.json", get(routes::documents::openapi_30))
        .route_layer(from_fn_with_state(state.clone(), conditional::answer))
        .route_layer(from_fn(accept::negotiate))
        .fallback(unknown_route)
        .layer(CompressionLayer::new())
        .merge(streams.route_layer(from_fn(accept::negotiate)));
    guarded(routes, state, guard)
}

/// Probes and metrics alone, for whoever asks.
fn health_router(state: ApiState, guard: Guard) -> Router {
    use routes::{metrics, probes};
    let routes = Router::new()
        .route("/livez", get(probes::livez))
        .route("/readyz", get(probes::readyz))
        .route("/healthz", get(probes::healthz))
        .route("/metrics", get(metrics::get_metrics))
        .fallback(no_probe)
        .layer(CompressionLayer::new());
    guarded(routes, state, guard)
}

/// What every request passes, on whatever address: it is timed, its answer has a form, it is let in, and it can break nothing.
fn guarded(routes: Router<ApiState>, state: ApiState, guard: Guard) -> Router {
    routes
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(guard, guard::check))
        .layer(from_fn(render::render))
        .layer(from_fn_with_state(state.times.clone(), request_times::measure))
        .with_state(state)
}

async fn no_probe() -> Problem {
    Problem::new(
        Code::UnknownRoute,
        "this is --health-listen, which serves /livez, /readyz, /healthz and /metrics alone: ask for the rest where --listen is",
    )
}

async fn unknown_route(uri: Uri) -> Problem {
    let nearly = meant::meant(uri.path()).map(|meant| format!(", you may mean {meant}")).unwrap_or_default();
    Problem::new(Code::UnknownRoute, format!("there is no such path{nearly}: / lists what there is, /openapi.json describes it"))
}

/// axum writes the `Allow` header only once all of this has run, so that the methods are said here anew (a test compares the two).
async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let methods = if uri.path() == BATCH_PATH { "GET, HEAD and POST" } else { "GET and HEAD" };
    Problem::new(Code::MethodNotAllowed, format!("{} takes {methods}, not {method}", uri.path()))
}

/// A handler that panicked: logged, and answered like any other trouble.
#[expect(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
fn panicked(panic: Box<dyn std::any::Any + Send>) -> axum::response::Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let panic = text.unwrap_or("unknown");
    if let Some(Due { more }) = PANICS.due(panic) {
        tracing::error!(panic, more, "a request handler panicked");
    }
    Problem::new(Code::Internal, "this is a fault in meshkeep: its log has the details").into_response()
}

//! The routes of the HTTP API, and the layers that every request passes.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::get;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::guard::{self, BODY_BYTES_MAX, Guard};
use super::problem::{Code, Problem};
use super::render::accept::{BATCH_PATH, negotiate};
use super::render::{conditional, errors, problem_pages};
use super::state::ApiState;
use super::{events, meant, request_times, routes};
use crate::model::{Causes, Due};

/// Panics of handlers that were logged lately: what makes one panic can be asked again and again.
static PANICS: Causes = Causes::new();

/// What the lines of a stream are, which its route cannot say.
#[derive(OpenApi)]
#[openapi(components(schemas(crate::dto::events::WatchEvent)))]
struct StreamLines;

/// The routes that the OpenAPI document describes.
pub(crate) fn documented_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(StreamLines::openapi()).merge(lookup_routes()).merge(stream_routes())
}

/// Those that answer and are done.
fn lookup_routes() -> OpenApiRouter<ApiState> {
    use routes::{clusters, config, entries, exports, global_services, ipcache, log, metrics, objects, probes, problems};
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
        .routes(routes!(ipcache::lookup_ip, ipcache::batch::lookup_ips))
        .routes(routes!(ipcache::get_ipcache_entry))
        .routes(routes!(ipcache::explain::explain_ip))
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
pub(crate) fn router(state: ApiState, guard: Guard) -> Router {
    let (lookups, _) = lookup_routes().split_for_parts();
    let (streams, _) = stream_routes().split_for_parts();
    let routes = lookups
        .route("/", get(routes::page::index))
        .route("/assets/{*path}", get(routes::page::asset))
        .route("/problems", get(problem_pages::index))
        .route("/problems/{type}", get(problem_pages::one))
        .route("/docs", get(routes::documents::docs))
        .route("/docs/style.css", get(routes::documents::docs_style))
        .route("/docs/script.js", get(routes::documents::docs_script))
        .route("/openapi.json", get(routes::documents::openapi_31))
        .route("/openapi-3.0.json", get(routes::documents::openapi_30))
        .route_layer(from_fn_with_state((state.handle.clone(), state.scans.clone()), conditional::answer))
        .route_layer(from_fn(negotiate))
        .fallback(unknown_route)
        .layer(CompressionLayer::new())
        .merge(streams.route_layer(from_fn(negotiate)));
    guarded(routes, state, guard)
}

/// Probes and metrics alone, for whoever asks.
pub(crate) fn health_router(state: ApiState, guard: Guard) -> Router {
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
        .layer(from_fn(errors::render))
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
pub(crate) fn panicked(panic: Box<dyn std::any::Any + Send>) -> axum::response::Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let panic = text.unwrap_or("unknown");
    if let Some(Due { more }) = PANICS.due(panic) {
        tracing::error!(panic, more, "a request handler panicked");
    }
    Problem::new(Code::Internal, "this is a fault in meshkeep: its log has the details").into_response()
}

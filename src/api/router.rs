//! The routes of the HTTP API, and the middleware for every request.

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
use super::problem::{Problem, ProblemCode};
use super::render::accept::{BATCH_PATH, negotiate};
use super::render::{conditional, errors, problem_pages};
use super::state::ApiState;
use super::{events, path_suggestions, request_times, routes};
use crate::instruments::{LogLimiter, LogPermit};

/// Recently logged panics of handlers. A request that causes a panic can be repeated many times.
static PANICS: LogLimiter = LogLimiter::new();

/// Schema of an event of a stream. The route cannot declare it itself, because its body is text.
#[derive(OpenApi)]
#[openapi(components(schemas(crate::dto::events::WatchEvent)))]
struct StreamLineSchema;

/// Returns the routes that the OpenAPI document describes.
pub(crate) fn documented_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(StreamLineSchema::openapi()).merge(lookup_routes()).merge(stream_routes())
}

/// Returns the routes with finite answers.
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

/// Returns the routes of streams. They are never compressed, because the compressor, a proxy or the
/// client could hold back events in its buffer.
fn stream_routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(events::watch_events))
}

/// Creates the router of the whole HTTP API.
pub(crate) fn router(state: ApiState, guard: Guard) -> Router {
    let (lookups, _) = lookup_routes().split_for_parts();
    let (streams, _) = stream_routes().split_for_parts();
    let routes = lookups
        .route("/", get(routes::page::index))
        .route("/assets/{*path}", get(routes::page::asset))
        .route("/problems", get(problem_pages::index))
        .route("/problems/{type}", get(problem_pages::page_of_problem))
        .route("/docs", get(routes::documents::docs))
        .route("/docs/style.css", get(routes::documents::docs_style))
        .route("/docs/script.js", get(routes::documents::docs_script))
        .route("/openapi.json", get(routes::documents::openapi_31))
        .route("/openapi-3.0.json", get(routes::documents::openapi_30))
        .route_layer(from_fn_with_state((state.handle.clone(), state.scans.clone()), conditional::tag_response))
        .route_layer(from_fn(negotiate))
        .fallback(unknown_route)
        .layer(CompressionLayer::new())
        .merge(streams.route_layer(from_fn(negotiate)));
    guarded(routes, state, guard)
}

/// Creates the router of the address that serves only probes and metrics.
pub(crate) fn health_router(state: ApiState, guard: Guard) -> Router {
    use routes::{metrics, probes};
    let routes = Router::new()
        .route("/livez", get(probes::livez))
        .route("/readyz", get(probes::readyz))
        .route("/healthz", get(probes::healthz))
        .route("/metrics", get(metrics::get_metrics))
        .fallback(not_on_health_address)
        .layer(CompressionLayer::new());
    guarded(routes, state, guard)
}

/// Adds the middleware for every request on any address: durations, errors, access checks, limits
/// and panic handling.
fn guarded(routes: Router<ApiState>, state: ApiState, guard: Guard) -> Router {
    routes
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(CatchPanicLayer::custom(handle_panic))
        .layer(from_fn_with_state(guard, guard::check_access))
        .layer(from_fn(errors::render))
        .layer(from_fn_with_state(state.times.clone(), request_times::measure_request))
        .with_state(state)
}

async fn not_on_health_address() -> Problem {
    Problem::new(
        ProblemCode::UnknownRoute,
        "this is the address of --health-listen, which only serves /livez, /readyz, /healthz and /metrics: use the address of --listen for other paths",
    )
}

async fn unknown_route(uri: Uri) -> Problem {
    let hint = path_suggestions::suggest_path(uri.path()).map(|suggestion| format!(", perhaps {suggestion}")).unwrap_or_default();
    Problem::new(ProblemCode::UnknownRoute, format!("there is no such path{hint}: / lists all paths, /openapi.json describes them"))
}

/// Answers a method that a path does not support. axum sets the `Allow` header only after this
/// handler, so the methods are repeated here (a test compares both).
async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let methods = if uri.path() == BATCH_PATH { "GET, HEAD and POST" } else { "GET and HEAD" };
    Problem::new(ProblemCode::MethodNotAllowed, format!("{} supports {methods}, not {method}", uri.path()))
}

/// Logs the panic of a handler, and answers with a problem.
#[expect(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
pub(crate) fn handle_panic(panic: Box<dyn std::any::Any + Send>) -> axum::response::Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let panic = text.unwrap_or("unknown");
    if let Some(LogPermit { more }) = PANICS.permit(panic) {
        tracing::error!(panic, more, "a request handler panicked");
    }
    Problem::new(ProblemCode::Internal, "this is a bug in meshkeep: its log has the details").into_response()
}

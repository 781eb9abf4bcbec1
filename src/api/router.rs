//! The routes of the HTTP API, and the middleware for every request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, IF_NONE_MATCH};
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::guard::{self, BODY_BYTES_MAX, Guard};
use super::problem::{Problem, ProblemCode};
use super::render::accept::{POST_PATHS, negotiate};
use super::render::answer_properties::{AnswerProperties, MediaType, RouteProperties, add_properties};
use super::render::tag_basis::TagBasis;
use super::render::{conditional, errors, problem_pages};
use super::state::ApiState;
use super::{events, path_suggestions, request_times, routes};
use crate::dto::text::rfc3339;
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::Kind;

/// Header with the time of the dump that answers come from.
const DUMP_HEADER: &str = "meshkeep-dump";

/// Headers that web pages of other origins may read, besides those that every page may read.
const EXPOSED_HEADERS: [&str; 6] = ["etag", "retry-after", DUMP_HEADER, "meshkeep-age-seconds", "meshkeep-origin", "meshkeep-position"];

/// Time for which a browser may reuse the answer to a preflight request: the longest that Chromium
/// accepts.
const PREFLIGHT_AGE: Duration = Duration::from_secs(2 * 60 * 60);

/// Recently logged panics of handlers. A request that causes a panic can be repeated many times.
static PANICS: LogLimiter = LogLimiter::new();

/// Schema of an event of a stream. The route cannot declare it itself, because its body is text.
#[derive(OpenApi)]
#[openapi(components(schemas(crate::dto::events::WatchEvent)))]
struct StreamLineSchema;

/// Routes, and the properties of their answers by path.
pub(crate) struct RouteTable {
    pub(crate) router: OpenApiRouter<ApiState>,
    pub(crate) properties: RouteProperties,
}

impl RouteTable {
    fn new() -> Self {
        Self { router: OpenApiRouter::new(), properties: RouteProperties::default() }
    }

    /// Adds the routes of a path that the OpenAPI document describes.
    fn documented(mut self, properties: AnswerProperties, routes: UtoipaMethodRouter<ApiState>) -> Self {
        self.properties.extend(routes.1.paths.keys().map(|path| (path.clone(), properties)));
        self.router = self.router.routes(routes);
        self
    }

    /// Adds the route of a path that the OpenAPI document does not describe.
    fn undocumented(mut self, path: &str, properties: AnswerProperties, route: MethodRouter<ApiState>) -> Self {
        self.properties.insert(path.to_owned(), properties);
        self.router = self.router.route(path, route);
        self
    }
}

/// Returns the routes that the OpenAPI document describes.
pub(crate) fn documented_routes() -> RouteTable {
    let (lookups, streams) = (lookup_routes(), stream_routes());
    let router = OpenApiRouter::with_openapi(StreamLineSchema::openapi()).merge(lookups.router).merge(streams.router);
    RouteTable { router, properties: lookups.properties.into_iter().chain(streams.properties).collect() }
}

/// Returns the routes with finite answers.
fn lookup_routes() -> RouteTable {
    use AnswerProperties as Answer;
    use Kind::{EndpointSlice, Identity, Ip, Node, Service, ServiceExport};
    use TagBasis::{AllClusters, Content, Document, Explanation, Findings, Listed, Mesh, OneCluster};
    use routes::{
        clusters, config, entries, exports, global_services, impact, ipcache, log, metrics, objects, probes, problems, prometheus,
        verifications,
    };
    RouteTable::new()
        .documented(Answer::json(Content), routes!(clusters::get_status))
        .documented(Answer::json(Document), routes!(config::get_config))
        .documented(Answer::json(TagBasis::None), routes!(log::get_log))
        .documented(Answer::list(Mesh), routes!(clusters::list_clusters))
        .documented(Answer::json(Mesh), routes!(clusters::get_cluster))
        .documented(Answer::json(TagBasis::None), routes!(verifications::list_verifications, verifications::start_verifications))
        .documented(Answer::list(Listed(&[Node])), routes!(objects::list_nodes))
        .documented(Answer::json(OneCluster(&[Node])), routes!(objects::get_node))
        .documented(Answer::list(Listed(&[Service])), routes!(objects::list_services))
        .documented(Answer::json(OneCluster(&[Service])), routes!(objects::get_service))
        .documented(Answer::list(AllClusters(&[EndpointSlice, ServiceExport, Service])), routes!(global_services::list_global_services))
        .documented(Answer::json(AllClusters(&[EndpointSlice, ServiceExport, Service])), routes!(global_services::get_global_service))
        .documented(Answer::list(AllClusters(&Kind::ALL)), routes!(impact::list_impact))
        .documented(Answer::list(Listed(&[ServiceExport])), routes!(exports::list_service_exports))
        .documented(Answer::json(OneCluster(&[ServiceExport])), routes!(exports::get_service_export))
        .documented(Answer::list(Listed(&[EndpointSlice])), routes!(exports::list_endpoint_slices))
        .documented(Answer::json(OneCluster(&[EndpointSlice])), routes!(exports::get_endpoint_slice))
        .documented(Answer::list(Listed(&[Identity])), routes!(objects::list_identities))
        .documented(Answer::json(AllClusters(&[Identity])), routes!(objects::get_identity))
        .documented(Answer::list(Listed(&[Ip, Node])), routes!(objects::list_identity_ips))
        .documented(Answer::list(Listed(&[Ip, Node])), routes!(ipcache::list_ipcache))
        .documented(Answer::json(AllClusters(&[Ip, Identity, Node])), routes!(ipcache::lookup_ip, ipcache::batch::lookup_ips))
        .documented(Answer::json(AllClusters(&[Ip, Node])), routes!(ipcache::get_ipcache_entry))
        .documented(Answer::json(Explanation), routes!(ipcache::explain::explain_ip))
        .documented(Answer::list(TagBasis::None), routes!(objects::history::list_versions))
        .documented(Answer::json(AllClusters(&Kind::ALL)), routes!(prometheus::list_prometheus_targets))
        .documented(Answer::list(Findings), routes!(problems::list_problems))
        .documented(Answer::list(Listed(&Kind::ALL)), routes!(entries::list_entries))
        .documented(Answer::new(&[MediaType::Bytes], AllClusters(&Kind::ALL)), routes!(entries::get_entry))
        .documented(Answer::list(Mesh), routes!(entries::list_rejected))
        .documented(Answer::json(TagBasis::None), routes!(events::changes::list_changes))
        .documented(Answer::new(&[MediaType::Text, MediaType::OpenMetrics], TagBasis::None), routes!(metrics::get_metrics))
        .documented(Answer::FIXED, routes!(probes::livez))
        .documented(Answer::FIXED, routes!(probes::readyz))
        .documented(Answer::FIXED, routes!(probes::healthz))
}

/// Returns the routes of streams. They are never compressed, because the compressor, a proxy or the
/// client could hold back events in its buffer.
fn stream_routes() -> RouteTable {
    let stream = AnswerProperties::new(&[MediaType::Events, MediaType::Lines], TagBasis::None);
    RouteTable::new().documented(stream, routes!(events::watch_events))
}

/// Returns [`lookup_routes`], and the routes of pages and documents.
fn routes_with_pages() -> RouteTable {
    const HTML: AnswerProperties = AnswerProperties::new(&[MediaType::Html], TagBasis::Document);
    const STYLE: AnswerProperties = AnswerProperties::new(&[MediaType::Style], TagBasis::Document);
    const SCRIPT: AnswerProperties = AnswerProperties::new(&[MediaType::Script], TagBasis::Document);
    const JSON: AnswerProperties = AnswerProperties::json(TagBasis::Document);
    lookup_routes()
        .undocumented("/", HTML, get(routes::page::index))
        .undocumented("/assets/{*path}", AnswerProperties::FIXED, get(routes::page::asset))
        .undocumented("/problems", HTML, get(problem_pages::index))
        .undocumented("/problems/{type}", HTML, get(problem_pages::page_of_problem))
        .undocumented("/docs", HTML, get(routes::documents::docs))
        .undocumented("/docs/style.css", STYLE, get(routes::documents::docs_style))
        .undocumented("/docs/script.js", SCRIPT, get(routes::documents::docs_script))
        .undocumented("/openapi.json", JSON, get(routes::documents::openapi_31))
        .undocumented("/openapi-3.0.json", JSON, get(routes::documents::openapi_30))
}

/// Creates the router of the whole HTTP API.
pub(crate) fn router(state: ApiState, guard: Guard) -> Router {
    let origins = state.cors_origins.clone();
    let (lookups, streams) = (routes_with_pages(), stream_routes());
    let properties = Arc::new(lookups.properties.into_iter().chain(streams.properties).collect::<RouteProperties>());
    let (lookups, _) = lookups.router.split_for_parts();
    let (streams, _) = streams.router.split_for_parts();
    let routes = lookups
        .route_layer(from_fn_with_state((state.handle.clone(), state.findings.clone()), conditional::tag_response))
        .route_layer(from_fn(negotiate))
        .route_layer(from_fn_with_state(properties.clone(), add_properties))
        .fallback(unknown_route)
        .layer(CompressionLayer::new())
        .merge(streams.route_layer(from_fn(negotiate)).route_layer(from_fn_with_state(properties, add_properties)));
    let routes = guarded(routes, state, guard);
    if origins.is_empty() { routes } else { routes.layer(cross_origin_layer(origins)) }
}

/// Returns the layer for web pages of other origins. A browser passes them an answer only if it
/// names their origin. The layer answers preflight requests itself, before the access checks,
/// because browsers send them without the token.
fn cross_origin_layer(origins: Vec<HeaderValue>) -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([Method::GET, Method::HEAD, Method::POST])
        .allow_headers([ACCEPT, AUTHORIZATION, CONTENT_TYPE, IF_NONE_MATCH, HeaderName::from_static("last-event-id")])
        .expose_headers(EXPOSED_HEADERS.map(HeaderName::from_static))
        .max_age(PREFLIGHT_AGE)
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
    let dump_time = state.handle.dump().and_then(|dump| HeaderValue::try_from(rfc3339(dump.time)).ok());
    let routes = routes
        .method_not_allowed_fallback(method_not_allowed)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(CatchPanicLayer::custom(handle_panic))
        .layer(from_fn_with_state(guard, guard::check_access))
        .layer(from_fn(errors::render))
        .layer(from_fn_with_state(state.times.clone(), request_times::measure_request))
        .with_state(state);
    let Some(dump_time) = dump_time else { return routes };
    // every answer says that it comes from a dump, also a stream and the bytes of a single value
    routes.layer(map_response(move |mut response: Response| {
        response.headers_mut().insert(DUMP_HEADER, dump_time.clone());
        std::future::ready(response)
    }))
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
    let methods = if POST_PATHS.contains(&uri.path()) { "GET, HEAD and POST" } else { "GET and HEAD" };
    Problem::new(ProblemCode::MethodNotAllowed, format!("{} supports {methods}, not {method}", uri.path()))
}

/// Logs the panic of a handler, and answers with a problem.
#[expect(clippy::needless_pass_by_value, reason = "the signature is tower-http's")]
pub(crate) fn handle_panic(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let panic = text.unwrap_or("unknown");
    if let Some(LogPermit { more }) = PANICS.permit(panic) {
        tracing::error!(panic, more, "a request handler panicked");
    }
    Problem::new(ProblemCode::Internal, "this is a bug in meshkeep: its log has the details").into_response()
}

//! HTTP side of the etcd API. It uses the listeners, TLS, connection slots and accept loop of the
//! HTTP API.
//!
//! This module adds the few paths that tools request from an etcd over plain HTTP. The gRPC calls
//! are in `etcd_api`, and the API gets them as an [`EtcdService`].

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Version};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{BoxError, Router};
use http_body::Body as HttpBody;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use tower_http::catch_panic::CatchPanicLayer;

use super::guard::{self, Guard};
use super::routes::metrics;
use super::state::ApiState;
use crate::model::ETCD_VERSION;
use crate::server::HttpExchange;

const VERSION_PATH: &str = "/version";
const HEALTH_PATH: &str = "/health";
const METRICS_PATH: &str = "/metrics";
/// Paths that tools request over plain HTTP.
const TOOLS_PATHS: [&str; 3] = [VERSION_PATH, HEALTH_PATH, METRICS_PATH];

/// The gRPC service of the etcd API.
pub type EtcdService = BoxCloneSyncService<Request, Response, Infallible>;

/// Converts a service with any type of body to an [`EtcdService`].
pub fn etcd_service<S, B>(service: S) -> EtcdService
where
    S: Service<Request, Response = axum::http::Response<B>, Error = Infallible, Future: Send> + Clone + Send + Sync + 'static,
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    BoxCloneSyncService::new(service.map_response(|response| response.map(Body::new)))
}

/// Creates the router of the etcd API.
///
/// `guard` checks the paths that a browser could request. gRPC calls need no guard: they use either
/// HTTP/2 without TLS or a client certificate, and a web page can use neither for a request to its
/// own host name.
pub(super) fn router(state: ApiState, guard: Guard, service: Option<EtcdService>) -> Router {
    let routes = Router::new()
        .route(VERSION_PATH, get(version))
        .route(HEALTH_PATH, get(health))
        .route(METRICS_PATH, get(metrics::get_metrics))
        .layer(from_fn_with_state(guard, guard::check_access))
        .layer(from_fn(crate::api::render::errors::render))
        .with_state(state);
    let routes = match service {
        Some(service) => routes.fallback_service(service),
        None => routes,
    };
    routes.layer(CatchPanicLayer::new()).layer(from_fn(admit))
}

/// Middleware that admits every request, because only the TLS handshake authenticates clients of
/// the etcd API. It refuses HTTP versions other than HTTP/2, which gRPC needs, except on
/// [`TOOLS_PATHS`].
async fn admit(request: Request, next: Next) -> Response {
    if request.version() != Version::HTTP_2 && !TOOLS_PATHS.contains(&request.uri().path()) {
        return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "this is an etcd API: use gRPC over HTTP/2\n").into_response();
    }
    if let Some(exchange) = request.extensions().get::<Arc<HttpExchange>>() {
        exchange.admit(false);
    }
    next.run(request).await
}

/// Serves the etcd version. `cilium-dbg troubleshoot` requests it.
async fn version() -> Response {
    let body = format!(r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":"{ETCD_VERSION}","storage":"{ETCD_VERSION}"}}"#);
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}

/// Serves the health in etcd's format: `true` while the store is loaded and meshkeep is not
/// shutting down.
async fn health(State(state): State<ApiState>) -> Response {
    let (status, body) = if state.stop.is_cancelled() {
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"health":"false","reason":"shutting down"}"#)
    } else if state.handle.is_loaded() {
        (StatusCode::OK, r#"{"health":"true","reason":""}"#)
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, r#"{"health":"false","reason":"the store is still loading"}"#)
    };
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

//! The OpenAPI document, in both forms, and the page at the root.

use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};

use crate::api::openapi;

/// The page at the root: what runs here, with links.
const INDEX: &str = include_str!("index.html");

/// The document in OpenAPI 3.1.
pub(crate) async fn openapi_31() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document()).into_response()
}

/// The same in OpenAPI 3.0, for tools that know nothing newer.
pub(crate) async fn openapi_30() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document_30()).into_response()
}

/// The page at the root.
pub(crate) async fn index() -> Html<&'static str> {
    Html(INDEX)
}

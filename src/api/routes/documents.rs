//! Routes of the OpenAPI document: both versions, and the HTML page.

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};

use crate::api::openapi;

/// Content security policy of the page. It loads nothing from other servers, whatever the document
/// contains.
const DOCS_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Serves the document in OpenAPI 3.1.
pub(crate) async fn openapi_31() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document()).into_response()
}

/// Serves the document in OpenAPI 3.0, for tools that do not support 3.1.
pub(crate) async fn openapi_30() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document_30()).into_response()
}

/// Serves the document as an HTML page.
pub(crate) async fn docs() -> Response {
    ([(CONTENT_SECURITY_POLICY, DOCS_POLICY)], Html(openapi::page())).into_response()
}

/// Serves the style sheet of the page.
pub(crate) async fn docs_style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], openapi::STYLE).into_response()
}

/// Serves the script of the page.
pub(crate) async fn docs_script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], openapi::SCRIPT).into_response()
}

//! The OpenAPI document, in both forms and as a page.

use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{Html, IntoResponse, Response};

use crate::api::openapi;

/// What the page may do: nothing comes from elsewhere, whatever stands in the document.
const DOCS_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The document in OpenAPI 3.1.
pub(crate) async fn openapi_31() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document()).into_response()
}

/// The document in OpenAPI 3.0, for tools that know nothing newer.
pub(crate) async fn openapi_30() -> Response {
    ([(CONTENT_TYPE, "application/json")], openapi::document_30()).into_response()
}

/// The document as a page.
pub(crate) async fn docs() -> Response {
    ([(CONTENT_SECURITY_POLICY, DOCS_POLICY)], Html(openapi::page())).into_response()
}

/// How that looks.
pub(crate) async fn docs_style() -> Response {
    ([(CONTENT_TYPE, "text/css; charset=utf-8")], openapi::STYLE).into_response()
}

/// What that does.
pub(crate) async fn docs_script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], openapi::SCRIPT).into_response()
}

//! Rendering of problems with the path of their request: as a document, or as a page for browsers.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use super::accept::prefers_page;
use super::problem_pages;
use crate::api::problem::{Problem, ProblemCode};
use crate::dto::problem::ProblemDocument;
use crate::instruments::TraceId;
use crate::page;

/// Middleware that writes the problem of a response into the body.
///
/// A browser gets 401 with an HTML page about the token, because a browser cannot send a token
/// itself.
pub(crate) async fn render(request: Request, next: Next) -> Response {
    let is_head = *request.method() == Method::HEAD;
    let accepts_html = prefers_page(request.headers());
    let path = request.uri().path().to_owned();
    let trace_id = request.extensions().get::<TraceId>().map(|id| id.as_str().to_owned());
    let mut response = next.run(request).await;
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let code = problem.code();
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    parts.headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    parts.headers.remove(CONTENT_LENGTH);
    if let Some(seconds) = code.retry_after_seconds() {
        parts.headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if code == ProblemCode::Unauthorized {
        parts.headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        parts.headers.insert(VARY, HeaderValue::from_static("Accept"));
    }
    let body = if code == ProblemCode::Unauthorized && accepts_html {
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        parts.headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::DOCUMENT_POLICY));
        problem_pages::token_page().into_bytes()
    } else {
        serde_json::to_vec(&ProblemDocument { trace_id, ..problem.document(Some(path)) }).unwrap_or_default()
    };
    Response::from_parts(parts, if is_head { Body::empty() } else { Body::from(body) })
}

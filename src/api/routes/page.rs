//! Route of the page at `/` for browsers. Requests whose `Accept` does not name HTML get a short
//! list of links for terminals.

use axum::extract::{Path, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{Html, IntoResponse, Response};

use crate::api::problem::{Problem, ProblemCode};
use crate::api::state::ApiState;
use crate::page;

/// The list of links.
const LINKS: &str = include_str!("index.html");

/// `Cache-Control` of a file whose path changes with its content: browsers load it only once.
const CACHE_FOREVER: &str = "public, max-age=31536000, immutable";

/// Serves the page, or the list of links.
pub(crate) async fn index(State(state): State<ApiState>, headers: HeaderMap) -> Response {
    if !names_html(&headers) {
        return Html(LINKS).into_response();
    }
    let headers = [
        (CONTENT_SECURITY_POLICY, state.page_policy.clone()),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        // the page's address contains what the user searched for
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, Html(page::index())).into_response()
}

/// Returns whether `Accept` names HTML, as in every browser. `*/*` alone comes from curl and
/// similar clients.
fn names_html(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    texts
        .flat_map(|text| text.split(','))
        .any(|range| range.split(';').next().is_some_and(|range| range.trim().eq_ignore_ascii_case("text/html")))
}

/// Serves a file of the page.
pub(crate) async fn asset(Path(path): Path<String>) -> Result<Response, Problem> {
    let Some(asset) = page::asset(&path) else {
        return Err(Problem::new(ProblemCode::NotFound, "the page has no such file in this version: reload the page"));
    };
    let headers = [(CONTENT_TYPE, asset.media_type()), (CACHE_CONTROL, CACHE_FOREVER), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, asset.text).into_response())
}

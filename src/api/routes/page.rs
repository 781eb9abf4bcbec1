//! The page at `/`, for browsers; whoever does not ask for HTML by name gets the list of links that fits into a terminal.

use axum::extract::Path;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::response::{Html, IntoResponse, Response};

use crate::api::problem::{Code, Problem};
use crate::page;

/// What runs here, with links.
const LINKS: &str = include_str!("index.html");

/// An address that says what is there: browsers ask again when they are told to forget everything, and never else.
const FOR_GOOD: &str = "public, max-age=31536000, immutable";

/// The page, or the list of links.
pub(crate) async fn index(headers: HeaderMap) -> Response {
    if !names_html(&headers) {
        return Html(LINKS).into_response();
    }
    let headers = [
        (CONTENT_SECURITY_POLICY, page::POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // what was searched for stands in its address
        (REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(page::index())).into_response()
}

/// Whether somebody wants HTML, as every browser says; `*/*` alone is curl and the like.
fn names_html(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    texts
        .flat_map(|text| text.split(','))
        .any(|range| range.split(';').next().is_some_and(|range| range.trim().eq_ignore_ascii_case("text/html")))
}

/// A file of the page.
pub(crate) async fn asset(Path(path): Path<String>) -> Result<Response, Problem> {
    let Some(asset) = page::asset(&path) else {
        return Err(Problem::new(Code::NotFound, "the page has no such file, or none of this version: load the page again"));
    };
    let headers = [(CONTENT_TYPE, asset.media_type()), (CACHE_CONTROL, FOR_GOOD), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, asset.text).into_response())
}

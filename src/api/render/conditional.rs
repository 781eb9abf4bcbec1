//! Conditional requests: `ETag` and `If-None-Match` (RFC 9110 §13), so that polling costs almost
//! nothing while nothing changes.
//!
//! A tag is computed from counters that grow with the changes of what the answer contains
//! ([`TagBasis`]). The counters are read before the answer is computed. `304` therefore needs no
//! lookup, and an answer that is newer than its tag is at worst sent once more. Only the state of
//! the process and documents are tagged by their content.
//!
//! Tags are weak: they do not cover the age of an answer (`ageSeconds`, `position`, revisions of
//! sources). `304` therefore means that the content of the client's copy is current, but not that
//! the data is recent; `maxAge` is checked first. There are no tags for streams, `/metrics` and
//! probes, which are about the current moment, nor for answers about an earlier time (`at=`), which
//! depend on the clock and on the history.

use std::hash::Hash;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::answer_properties::{AnswerProperties, MediaType};
use super::tag_basis::{ContentHash, TagBasis, hash_of};
use crate::api::problem::Problem;
use crate::findings::FindingSources;
use crate::handle::Handle;

/// Returns a weak tag in the format of `ETag`.
fn weak_tag(parts: impl Hash) -> String {
    format!("W/\"{:016x}\"", hash_of(parts))
}

/// Returns whether the client has the tagged content already. Tags are compared weakly (RFC 9110
/// §8.8.3.2); `*` matches any.
fn matches_any(headers: &HeaderMap, tag: &str) -> bool {
    let bare = |text: &str| text.trim().trim_start_matches("W/").to_owned();
    let client_tags = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    client_tags.map(bare).any(|client_tag| client_tag == "*" || client_tag == bare(tag))
}

/// Returns whether a matching tag is not enough for `304`, so that the answer must be computed: the
/// request has `maxAge` (possibly escaped), or `*`, which asks whether there is an answer.
fn needs_full_answer(headers: &HeaderMap, query: &str) -> bool {
    let is_any = headers.get_all(IF_NONE_MATCH).iter().any(|value| value.as_bytes().contains(&b'*'));
    is_any || query.contains('%') || query.contains("maxAge")
}

/// Returns whether the answer is about an earlier time. An escaped name counts as `at`.
fn has_time(query: &str) -> bool {
    query.split('&').map(|pair| pair.split('=').next().unwrap_or_default()).any(|name| name == "at" || name.contains('%'))
}

fn not_modified(tag: &str) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    set_cache_headers(response.headers_mut(), Some(tag));
    response
}

/// Sets the headers of an answer that clients may store but must revalidate.
fn set_cache_headers(headers: &mut HeaderMap, tag: Option<&str>) {
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    if let Some(tag) = tag.and_then(|tag| HeaderValue::from_str(tag).ok()) {
        headers.insert(ETAG, tag);
    }
}

/// Middleware that tags answers, and sends `304` instead of an answer that the client already has.
pub(crate) async fn tag_response(
    State((handle, findings)): State<(Handle, FindingSources)>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let (uri, headers) = (request.uri().clone(), request.headers().clone());
    let media_type = request.extensions().get().copied().unwrap_or(MediaType::Json);
    let properties = request.extensions().get().copied().unwrap_or(AnswerProperties::FIXED);
    let query = uri.query().unwrap_or_default();
    let basis = if is_read && !has_time(query) { properties.tag_basis } else { TagBasis::None };
    // read before the answer is computed, so the answer is at least as new as this counter
    let reading = handle.try_reading();
    if let Some(reading) = reading.as_ref().filter(|_| basis.has_findings_across_keys()) {
        // the handler waits too: the tag is about the same index
        findings.index.wait_for_index(reading).await;
    }
    let counter_tag = reading.and_then(|reading| {
        let change_count = basis.change_count(&uri, &reading, &findings)?;
        Some(weak_tag((reading.position().epoch.0, change_count, media_type, uri.path(), query)))
    });
    if let Some(tag) = &counter_tag
        && matches_any(&headers, tag)
        && !needs_full_answer(&headers, query)
    {
        return Ok(not_modified(tag));
    }
    let mut response = next.run(request).await;
    if response.status() != StatusCode::OK {
        return Ok(response);
    }
    let tag = match basis {
        TagBasis::Content => response.extensions().get().map(|ContentHash(hash)| weak_tag(hash)),
        TagBasis::Document => {
            let (parts, bytes) = collect_body(response).await?;
            response = Response::from_parts(parts, Body::from(bytes.clone()));
            Some(weak_tag(&*bytes))
        }
        _ => counter_tag,
    };
    if let Some(tag) = tag.as_deref().filter(|tag| matches_any(&headers, tag)) {
        return Ok(not_modified(tag));
    }
    set_cache_headers(response.headers_mut(), tag.as_deref());
    Ok(response)
}

/// Collects the body of an answer that is already in memory. No bytes are copied, and the handler
/// bounds the size of the body.
async fn collect_body(response: Response) -> Result<(axum::http::response::Parts, Bytes), Problem> {
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, usize::MAX).await.map_err(|error| Problem::internal(format!("an answer cannot be read: {error}")))?;
    Ok((parts, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_weakly_and_one_of_several_is_enough() {
        let client_tags = |text: &'static str| HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static(text))]);
        for (text, expected) in
            [("W/\"a\"", true), ("\"a\"", true), ("\"b\", W/\"a\"", true), ("*", true), ("\"b\"", false), ("a", false), ("", false)]
        {
            assert_eq!(matches_any(&client_tags(text), "W/\"a\""), expected, "{text}");
        }
    }

    #[test]
    fn a_query_about_an_earlier_time_is_recognized() {
        for query in ["at=10m", "ip=10.1.2.40&at=2026-11-26T14:03:00Z", "ip=10.1.2.40&%61t=10m", "a%74=1d&ip=::1"] {
            assert!(has_time(query), "{query}");
        }
        for query in ["", "ip=10.1.2.40", "cat=10m", "search=at", "name=a%74", "ip=at=10m"] {
            assert!(!has_time(query), "{query}");
        }
    }
}

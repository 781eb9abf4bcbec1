//! Content negotiation: selects the form of an answer that `Accept` prefers (RFC 9110 §12.5.1).
//!
//! A request that accepts none of the path's forms gets 406 with a list of them, never another
//! form. Probes are exempt: the status is their answer, and a kubelet must not lose it because of a
//! header.

use axum::extract::Request;
use axum::http::header::{ACCEPT, VARY};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::api::problem::{Code, Problem};

/// The only path that accepts more than GET and HEAD.
pub(crate) const BATCH_PATH: &str = "/v1/ipcache/lookup";

/// A form of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Lines,
    /// Server-sent events.
    Events,
    /// Plain text.
    Text,
    /// An HTML page.
    Html,
    /// Style sheet of a page.
    Style,
    /// Script of a page.
    Script,
    /// Unmodified bytes of a value.
    Bytes,
}

/// A media range of `Accept`: type or `*`, subtype or `*`, and its quality in thousandths.
struct Range<'a> {
    of: &'a str,
    sub: &'a str,
    quality: u16,
}

impl Form {
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
            Self::Text => "text/plain",
            Self::Html => "text/html",
            Self::Style => "text/css",
            Self::Script => "text/javascript",
            Self::Bytes => "application/octet-stream",
        }
    }
}

/// Returns the forms of a path, the default first. Empty if there is nothing to negotiate.
pub(crate) fn offered(path: &str) -> &'static [Form] {
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match segments.as_slice() {
        ["v1", "events"] => &[Form::Events, Form::Lines],
        [
            "v1",
            "clusters" | "nodes" | "services" | "global-services" | "service-exports" | "endpoint-slices" | "identities" | "ipcache"
            | "problems" | "entries" | "rejected",
        ]
        | ["v1", "identities", _, "ips"] => &[Form::Json, Form::Lines],
        ["v1", "entries", _, ..] => &[Form::Bytes],
        ["v1", ..] | ["openapi.json" | "openapi-3.0.json"] => &[Form::Json],
        ["metrics"] => &[Form::Text],
        ["" | "docs"] | ["problems", ..] => &[Form::Html],
        ["docs", "style.css"] => &[Form::Style],
        ["docs", "script.js"] => &[Form::Script],
        ["assets", .., name] if name.ends_with(".css") => &[Form::Style],
        ["assets", .., name] if name.ends_with(".js") => &[Form::Script],
        _ => &[],
    }
}

impl<'a> Range<'a> {
    /// Parses one element of the header. An invalid media range matches no form; an invalid quality
    /// counts as 1.
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let (of, sub) = parts.next().unwrap_or_default().split_once('/').unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        Self { of: of.trim(), sub: sub.trim(), quality: weight.map_or(1_000, thousandths) }
    }

    /// Returns how specifically the range matches a media type: 0 for `*/*`, 1 for the type, 2 for
    /// type and subtype, `None` without a match.
    fn fits(&self, media_type: &str) -> Option<u8> {
        let (of, sub) = media_type.split_once('/')?;
        match (self.of, self.sub) {
            ("*", "*") => Some(0),
            (own, "*") if own.eq_ignore_ascii_case(of) => Some(1),
            (own, other) if own.eq_ignore_ascii_case(of) && other.eq_ignore_ascii_case(sub) => Some(2),
            _ => None,
        }
    }
}

/// Parses a quality between 0 and 1. Returns it in thousandths.
fn thousandths(text: &str) -> u16 {
    let quality: f64 = text.parse().unwrap_or(1.0);
    // a quality has at most three digits; NaN becomes 0
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 1,000")]
    let thousandths = (quality.clamp(0.0, 1.0) * 1_000.0).round() as u16;
    thousandths
}

/// Returns the accepted form of the highest quality. Among equals, it is the one that the request
/// names first, then the default.
fn chosen(headers: &HeaderMap, offered: &[Form]) -> Option<Form> {
    let texts = headers.get_all(ACCEPT).iter().map(|value| value.to_str().unwrap_or("?"));
    let ranges: Vec<Range<'_>> = texts.flat_map(|text| text.split(',')).filter(|text| !text.trim().is_empty()).map(Range::read).collect();
    if ranges.is_empty() {
        return offered.first().copied();
    }
    let mut best: Option<(u16, usize, Form)> = None;
    for form in offered {
        let fitting = ranges.iter().enumerate().filter_map(|(place, range)| Some((range.fits(form.media_type())?, place, range.quality)));
        // the most specific range decides, and among equals the first
        let Some((_, place, quality)) = fitting.max_by_key(|(exact, place, _)| (*exact, std::cmp::Reverse(*place))) else { continue };
        let is_better = best.is_none_or(|(other, before, _)| quality > other || (quality == other && place < before));
        if quality > 0 && is_better {
            best = Some((quality, place, *form));
        }
    }
    best.map(|(.., form)| form)
}

/// Returns whether HTML is preferred to JSON, as by a browser.
pub(crate) fn prefers_page(headers: &HeaderMap) -> bool {
    chosen(headers, &[Form::Json, Form::Html]) == Some(Form::Html)
}

fn not_acceptable(offered: &[Form]) -> Problem {
    let names: Vec<&str> = offered.iter().map(|form| form.media_type()).collect();
    let advice = if names.len() > 1 { "accept one of them" } else { "accept it, or send no Accept header" };
    Problem::new(Code::NotAcceptable, format!("this path answers in {}: {advice}", names.join(" or ")))
}

/// Middleware that adds the selected form to the request, or answers 406.
pub(crate) async fn negotiate(mut request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let path = request.uri().path();
    let offered = if reads || (*request.method() == Method::POST && path == BATCH_PATH) { offered(path) } else { &[] };
    if offered.is_empty() {
        return next.run(request).await;
    }
    let mut response = match chosen(request.headers(), offered) {
        Some(form) => {
            request.extensions_mut().insert(form);
            next.run(request).await
        }
        None => not_acceptable(offered).into_response(),
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_that_is_liked_best_is_chosen_and_nothing_that_is_not_accepted() {
        let list = offered("/v1/nodes");
        let stream = offered("/v1/events");
        for (accept, of_list, of_stream) in [
            ("", Some(Form::Json), Some(Form::Events)),
            (" , ", Some(Form::Json), Some(Form::Events)),
            ("*/*", Some(Form::Json), Some(Form::Events)),
            ("application/json", Some(Form::Json), None),
            ("Application/X-NDJSON", Some(Form::Lines), Some(Form::Lines)),
            ("application/*", Some(Form::Json), Some(Form::Lines)),
            ("text/*", None, Some(Form::Events)),
            ("application/json, application/x-ndjson", Some(Form::Json), Some(Form::Lines)),
            ("application/x-ndjson, application/json", Some(Form::Lines), Some(Form::Lines)),
            ("application/x-ndjson;q=0.5, application/json;q=0.6", Some(Form::Json), Some(Form::Lines)),
            ("application/x-ndjson ; q=0.61, application/json;q=0.6", Some(Form::Lines), Some(Form::Lines)),
            ("application/json;q=0", None, None),
            ("*/*;q=0", None, None),
            // the more specific range decides, at any position
            ("*/*, application/json;q=0", Some(Form::Lines), Some(Form::Events)),
            ("application/json;q=0.1, */*;q=0.2", Some(Form::Lines), Some(Form::Events)),
            ("application/*;q=0.1, application/x-ndjson;q=0.2", Some(Form::Lines), Some(Form::Lines)),
            ("application/json; charset=utf-8; Q=0.4", Some(Form::Json), None),
            // header of browsers
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Some(Form::Json), Some(Form::Events)),
            ("application/json, application/problem+json", Some(Form::Json), None),
            ("text/html", None, None),
            ("json", None, None),
            ("application/json;q=high", Some(Form::Json), None),
            ("application/json;q=NaN", None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!((chosen(&headers, list), chosen(&headers, stream)), (of_list, of_stream), "{accept:?}");
        }
        assert_eq!((chosen(&HeaderMap::new(), list), chosen(&HeaderMap::new(), stream)), (Some(Form::Json), Some(Form::Events)));
        // several headers form one list
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_static("text/html"));
        headers.append(ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        assert_eq!(chosen(&headers, list), Some(Form::Lines));
    }
}

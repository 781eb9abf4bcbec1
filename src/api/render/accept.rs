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

use super::answer_properties::{AnswerProperties, MediaType};
use crate::api::problem::{Problem, ProblemCode};

/// The path of batch lookups, whose `POST` only reads.
pub(crate) const BATCH_PATH: &str = "/v1/ipcache/lookup";

/// The paths that accept `POST` as well as `GET` and `HEAD`.
pub(crate) const POST_PATHS: [&str; 2] = [BATCH_PATH, "/v1/verifications"];

/// A media range of `Accept`: type or `*`, subtype or `*`, and its quality in thousandths.
struct MediaRange<'a> {
    main_type: &'a str,
    subtype: &'a str,
    quality: u16,
}

impl<'a> MediaRange<'a> {
    /// Parses one element of the header. An invalid media range matches no form; an invalid quality
    /// counts as 1.
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let (main_type, subtype) = parts.next().unwrap_or_default().split_once('/').unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        Self { main_type: main_type.trim(), subtype: subtype.trim(), quality: weight.map_or(1_000, parse_quality) }
    }

    /// Returns how specifically the range matches a media type: 0 for `*/*`, 1 for the type, 2 for
    /// type and subtype, `None` without a match.
    fn specificity_for(&self, media_type: &str) -> Option<u8> {
        let (main_type, subtype) = media_type.split_once('/')?;
        match (self.main_type, self.subtype) {
            ("*", "*") => Some(0),
            (own, "*") if own.eq_ignore_ascii_case(main_type) => Some(1),
            (own, other) if own.eq_ignore_ascii_case(main_type) && other.eq_ignore_ascii_case(subtype) => Some(2),
            _ => None,
        }
    }
}

/// Parses a quality between 0 and 1. Returns it in thousandths.
fn parse_quality(text: &str) -> u16 {
    let quality: f64 = text.parse().unwrap_or(1.0);
    // a quality has at most three digits; NaN becomes 0
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and 1,000")]
    let thousandths = (quality.clamp(0.0, 1.0) * 1_000.0).round() as u16;
    thousandths
}

/// Returns the accepted form of the highest quality. Among forms of equal quality, the form that
/// the request names first is returned, then the default.
fn select_media_type(headers: &HeaderMap, offered: &[MediaType]) -> Option<MediaType> {
    let texts = headers.get_all(ACCEPT).iter().map(|value| value.to_str().unwrap_or("?"));
    let ranges: Vec<MediaRange<'_>> =
        texts.flat_map(|text| text.split(',')).filter(|text| !text.trim().is_empty()).map(MediaRange::parse).collect();
    if ranges.is_empty() {
        return offered.first().copied();
    }
    let mut best: Option<(u16, usize, MediaType)> = None;
    for media_type in offered {
        let matching = ranges
            .iter()
            .enumerate()
            .filter_map(|(position, range)| Some((range.specificity_for(media_type.as_str())?, position, range.quality)));
        // the most specific range decides; among equally specific ranges, the first
        let Some((_, position, quality)) = matching.max_by_key(|(exact, position, _)| (*exact, std::cmp::Reverse(*position))) else {
            continue;
        };
        let is_better = best.is_none_or(|(other, before, _)| quality > other || (quality == other && position < before));
        if quality > 0 && is_better {
            best = Some((quality, position, *media_type));
        }
    }
    best.map(|(.., media_type)| media_type)
}

/// Returns whether HTML is preferred to JSON, as by a browser.
pub(crate) fn prefers_page(headers: &HeaderMap) -> bool {
    select_media_type(headers, &[MediaType::Json, MediaType::Html]) == Some(MediaType::Html)
}

/// Returns whether OpenMetrics is preferred to Prometheus' text format, as by Prometheus.
pub(crate) fn prefers_openmetrics(headers: &HeaderMap) -> bool {
    select_media_type(headers, &[MediaType::Text, MediaType::OpenMetrics]) == Some(MediaType::OpenMetrics)
}

fn not_acceptable(offered: &[MediaType]) -> Problem {
    let names: Vec<&str> = offered.iter().map(|media_type| media_type.as_str()).collect();
    let advice = if names.len() > 1 { "accept one of them" } else { "accept it, or send no Accept header" };
    Problem::new(ProblemCode::NotAcceptable, format!("this path answers in {}: {advice}", names.join(" or ")))
}

/// Middleware that adds the selected form to the request, or answers 406.
pub(crate) async fn negotiate(mut request: Request, next: Next) -> Response {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let has_answer = is_read || (*request.method() == Method::POST && POST_PATHS.contains(&request.uri().path()));
    let properties = request.extensions().get().copied().filter(|_| has_answer).unwrap_or(AnswerProperties::FIXED);
    let offered = properties.media_types;
    if offered.is_empty() {
        return next.run(request).await;
    }
    let mut response = match select_media_type(request.headers(), offered) {
        Some(media_type) => {
            request.extensions_mut().insert(media_type);
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
    fn the_preferred_accepted_media_type_is_selected() {
        let list = &[MediaType::Json, MediaType::Lines];
        let stream = &[MediaType::Events, MediaType::Lines];
        for (accept, of_list, of_stream) in [
            ("", Some(MediaType::Json), Some(MediaType::Events)),
            (" , ", Some(MediaType::Json), Some(MediaType::Events)),
            ("*/*", Some(MediaType::Json), Some(MediaType::Events)),
            ("application/json", Some(MediaType::Json), None),
            ("Application/X-NDJSON", Some(MediaType::Lines), Some(MediaType::Lines)),
            ("application/*", Some(MediaType::Json), Some(MediaType::Lines)),
            ("text/*", None, Some(MediaType::Events)),
            ("application/json, application/x-ndjson", Some(MediaType::Json), Some(MediaType::Lines)),
            ("application/x-ndjson, application/json", Some(MediaType::Lines), Some(MediaType::Lines)),
            ("application/x-ndjson;q=0.5, application/json;q=0.6", Some(MediaType::Json), Some(MediaType::Lines)),
            ("application/x-ndjson ; q=0.61, application/json;q=0.6", Some(MediaType::Lines), Some(MediaType::Lines)),
            ("application/json;q=0", None, None),
            ("*/*;q=0", None, None),
            // the more specific range decides, at any position
            ("*/*, application/json;q=0", Some(MediaType::Lines), Some(MediaType::Events)),
            ("application/json;q=0.1, */*;q=0.2", Some(MediaType::Lines), Some(MediaType::Events)),
            ("application/*;q=0.1, application/x-ndjson;q=0.2", Some(MediaType::Lines), Some(MediaType::Lines)),
            ("application/json; charset=utf-8; Q=0.4", Some(MediaType::Json), None),
            // header of browsers
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Some(MediaType::Json), Some(MediaType::Events)),
            ("application/json, application/problem+json", Some(MediaType::Json), None),
            ("text/html", None, None),
            ("json", None, None),
            ("application/json;q=high", Some(MediaType::Json), None),
            ("application/json;q=NaN", None, None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!((select_media_type(&headers, list), select_media_type(&headers, stream)), (of_list, of_stream), "{accept:?}");
        }
        assert_eq!(
            (select_media_type(&HeaderMap::new(), list), select_media_type(&HeaderMap::new(), stream)),
            (Some(MediaType::Json), Some(MediaType::Events))
        );
        // several headers form one list
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_static("text/html"));
        headers.append(ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        assert_eq!(select_media_type(&headers, list), Some(MediaType::Lines));
    }
}

//! Durations of requests by route and status: one histogram for each pair that occurred. Also the
//! spans of requests, while traces are exported.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderMap;
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument as _;

use crate::instruments::{Histogram, HistogramSnapshot, RequestTrace, TraceHeaders};

/// Route label of requests that match no route.
const UNMATCHED_ROUTE: &str = "none";

type RouteHistograms = HashMap<String, Arc<Histogram>>;

/// Histograms by status and route. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTimes(Arc<RwLock<HashMap<u16, RouteHistograms>>>);

impl RequestTimes {
    fn record(&self, route: &str, status: u16, time: Duration, trace: Option<&RequestTrace>) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&status).and_then(|routes| routes.get(route)).map(Arc::clone);
        let histogram = known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(status).or_default().entry(route.to_owned()).or_default())
        });
        histogram.record(time);
        if let Some(id) = trace.and_then(RequestTrace::sampled_id) {
            histogram.record_exemplar(time, id.clone());
        }
    }

    /// Returns route, status and durations of all requests, sorted by route and status.
    pub(crate) fn all(&self) -> Vec<(String, u16, HistogramSnapshot)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let rows = all.iter().flat_map(|(status, routes)| routes.iter().map(|(route, times)| (route.clone(), *status, times.snapshot())));
        let mut rows: Vec<(String, u16, HistogramSnapshot)> = rows.collect();
        rows.sort_by(|(one, one_status, _), (other, other_status, _)| (one, one_status).cmp(&(other, other_status)));
        rows
    }
}

/// Middleware that measures the time from the head of a request to the head of its answer. The
/// duration of a stream is not included.
pub(crate) async fn measure_request(State(times): State<RequestTimes>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route_name(route.as_ref().map(MatchedPath::as_str));
    let trace = RequestTrace::start(request.method().as_str(), &route, trace_headers(request.headers()));
    let answer = match &trace {
        None => next.run(request).await,
        Some(trace) => {
            // for problem documents
            request.extensions_mut().insert(trace.id().clone());
            next.run(request).instrument(trace.log_span()).await
        }
    };
    let status = answer.status().as_u16();
    times.record(&route, status, started.elapsed(), trace.as_ref());
    if let Some(trace) = trace {
        trace.end(status);
    }
    answer
}

/// Returns the name of a route in metrics and traces: its path as in the OpenAPI document.
fn route_name(path: Option<&str>) -> Cow<'_, str> {
    match path {
        None => UNMATCHED_ROUTE.into(),
        // only `axum` marks parameters that may contain slashes
        Some(path) if path.contains("{*") => path.replace("{*", "{").into(),
        Some(path) => path.into(),
    }
}

fn trace_headers(headers: &HeaderMap) -> TraceHeaders<'_> {
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    TraceHeaders { parent: value("traceparent"), state: value("tracestate") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_the_paths_of_the_document() {
        let names = [Some("/v1/nodes/{cluster}/{name}"), Some("/v1/explain/{*cidr}"), None].map(route_name);
        assert_eq!(names, ["/v1/nodes/{cluster}/{name}", "/v1/explain/{cidr}", "none"]);
    }
}

//! Durations of requests by route and status: one histogram for each pair that occurred.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::instruments::{Histogram, HistogramSnapshot};

/// Route label of requests that match no route.
const UNMATCHED_ROUTE: &str = "none";

type RouteHistograms = HashMap<String, Arc<Histogram>>;

/// Histograms by status and route. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTimes(Arc<RwLock<HashMap<u16, RouteHistograms>>>);

impl RequestTimes {
    fn record(&self, route: &str, status: u16, time: Duration) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&status).and_then(|routes| routes.get(route)).map(Arc::clone);
        let histogram = known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(status).or_default().entry(route.to_owned()).or_default())
        });
        histogram.record(time);
    }

    /// Returns route, status and durations of all requests, sorted by route and status.
    pub(crate) fn all(&self) -> Vec<(String, u16, HistogramSnapshot)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let rows = all
            .iter()
            .flat_map(|(status, routes)| routes.iter().map(|(route, times)| (route.replace("{*", "{"), *status, times.snapshot())));
        let mut rows: Vec<(String, u16, HistogramSnapshot)> = rows.collect();
        rows.sort_by(|(one, one_status, _), (other, other_status, _)| (one, one_status).cmp(&(other, other_status)));
        rows
    }
}

/// Middleware that measures the time from the head of a request to the head of its answer. The
/// duration of a stream is not included.
pub(crate) async fn measure_request(State(times): State<RequestTimes>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let answer = next.run(request).await;
    times.record(route.as_ref().map_or(UNMATCHED_ROUTE, MatchedPath::as_str), answer.status().as_u16(), started.elapsed());
    answer
}

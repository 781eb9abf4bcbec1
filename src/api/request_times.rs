//! How long requests take, by route and status: as many histograms as routes were answered with statuses, both of which are few.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::model::{Histogram, Times};

/// The route of requests that no route takes.
const NONE: &str = "none";

type ByRoute = HashMap<String, Arc<Histogram>>;

/// By status and route. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTimes(Arc<RwLock<HashMap<u16, ByRoute>>>);

impl RequestTimes {
    fn note(&self, route: &str, status: u16, time: Duration) {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&status).and_then(|routes| routes.get(route)).map(Arc::clone);
        let histogram = known.unwrap_or_else(|| {
            let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(status).or_default().entry(route.to_owned()).or_default())
        });
        histogram.note(time);
    }

    /// Route, status and times of all, in their order.
    pub(crate) fn all(&self) -> Vec<(String, u16, Times)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let each =
            all.iter().flat_map(|(status, routes)| routes.iter().map(|(route, times)| (route.replace("{*", "{"), *status, times.times())));
        let mut each: Vec<(String, u16, Times)> = each.collect();
        each.sort_by(|(one, one_status, _), (other, other_status, _)| (one, one_status).cmp(&(other, other_status)));
        each
    }
}

/// Middleware: measures from the head of the request to the head of its answer. What a stream takes is no time of a request.
pub(crate) async fn measure(State(times): State<RequestTimes>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let answer = next.run(request).await;
    times.note(route.as_ref().map_or(NONE, MatchedPath::as_str), answer.status().as_u16(), begun.elapsed());
    answer
}

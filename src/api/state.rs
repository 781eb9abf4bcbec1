//! State that every handler gets.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use axum::http::HeaderValue;
use tokio_util::sync::CancellationToken;

use super::events::{ChangeRouter, ConflationPolicy, StreamContext, StreamMetrics};
use super::request_times::RequestTimes;
use crate::admission::{ScanExecutor, ScanLimits, StreamLimiter};
use crate::findings::FindingSources;
use crate::handle::Handle;
use crate::page;
use crate::server::{ConnectionLimiter, ConnectionLimits};

/// Shared state of all requests. It is one pointer, because every layer and handler has a copy.
#[derive(Debug, Clone)]
pub(crate) struct ApiState(Arc<SharedState>);

/// Content of an [`ApiState`].
#[derive(Debug, Clone)]
pub(crate) struct SharedState {
    pub(crate) handle: Handle,
    /// Cancelled when meshkeep shuts down: streams end, and `/readyz` fails.
    pub(crate) stop: CancellationToken,
    /// Slots for streams.
    pub(crate) stream_limiter: StreamLimiter,
    /// Groups of streams that share bytes.
    pub(crate) change_router: ChangeRouter,
    /// Sources of findings, including the token and the certificates.
    pub(crate) findings: FindingSources,
    /// Metrics of streams.
    pub(crate) stream_metrics: StreamMetrics,
    /// Scheduler of requests that take long.
    pub(crate) scans: ScanExecutor,
    /// Connection slots.
    pub(crate) connection_limiter: ConnectionLimiter,
    /// Durations of requests.
    pub(crate) times: RequestTimes,
    /// True if `/metrics` has every metric.
    pub(crate) all_metrics: bool,
    /// Origins whose web pages may read answers.
    pub(crate) cors_origins: Vec<HeaderValue>,
    /// Content security policy of the page at `/`.
    pub(crate) page_policy: HeaderValue,
}

impl Deref for ApiState {
    type Target = SharedState;

    fn deref(&self) -> &SharedState {
        &self.0
    }
}

impl ApiState {
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let change_router = ChangeRouter::new(handle.clone(), stop.clone(), ConflationPolicy::default());
        let findings = FindingSources::new(handle.clone(), stop.clone());
        let (stream_metrics, scans, connection_limiter) =
            (StreamMetrics::default(), ScanExecutor::new(ScanLimits::default()), ConnectionLimiter::new(ConnectionLimits::default()));
        Self(Arc::new(SharedState {
            change_router,
            findings,
            handle,
            stop,
            stream_limiter: StreamLimiter::new(),
            stream_metrics,
            scans,
            connection_limiter,
            times: RequestTimes::default(),
            all_metrics: false,
            cors_origins: Vec::new(),
            page_policy: HeaderValue::from_static(page::POLICY),
        }))
    }

    /// Returns the state with some parts changed.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut SharedState)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl FromRef<ApiState> for ScanExecutor {
    fn from_ref(state: &ApiState) -> Self {
        state.scans.clone()
    }
}

impl FromRef<ApiState> for StreamContext {
    fn from_ref(state: &ApiState) -> Self {
        let SharedState { handle, stop, stream_limiter, change_router, stream_metrics, scans, .. } = SharedState::clone(state);
        Self { handle, stop, stream_limiter, change_router, stream_metrics, scans }
    }
}

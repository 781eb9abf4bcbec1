//! State that every handler gets.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use tokio_util::sync::CancellationToken;

use super::events::{Hub, Patience, StreamMeters, Streams};
use super::request_times::RequestTimes;
use crate::admission::{Pace, Places, Scans};
use crate::findings::FindingSources;
use crate::handle::Handle;
use crate::server::{ConnectionLimits, Seats};

/// Shared state of all requests. It is one pointer, because every layer and handler has a copy.
#[derive(Debug, Clone)]
pub(crate) struct ApiState(Arc<Shared>);

/// Content of an [`ApiState`].
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    /// Cancelled when meshkeep shuts down: streams end, and it is no longer ready.
    pub(crate) stop: CancellationToken,
    /// Slots for streams.
    pub(crate) places: Places,
    /// Groups of streams that share bytes.
    pub(crate) hub: Hub,
    /// Sources of findings, including the token and the certificates.
    pub(crate) findings: FindingSources,
    /// Metrics of streams.
    pub(crate) meters: StreamMeters,
    /// Scheduler of requests that take long.
    pub(crate) scans: Scans,
    /// Connection slots.
    pub(crate) seats: Seats,
    /// Durations of requests.
    pub(crate) times: RequestTimes,
}

impl Deref for ApiState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl ApiState {
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let hub = Hub::new(handle.clone(), stop.clone(), Patience::default());
        let findings = FindingSources::new(handle.clone(), stop.clone());
        let (meters, scans, seats) = (StreamMeters::default(), Scans::new(Pace::default()), Seats::new(ConnectionLimits::default()));
        Self(Arc::new(Shared { hub, findings, handle, stop, places: Places::new(), meters, scans, seats, times: RequestTimes::default() }))
    }

    /// Returns the state with some parts changed.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Shared)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }
}

impl FromRef<ApiState> for Scans {
    fn from_ref(state: &ApiState) -> Self {
        state.scans.clone()
    }
}

impl FromRef<ApiState> for Streams {
    fn from_ref(state: &ApiState) -> Self {
        let Shared { handle, stop, places, hub, meters, scans, .. } = Shared::clone(state);
        Self { handle, stop, places, hub, meters, scans }
    }
}

//! What every handler gets.

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

/// Shared by all requests. One pointer: each layer and handler that a request passes has a copy.
#[derive(Debug, Clone)]
pub(crate) struct ApiState(Arc<Shared>);

/// What an [`ApiState`] points to.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) handle: Handle,
    /// Cancelled when meshkeep shuts down: streams end, and it is no longer ready.
    pub(crate) stop: CancellationToken,
    /// Who may open a stream.
    pub(crate) places: Places,
    /// Which streams share bytes.
    pub(crate) hub: Hub,
    /// What is wrong, the token and the certificates included.
    pub(crate) findings: FindingSources,
    /// What streams do, counted.
    pub(crate) meters: StreamMeters,
    /// Where requests do what takes long.
    pub(crate) scans: Scans,
    /// The places of connections.
    pub(crate) seats: Seats,
    /// How long requests take.
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

    /// With some of it changed.
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

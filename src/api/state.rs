//! What every handler gets.

use std::sync::Arc;

use axum::extract::FromRef;
use tokio_util::sync::CancellationToken;

use super::events::{Hub, Patience, Places, StreamMeters, Streams};
use super::kept::{Kept, KeptFiles};
use super::ledger::Ledger;
use super::posts::Posts;
use super::request_times::RequestTimes;
use super::scans::{Pace, Scans};
use super::seats::{ConnectionLimits, Seats};
use super::surveyor::Surveyor;
use super::tls::Serving;
use crate::handle::Handle;

/// Shared by all requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ApiState {
    pub(crate) handle: Handle,
    /// Cancelled when meshkeep shuts down: streams end, and it is no longer ready.
    pub(crate) stop: CancellationToken,
    /// Who may open a stream.
    pub(crate) places: Places,
    /// Which streams share bytes.
    pub(crate) hub: Hub,
    /// What is wrong across keys.
    pub(crate) surveyor: Surveyor,
    /// Since when each of what is wrong with clusters and this process is there.
    pub(crate) ledger: Ledger,
    /// What is there to be posted, and what became of it.
    pub(crate) posts: Posts,
    /// What streams do, counted.
    pub(crate) meters: StreamMeters,
    /// The token and the certificates.
    pub(crate) files: KeptFiles,
    /// Where requests do what takes long.
    pub(crate) scans: Scans,
    /// The places of connections.
    pub(crate) seats: Seats,
    /// How long requests take.
    pub(crate) times: RequestTimes,
    /// Our certificate, where TLS is served.
    pub(crate) certificate: Option<Arc<Kept<Serving>>>,
}

impl ApiState {
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let (hub, surveyor) = (Hub::new(handle.clone(), stop.clone(), Patience::default()), Surveyor::new(handle.clone(), stop.clone()));
        let (meters, scans, seats) = (StreamMeters::default(), Scans::new(Pace::default()), Seats::new(ConnectionLimits::default()));
        Self {
            hub,
            surveyor,
            handle,
            stop,
            places: Places::new(),
            meters,
            files: KeptFiles::default(),
            scans,
            seats,
            times: RequestTimes::default(),
            certificate: None,
            ledger: Ledger::default(),
            posts: Posts::default(),
        }
    }

    pub(crate) fn with_files(self, files: KeptFiles) -> Self {
        Self { files, ..self }
    }

    pub(crate) fn with_certificate(self, certificate: Option<Arc<Kept<Serving>>>) -> Self {
        Self { certificate, ..self }
    }

    pub(crate) fn with_seats(self, seats: Seats) -> Self {
        Self { seats, ..self }
    }
}

impl FromRef<ApiState> for Scans {
    fn from_ref(state: &ApiState) -> Self {
        state.scans.clone()
    }
}

impl FromRef<ApiState> for Streams {
    fn from_ref(state: &ApiState) -> Self {
        let ApiState { handle, stop, places, hub, meters, scans, .. } = state.clone();
        Self { handle, stop, places, hub, meters, scans }
    }
}

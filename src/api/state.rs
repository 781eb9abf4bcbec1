//! What every handler gets.

use tokio_util::sync::CancellationToken;

use super::events::{Hub, Places, StreamMeters};
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
    /// What streams do, counted.
    pub(crate) meters: StreamMeters,
}

impl ApiState {
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        Self { hub: Hub::new(handle.clone(), stop.clone()), handle, stop, places: Places::new(), meters: StreamMeters::default() }
    }
}

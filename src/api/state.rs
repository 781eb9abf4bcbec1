//! What every handler gets.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::handle::Handle;

/// How many streams may be open at once: at some 11 KiB each (http.md §5.2) they take 110 MB.
pub(crate) const STREAM_COUNT_MAX: usize = 10_000;

/// Shared by all requests. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ApiState {
    pub(crate) handle: Handle,
    /// Cancelled when meshkeep shuts down: streams end, and it is no longer ready.
    pub(crate) stop: CancellationToken,
    /// One permit for each stream that may be open.
    pub(crate) streams: Arc<Semaphore>,
}

impl ApiState {
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        Self { handle, stop, streams: Arc::new(Semaphore::new(STREAM_COUNT_MAX)) }
    }
}

//! The signals: SIGTERM and SIGINT end the process, SIGHUP has files read again.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// Signals from the moment on in which this is made: none that comes later is missed, or ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

/// What SIGHUP wakes.
#[derive(Debug, Clone, Default)]
pub(super) struct Reread {
    /// The token and the certificates.
    pub(super) api: Arc<Notify>,
    /// The config directory.
    pub(super) directory: Arc<Notify>,
}

impl Signals {
    /// Takes the signals over; needs a runtime.
    ///
    /// # Errors
    /// Where the system does not let us.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for a signal that ends the process, and passes on the others meanwhile.
    pub(super) async fn end(&mut self, reread: &Reread) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hangup.recv() => reread.all(),
            }
        }
    }
}

impl Reread {
    fn all(&self) {
        tracing::info!("SIGHUP: reading the token, the certificates and the config directory again");
        self.api.notify_one();
        self.directory.notify_one();
    }
}

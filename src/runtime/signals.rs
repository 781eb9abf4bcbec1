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

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The end: SIGTERM or SIGINT.
    End,
    /// That files are read again: SIGHUP.
    Reread,
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
        while self.next().await == Asked::Reread {
            reread.all();
        }
    }

    /// Waits for a signal.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::End,
            _ = self.interrupt.recv() => Asked::End,
            _ = self.hangup.recv() => Asked::Reread,
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

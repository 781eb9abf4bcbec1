//! Signal handling: SIGTERM and SIGINT end the process, SIGHUP makes it read its files again.
//!
//! Before there is a runtime, [`StartSignals`] ends the process at once, because nothing is open
//! yet. Once [`Signals::new`] has run, the command ends in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// Exit code of a command that a signal stops before it starts its work: not an error.
const EXIT_STOPPED: i32 = 0;

/// Signal handlers for the start of a command that runs until a signal stops it. SIGTERM and SIGINT
/// end the process inside the handler with exit code 0, so that even a start that hangs ends.
/// SIGHUP is remembered.
#[derive(Debug)]
pub struct StartSignals {
    /// True if the handlers end the process with exit code 0.
    ends: Arc<AtomicBool>,
    /// True if the handlers end the process by the signal, as the system does by default.
    kills: Arc<AtomicBool>,
    hangup: Arc<AtomicBool>,
}

/// Receiver of signals from its creation on. It misses none, and none ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// True if a SIGHUP arrived before the receiver existed.
    early_hangup: bool,
}

/// Triggers of the tasks that read files again on SIGHUP.
#[derive(Debug, Clone, Default)]
pub(super) struct ReloadTriggers {
    /// Wakes the reload of the token and the certificates.
    pub(super) api: Arc<Notify>,
    /// Wakes the scan of the config directory.
    pub(super) directory: Arc<Notify>,
}

/// Action that a signal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    /// End the process: SIGTERM or SIGINT.
    End,
    /// Read files again: SIGHUP.
    Reload,
}

impl StartSignals {
    /// Installs the handlers. It should be the first action of a command.
    ///
    /// # Errors
    /// Returns an error if the system rejects a handler.
    pub fn install() -> io::Result<Self> {
        let (ends, kills, hangup) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for signal in [SIGTERM, SIGINT] {
            flag::register_conditional_shutdown(signal, EXIT_STOPPED, Arc::clone(&ends))?;
            flag::register_conditional_default(signal, Arc::clone(&kills))?;
        }
        flag::register(SIGHUP, Arc::clone(&hangup))?;
        Ok(Self { ends, kills, hangup })
    }

    /// From now on SIGTERM and SIGINT kill the process, as they do by default. A command with a
    /// single task needs this: exit code 0 would say that the task is done.
    pub fn kill_from_now_on(&self) {
        self.kills.store(true, Ordering::SeqCst);
        self.ends.store(false, Ordering::SeqCst);
    }
}

impl Signals {
    /// Replaces the handlers of the start. Needs a runtime.
    ///
    /// # Errors
    /// Returns an error if the system rejects a handler.
    pub fn new(start: &StartSignals) -> io::Result<Self> {
        let mut signals = Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            early_hangup: false,
        };
        start.ends.store(false, Ordering::SeqCst);
        signals.early_hangup = start.hangup.load(Ordering::SeqCst);
        Ok(signals)
    }

    /// Waits for a signal that ends the process. Meanwhile passes SIGHUP on.
    pub(super) async fn end(&mut self, reload: &ReloadTriggers) {
        while self.next().await == SignalRequest::Reload {
            reload.notify_all();
        }
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> SignalRequest {
        if std::mem::take(&mut self.early_hangup) {
            return SignalRequest::Reload;
        }
        tokio::select! {
            _ = self.terminate.recv() => SignalRequest::End,
            _ = self.interrupt.recv() => SignalRequest::End,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }
}

impl ReloadTriggers {
    fn notify_all(&self) {
        tracing::info!("SIGHUP: reading the token, the certificates and the config directory again");
        self.api.notify_one();
        self.directory.notify_one();
    }
}

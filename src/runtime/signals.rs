//! The signals: SIGTERM and SIGINT end the process, SIGHUP has files read again.
//!
//! A signal that comes before there is a runtime is handled by [`StartSignals`], which ends the process on the spot: nothing is open yet. From
//! [`Signals::new`] on the command itself ends in order.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// Exit code of a command that a signal stops before it starts its work: nothing went wrong.
const EXIT_STOPPED: i32 = 0;

/// Signal handlers for the start of a command that runs until a signal stops it. SIGTERM and SIGINT end the process with exit code 0,
/// at once and from inside the handler, so that a start that hangs ends too. SIGHUP is remembered.
#[derive(Debug)]
pub struct StartSignals {
    /// Whether the handlers end the process with exit code 0.
    ends: Arc<AtomicBool>,
    /// Whether they end it by the signal, as the system would.
    kills: Arc<AtomicBool>,
    hangup: Arc<AtomicBool>,
}

/// Signals from the moment on in which this is made: none that comes later is missed, or ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// Whether a SIGHUP came before there was somebody to hear it.
    early_hangup: bool,
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

impl StartSignals {
    /// Installs the handlers: the first thing that such a command does.
    ///
    /// # Errors
    /// If the system refuses a handler.
    pub fn install() -> io::Result<Self> {
        let (ends, kills, hangup) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        for signal in [SIGTERM, SIGINT] {
            flag::register_conditional_shutdown(signal, EXIT_STOPPED, Arc::clone(&ends))?;
            flag::register_conditional_default(signal, Arc::clone(&kills))?;
        }
        flag::register(SIGHUP, Arc::clone(&hangup))?;
        Ok(Self { ends, kills, hangup })
    }

    /// SIGTERM and SIGINT end the process by the signal from now on: for a command that does one thing, whose exit code would say that it is done.
    pub fn kill_from_now_on(&self) {
        self.kills.store(true, Ordering::SeqCst);
        self.ends.store(false, Ordering::SeqCst);
    }
}

impl Signals {
    /// Takes the signals over from the handlers of the start; needs a runtime.
    ///
    /// # Errors
    /// Where the system does not let us.
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

    /// Waits for a signal that ends the process, and passes on the others meanwhile.
    pub(super) async fn end(&mut self, reread: &Reread) {
        while self.next().await == Asked::Reread {
            reread.all();
        }
    }

    /// Waits for a signal.
    pub async fn next(&mut self) -> Asked {
        if std::mem::take(&mut self.early_hangup) {
            return Asked::Reread;
        }
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

//! What a command is busy with, for whoever waits in front of it: one line on the terminal, written over, and gone in the end.
//!
//! Owns: when that is shown, and how wide it may be. Deliberately lacks: anything for a standard error that is no terminal: a script waits
//! without it, and a log is not read meanwhile.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::model::is_acted_on;

/// What is over before this is not worth a line.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// How often the line is written anew: a person sees it move.
const INTERVAL: Duration = Duration::from_millis(250);

/// How wide a terminal is that does not say so.
const COLUMNS: u16 = 80;

/// Back to the begin of the line, and nothing on it (ECMA-48, EL).
const WIPE: &str = "\r\x1b[K";

/// Whether there is a line: a second one, of a part of what the first is about, would only flicker.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Something that may take long. The line is gone when it is dropped; what is printed comes after that.
#[derive(Debug)]
pub(in crate::cli) struct Progress {
    doing: Arc<Mutex<String>>,
    /// Dropped to end it; nothing is sent.
    end: Option<SyncSender<()>>,
    painter: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins with what is done first.
    pub(in crate::cli) fn begin(doing: &str) -> Self {
        let doing = Arc::new(Mutex::new(doing.to_owned()));
        if !io::stderr().is_terminal() || SHOWN.swap(true, Ordering::Relaxed) {
            return Self { doing, end: None, painter: None };
        }
        let ((end, ended), shown) = (sync_channel(0), Arc::clone(&doing));
        let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(COLUMNS, |size| size.ws_col);
        let columns = if columns == 0 { COLUMNS } else { columns };
        let painter = thread::spawn(move || paint(&mut io::stderr(), &ended, &shown, columns));
        Self { doing, end: Some(end), painter: Some(painter) }
    }

    /// Says what is done now.
    pub(in crate::cli) fn tell(&self, doing: impl Into<String>) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing.into();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(painter) = self.painter.take() {
            // it only writes to the terminal; what it could not write is lost
            let _ = painter.join();
            SHOWN.store(false, Ordering::Relaxed);
        }
    }
}

/// Writes the line until the end, and wipes it then.
fn paint(out: &mut dyn Write, ended: &Receiver<()>, doing: &Mutex<String>, columns: u16) {
    let begun = Instant::now();
    let mut wait = SHOWN_AFTER;
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let line = line(&doing.lock().unwrap_or_else(PoisonError::into_inner), begun.elapsed(), columns);
        // who closed the terminal does not read it
        let _ = write!(out, "{WIPE}{line}").and_then(|()| out.flush());
        wait = INTERVAL;
    }
    if wait == INTERVAL {
        let _ = write!(out, "{WIPE}").and_then(|()| out.flush());
    }
}

/// What is done and for how long, on one line: a longer one could not be written over.
fn line(doing: &str, since: Duration, columns: u16) -> String {
    let since = format!(", {} s", since.as_secs());
    let room = usize::from(columns).saturating_sub(since.len() + 1);
    doing.chars().map(|character| if is_acted_on(character) { ' ' } else { character }).take(room).collect::<String>() + &since
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_at_once_is_not_shown_and_what_was_shown_is_wiped() {
        let (end, ended) = sync_channel(0);
        let mut out = Vec::new();
        drop(end);
        paint(&mut out, &ended, &Mutex::new("reading".to_owned()), 80);
        assert_eq!(out, b"");

        /// Ends it once it has written a line.
        struct Until(Vec<u8>, Option<SyncSender<()>>);
        impl Write for Until {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1.take();
                self.0.write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (end, ended) = sync_channel(0);
        let mut out = Until(Vec::new(), Some(end));
        paint(&mut out, &ended, &Mutex::new("reading".to_owned()), 80);
        assert_eq!(String::from_utf8(out.0).unwrap(), "\r\x1b[Kreading, 1 s\r\x1b[K");
    }

    #[test]
    fn a_line_never_reaches_the_last_column() {
        assert_eq!(line("reading\nthe entries", Duration::from_secs(61), 80), "reading the entries, 61 s");
        assert_eq!(line("reading the entries", Duration::from_secs(61), 16), "reading t, 61 s");
        assert_eq!(line("reading", Duration::ZERO, 1), ", 0 s");
    }
}

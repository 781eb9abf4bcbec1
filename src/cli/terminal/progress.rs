//! A progress line on standard error: shows the current step of a command, and is wiped at the end.
//!
//! The line is shown only if standard error is a terminal: scripts do not need it.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::model::is_terminal_control;

/// Time after which the line appears. Shorter tasks show none.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Interval between updates of the line, short enough to look alive.
const INTERVAL: Duration = Duration::from_millis(250);

/// Width of a terminal that does not report one, in characters.
const COLUMNS: u16 = 80;

/// Returns to the beginning of the line and erases it (ECMA-48, EL).
const WIPE: &str = "\r\x1b[K";

/// True while a line is shown: a second one, for a part of the same task, would only flicker.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// Progress line of a task that may take long. Dropping it wipes the line before any other output.
#[derive(Debug)]
pub(in crate::cli) struct ProgressLine {
    text: Arc<Mutex<String>>,
    end: Option<SyncSender<()>>,
    painter: Option<JoinHandle<()>>,
}

impl ProgressLine {
    /// Starts the progress line with the text of the first step.
    pub(in crate::cli) fn start(text: &str) -> Self {
        let text = Arc::new(Mutex::new(text.to_owned()));
        if !io::stderr().is_terminal() || SHOWN.swap(true, Ordering::Relaxed) {
            return Self { text, end: None, painter: None };
        }
        let ((end, ended), shown) = (sync_channel(0), Arc::clone(&text));
        let columns = terminal_columns(io::stderr());
        let painter = thread::spawn(move || paint(&mut io::stderr(), &ended, &shown, columns));
        Self { text, end: Some(end), painter: Some(painter) }
    }

    /// Replaces the text that the line shows.
    pub(in crate::cli) fn set_text(&self, text: impl Into<String>) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(painter) = self.painter.take() {
            // the thread only writes to the terminal; a failed write is not an error of the command
            let _ = painter.join();
            SHOWN.store(false, Ordering::Relaxed);
        }
    }
}

/// Returns the width of a terminal in characters. `kubectl exec` reports 0 until it knows the
/// width.
pub(super) fn terminal_columns(terminal: impl AsFd) -> u16 {
    let columns = rustix::termios::tcgetwinsize(terminal).map_or(COLUMNS, |size| size.ws_col);
    if columns == 0 { COLUMNS } else { columns }
}

/// Redraws the line until the end, then wipes it.
fn paint(out: &mut dyn Write, ended: &Receiver<()>, text: &Mutex<String>, columns: u16) {
    let started = Instant::now();
    let mut wait = SHOWN_AFTER;
    while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
        let line = line(&text.lock().unwrap_or_else(PoisonError::into_inner), started.elapsed(), columns);
        // if the terminal was closed, nobody reads the line
        let _ = write!(out, "{WIPE}{line}").and_then(|()| out.flush());
        wait = INTERVAL;
    }
    if wait == INTERVAL {
        let _ = write!(out, "{WIPE}").and_then(|()| out.flush());
    }
}

/// Returns the text and the elapsed time, cut to the terminal's width: a longer line could not be
/// overwritten.
fn line(text: &str, elapsed: Duration, columns: u16) -> String {
    let suffix = format!(", {} s", elapsed.as_secs());
    let text_width = usize::from(columns).saturating_sub(suffix.len() + 1);
    text.chars().map(|character| if is_terminal_control(character) { ' ' } else { character }).take(text_width).collect::<String>()
        + &suffix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tasks_show_no_line_and_a_shown_line_is_wiped() {
        let (end, ended) = sync_channel(0);
        let mut out = Vec::new();
        drop(end);
        paint(&mut out, &ended, &Mutex::new("reading".to_owned()), 80);
        assert_eq!(out, b"");

        /// Writer that ends the progress once it has received a line.
        struct EndAfterWrite(Vec<u8>, Option<SyncSender<()>>);
        impl Write for EndAfterWrite {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.1.take();
                self.0.write(bytes)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (end, ended) = sync_channel(0);
        let mut out = EndAfterWrite(Vec::new(), Some(end));
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

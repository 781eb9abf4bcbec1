//! The log: one line for each transition, on standard error, as text or JSON.
//!
//! Nothing waits for it and nothing fails by it: a thread of its own writes the lines, and those that cannot be written, or wait while a
//! pipe's reader sleeps, are lost and counted. Deliberately lacks: metrics, which are read from the handle when somebody asks for them.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{LogFormat, LogLevel};
use crate::handle::LostLines;
use crate::model::{LogTail, printable, printable_with_colours};

/// The environment variable with which a filter finer than a level is given.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// How many lines may wait to be written: a start with a large store at the finest level writes some thousands in a second. At the usual 200
/// bytes of a line they are 7 MB.
const WAITING_LINES_MAX: usize = 32_768;

/// The log of this process, until it is dropped: then what waits is written, within a second.
#[derive(Debug)]
pub struct Log {
    _writer: WorkerGuard,
    lost: LostLines,
    tail: LogTail,
}

impl Log {
    /// How many lines were lost so far.
    #[must_use]
    pub fn lost(&self) -> LostLines {
        self.lost.clone()
    }

    /// Its newest lines.
    #[must_use]
    pub fn tail(&self) -> LogTail {
        self.tail.clone()
    }
}

/// A writer of one line to both places: where the log goes, and what is kept of it. Values in a line come from other clusters, so what a terminal
/// acts on is escaped, except the line's own colours.
struct Both {
    queue: NonBlocking,
    tail: LogTail,
    colours: bool,
}

impl Write for Both {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let shown = if self.colours { printable_with_colours(&text) } else { printable(&text) };
        self.tail.push(shown.as_bytes());
        self.queue.write_all(shown.as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }
}

/// A writer that takes every line, whether it can be written or not.
#[derive(Debug)]
struct Tolerant<W> {
    inner: W,
    lost: Arc<AtomicU64>,
}

impl<W: Write> Write for Tolerant<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.inner.write_all(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // what is not flushed shows as a line that cannot be written
        let _ = self.inner.flush();
        Ok(())
    }
}

/// The log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not one.
    #[error("{FILTER_VARIABLE} is not a log filter, such as meshkeep=debug")]
    Filter(#[source] ParseError),
    /// Somebody has set up a log in this process before.
    #[error("a log is set up already")]
    Twice(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up the log of this process. A filter in `RUST_LOG` wins over the level.
///
/// # Errors
/// [`TelemetryError`]: a bad filter, or a second call.
pub fn init(format: LogFormat, level: LogLevel) -> Result<Log, TelemetryError> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(filter).map_err(TelemetryError::Filter)?,
        Ok(_) | Err(_) => EnvFilter::new(filter_for(level)),
    };
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let unwritable = Arc::new(AtomicU64::new(0));
    let tolerant = Tolerant { inner: io::stderr(), lost: Arc::clone(&unwritable) };
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES_MAX).thread_name("log");
    let (queue, writer) = queue.finish(tolerant);
    let dropped = queue.error_counter();
    let lost = LostLines::new(move || unwritable.load(Ordering::Relaxed) + dropped.dropped_lines() as u64);
    let tail = LogTail::default();
    let kept = tail.clone();
    let writer_of_lines = move || Both { queue: queue.clone(), tail: kept.clone(), colours };
    // an error of ours is no reason to print one to the same place, which panics
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer_of_lines).with_ansi(colours).log_internal_errors(false);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::Twice)?;
    Ok(Log { _writer: writer, lost, tail })
}

/// Ours at the level, the libraries' warnings only: their debug lines are about frames and would drown ours.
fn filter_for(level: LogLevel) -> String {
    let libraries = match level {
        LogLevel::Error => LogLevel::Error,
        LogLevel::Warn | LogLevel::Info | LogLevel::Debug => LogLevel::Warn,
        LogLevel::Trace => LogLevel::Trace,
    };
    // what a stranger sends makes these two warn, a line for each connection
    let quiet = if level == LogLevel::Trace { "" } else { ",rustls=error,h2=error" };
    format!("{}{quiet},meshkeep={}", libraries.as_str(), level.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_no_error() {
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Tolerant { inner: Full, lost: Arc::clone(&lost) };
        writer.write_all(b"one\n").unwrap();
        writer.write_all(b"two\n").unwrap();
        writer.flush().unwrap();
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }
}

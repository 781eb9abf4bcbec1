//! The log: one line per transition on standard error, as text or JSON.
//!
//! Logging never blocks and never fails. A separate thread writes the lines; those that cannot be
//! written, or that exceed the queue while a pipe's reader is slow, are dropped and counted.
//! Metrics come from `handle` instead.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

use crate::config::{LogFormat, LogLevel};
use crate::handle::Measurement;
use crate::instruments::LogTail;
use crate::model::{printable, printable_with_colours};

/// Environment variable of a log filter, which is finer than a level.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// Maximum number of queued lines, 7 MB at the usual 200 bytes. A start with a large store logs
/// some thousands of lines per second at the finest level.
const WAITING_LINES_MAX: usize = 32_768;

/// Log of this process. When it is dropped, it writes the queued lines within a second.
#[derive(Debug)]
pub struct Log {
    _writer: WorkerGuard,
    lost: Measurement<u64>,
    tail: LogTail,
}

impl Log {
    /// Returns the counter of dropped lines.
    #[must_use]
    pub fn lost(&self) -> Measurement<u64> {
        self.lost.clone()
    }

    /// Returns the buffer of the newest lines.
    #[must_use]
    pub fn tail(&self) -> LogTail {
        self.tail.clone()
    }
}

/// Writer that sends each line to standard error and to the tail. Values in a line come from other
/// clusters, so terminal control characters are escaped, except for the line's own colours.
struct TeeWriter {
    queue: NonBlocking,
    tail: LogTail,
    colours: bool,
}

impl Write for TeeWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        let escaped = if self.colours { printable_with_colours(&text) } else { printable(&text) };
        self.tail.push(escaped.as_bytes());
        self.queue.write_all(escaped.as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }
}

/// Writer that accepts every line and counts those that cannot be written.
#[derive(Debug)]
struct CountingWriter<W> {
    inner: W,
    lost: Arc<AtomicU64>,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.inner.write_all(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // a failed flush shows up as a line that cannot be written
        let _ = self.inner.flush();
        Ok(())
    }
}

/// Error of setting up the log.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is invalid.
    #[error("{FILTER_VARIABLE} is not a log filter, such as meshkeep=debug")]
    Filter(#[source] ParseError),
    /// This process already has a log.
    #[error("the log is already set up")]
    AlreadySet(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up the log of this process. A filter in `RUST_LOG` overrides the level.
///
/// # Errors
/// Returns [`TelemetryError`] for an invalid filter or a second call.
pub fn init(format: LogFormat, level: LogLevel) -> Result<Log, TelemetryError> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(filter) if !filter.is_empty() => EnvFilter::try_new(filter).map_err(TelemetryError::Filter)?,
        Ok(_) | Err(_) => EnvFilter::new(filter_for(level)),
    };
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let unwritable = Arc::new(AtomicU64::new(0));
    let tolerant = CountingWriter { inner: io::stderr(), lost: Arc::clone(&unwritable) };
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_LINES_MAX).thread_name("log");
    let (queue, writer) = queue.finish(tolerant);
    let dropped = queue.error_counter();
    let lost = Measurement::new(move || unwritable.load(Ordering::Relaxed) + dropped.dropped_lines() as u64);
    let tail = LogTail::default();
    let tail_of_writer = tail.clone();
    let writer_of_lines = move || TeeWriter { queue: queue.clone(), tail: tail_of_writer.clone(), colours };
    // the subscriber would print its own errors to standard error, which panics if that failed
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer_of_lines).with_ansi(colours).log_internal_errors(false);
    match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(TelemetryError::AlreadySet)?;
    Ok(Log { _writer: writer, lost, tail })
}

/// Returns the filter of a level. Below `trace`, libraries log warnings at most, because their
/// debug lines are about frames and would hide meshkeep's.
fn filter_for(level: LogLevel) -> String {
    let libraries = match level {
        LogLevel::Error => LogLevel::Error,
        LogLevel::Warn | LogLevel::Info | LogLevel::Debug => LogLevel::Warn,
        LogLevel::Trace => LogLevel::Trace,
    };
    // these two warn about each connection of a client that sends garbage
    let quiet = if level == LogLevel::Trace { "" } else { ",rustls=error,h2=error" };
    format!("{}{quiet},meshkeep={}", libraries.as_str(), level.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk without free space.
    struct FullDisk;

    impl Write for FullDisk {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn an_unwritable_line_is_counted_without_an_error() {
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = CountingWriter { inner: FullDisk, lost: Arc::clone(&lost) };
        writer.write_all(b"one\n").unwrap();
        writer.write_all(b"two\n").unwrap();
        writer.flush().unwrap();
        assert_eq!(lost.load(Ordering::Relaxed), 2);
    }
}

//! The log: one line per transition on standard error, as text or JSON. `otlp` exports traces.
//!
//! Logging never blocks and never fails. A separate thread writes the lines; those that cannot be
//! written, or that exceed the queue while a pipe's reader is slow, are dropped and counted.
//! Metrics come from `handle` instead.

mod otlp;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;
use tracing_appender::non_blocking::{NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{Directive, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::config::{LogFormat, LogLevel};
use crate::handle::Measurement;
use crate::instruments::{LogTail, TRACE_TARGET};
use crate::model::{SecretUrl, printable, printable_with_colours};
use otlp::{OtlpEndpointError, TraceExporter};

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
    traces: Option<TraceExporter>,
}

/// Receiver of traces, and the runtime on which they are sent.
#[derive(Debug, Clone, Copy)]
pub struct TraceReceiver<'a> {
    /// Base URL of OTLP/HTTP.
    pub endpoint: &'a SecretUrl,
    /// Runtime of the requests.
    pub runtime: &'a Handle,
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

    /// Sends the spans that wait, if traces are exported. Takes at most a second. No span is sent
    /// afterwards.
    pub fn end_traces(&self) {
        if let Some(traces) = &self.traces {
            traces.end();
        }
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
    /// The receiver of traces cannot be used.
    #[error(transparent)]
    OtlpEndpoint(#[from] OtlpEndpointError),
    /// This process already has a log.
    #[error("the log is already set up")]
    AlreadySet(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up the log of this process, and the export of traces if they have a receiver. A filter in
/// `RUST_LOG` overrides the level.
///
/// # Errors
/// Returns [`TelemetryError`] for an invalid filter, an unusable receiver or a second call.
pub fn init(format: LogFormat, level: LogLevel, receiver: Option<TraceReceiver<'_>>) -> Result<Log, TelemetryError> {
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
    let traces = receiver.map(|TraceReceiver { endpoint, runtime }| TraceExporter::start(endpoint, runtime)).transpose()?;
    let layers = layers(format, filter, (writer_of_lines, colours), traces.as_ref());
    tracing_subscriber::registry().with(layers).try_init().map_err(|error| TelemetryError::AlreadySet(error.into()))?;
    Ok(Log { _writer: writer, lost, tail, traces })
}

/// Returns the layer of the log, and that of the traces if they are exported.
fn layers<W>(
    format: LogFormat,
    filter: EnvFilter,
    (writer, colours): (W, bool),
    traces: Option<&TraceExporter>,
) -> Vec<Box<dyn Layer<Registry> + Send + Sync>>
where
    W: for<'line> MakeWriter<'line> + Send + Sync + 'static,
{
    // the layer would print its own errors to standard error, which panics if that failed
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours).log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let mut all = Vec::new();
    // the log has spans of its own for the ids of traces
    let without_traces = traces.and_then(|_| format!("{TRACE_TARGET}=off").parse::<Directive>().ok());
    let filter = without_traces.into_iter().fold(filter, EnvFilter::add_directive);
    all.push(lines.with_filter(filter).boxed());
    all.extend(traces.map(TraceExporter::layer));
    all
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
    use crate::instruments::{RequestTrace, TraceHeaders};

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

    /// Lines in memory.
    #[derive(Clone, Default)]
    struct SharedLines(Arc<std::sync::Mutex<Vec<u8>>>);

    impl Write for SharedLines {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Runs `work` with the layers of a log. Returns the number of layers, and the lines.
    fn log_of(format: LogFormat, endpoint: Option<&str>, work: impl FnOnce()) -> (usize, String) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let traces = endpoint.map(|endpoint| TraceExporter::start(&SecretUrl::new(endpoint), runtime.handle()).unwrap());
        let lines = SharedLines::default();
        let writer = lines.clone();
        let layers = layers(format, EnvFilter::new("info"), (move || writer.clone(), false), traces.as_ref());
        let count = layers.len();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layers), work);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        (count, text)
    }

    #[test]
    fn the_log_lines_of_a_request_have_the_id_of_its_trace() {
        let parent = Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let request = || {
            let trace = RequestTrace::start("GET", "/v1/nodes", TraceHeaders { parent, state: None }).unwrap();
            trace.log_span().in_scope(|| tracing::warn!("inside"));
            trace.end(200);
            tracing::warn!("outside");
        };
        let (count, text) = log_of(LogFormat::Text, Some("http://127.0.0.1:1"), request);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((count, lines.len()), (2, 2), "{text}");
        assert!(lines[0].contains("request{traceId=\"4bf92f3577b34da6a3ce929d0e0e4736\"}: ") && lines[0].ends_with("inside"), "{text}");
        assert!(!lines[1].contains("request"), "{text}");
        let (_, json) = log_of(LogFormat::Json, Some("http://127.0.0.1:1"), request);
        let line: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        assert_eq!((&line["message"], &line["span"]["traceId"]), (&"inside".into(), &"4bf92f3577b34da6a3ce929d0e0e4736".into()), "{json}");
    }

    #[test]
    fn without_a_receiver_there_is_only_the_layer_of_the_log() {
        let (count, text) = log_of(LogFormat::Text, None, || {
            assert!(RequestTrace::start("GET", "/v1/nodes", TraceHeaders::default()).is_none());
            tracing::warn!("a line");
        });
        assert_eq!((count, text.lines().count()), (1, 1), "{text}");
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

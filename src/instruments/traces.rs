//! Spans of traces: of a request, and of other operations. They exist only while traces are
//! exported (`telemetry`); otherwise each function here costs one atomic load.
//!
//! A span of a trace is not in the log, and the log has a span of its own with the id of the trace.
//! Attributes never have values of a request, only its method, route and status.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{Status, TraceContextExt as _};
use opentelemetry::{Context, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Target of the spans of traces. The log leaves them out, and the exporter gets no others.
pub const TRACE_TARGET: &str = "meshkeep::traces";

/// Methods that may be part of a span's name. Clients can send any text as a method (the semantic
/// conventions of OpenTelemetry for HTTP).
const METHODS: [&str; 9] = ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"];

/// Smallest status that is a fault of the server, which makes a span an error.
const SERVER_ERROR_MIN: u16 = 500;

static IS_ENABLED: AtomicBool = AtomicBool::new(false);

/// Starts to create spans, for the rest of the process.
pub fn enable_traces() {
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Id of a trace: 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceId(String);

impl TraceId {
    /// Returns the id with this text.
    pub fn new(id: impl Display) -> Self {
        Self(id.to_string())
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Headers of a client that already has a trace (W3C Trace Context).
#[derive(Debug, Default, Clone, Copy)]
pub struct TraceHeaders<'a> {
    /// Value of `traceparent`.
    pub parent: Option<&'a str>,
    /// Value of `tracestate`.
    pub state: Option<&'a str>,
}

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            "traceparent" => self.parent,
            "tracestate" => self.state,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent", "tracestate"]
    }
}

/// Span of a request. It ends when it is dropped.
#[derive(Debug)]
pub struct RequestTrace {
    span: Span,
    id: TraceId,
    is_sampled: bool,
}

impl RequestTrace {
    /// Starts the span of a request, as a child of the client's span if it has one. Returns `None`
    /// if there are no traces.
    #[must_use]
    pub fn start(method: &str, route: &str, headers: TraceHeaders<'_>) -> Option<Self> {
        if !IS_ENABLED.load(Ordering::Relaxed) {
            return None;
        }
        // at the level `error`, because no filter of the levels leaves it out
        let method = if METHODS.contains(&method) { method } else { "_OTHER" };
        let name = format!("{method} {route}");
        let span = tracing::error_span!(target: TRACE_TARGET, parent: None, "request", otel.name = name, otel.kind = "server");
        // fails only without the exporter's layer
        let _ = span.set_parent(TraceContextPropagator::new().extract_with_context(&Context::new(), &headers));
        span.set_attribute("http.request.method", method.to_owned());
        span.set_attribute("http.route", route.to_owned());
        let context = span.context();
        let started = context.span().span_context().clone();
        started.is_valid().then(|| Self { span, id: TraceId::new(started.trace_id()), is_sampled: started.is_sampled() })
    }

    /// Returns the id of the trace.
    #[must_use]
    pub const fn id(&self) -> &TraceId {
        &self.id
    }

    /// Returns the id of the trace if it is sent to the receiver.
    #[must_use]
    pub fn sampled_id(&self) -> Option<&TraceId> {
        self.is_sampled.then_some(&self.id)
    }

    /// Creates the span that adds the id to the log lines of the request.
    #[must_use]
    pub fn log_span(&self) -> Span {
        tracing::error_span!("request", traceId = self.id.as_str())
    }

    /// Ends the span with the status of the answer.
    pub fn end(self, status: u16) {
        self.span.set_attribute("http.response.status_code", i64::from(status));
        if status >= SERVER_ERROR_MIN {
            self.span.set_status(Status::error(""));
        }
    }
}

/// Span of an operation that no client requested. It ends when it is dropped.
#[derive(Debug)]
pub struct OperationTrace(Option<Span>);

impl OperationTrace {
    /// Starts the span of an operation with one attribute.
    #[must_use]
    pub fn start<V: Into<Value>>(name: &'static str, attribute: impl FnOnce() -> (&'static str, V)) -> Self {
        let span = IS_ENABLED.load(Ordering::Relaxed).then(|| {
            let span = tracing::error_span!(target: TRACE_TARGET, parent: None, "operation", otel.name = name);
            let (key, value) = attribute();
            span.set_attribute(key, value);
            span
        });
        Self(span)
    }

    /// Ends the span, with the error if the operation failed.
    pub fn end<E: Display>(self, error: Option<&E>) {
        if let (Some(span), Some(error)) = (self.0, error) {
            span.set_status(Status::error(error.to_string()));
        }
    }
}

/// Does `work` in the span of an operation with one attribute.
///
/// # Errors
/// Returns the error of `work`.
pub fn trace_operation<T, E: Display, V: Into<Value>>(
    name: &'static str,
    attribute: impl FnOnce() -> (&'static str, V),
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let trace = OperationTrace::start(name, attribute);
    let outcome = work();
    trace.end(outcome.as_ref().err());
    outcome
}

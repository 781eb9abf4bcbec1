//! Export of traces over OTLP/HTTP to the receiver of `--otlp-endpoint`.
//!
//! A thread of the exporter collects the spans in a bounded queue and sends them in batches; spans
//! that exceed the queue are dropped. Nothing waits for the receiver except the end of the process,
//! for at most a second.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Compression, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use tokio::runtime::Handle;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use crate::files::system_certificates;
use crate::instruments::{TRACE_TARGET, enable_traces};
use crate::model::{SecretUrl, readable_error};

/// Maximum number of spans that wait to be sent, about 2 MB. The SDK's default.
const WAITING_SPANS_MAX: usize = 2_048;

/// Interval at which the waiting spans are sent, or earlier if there are 512. The SDK's default.
const SEND_INTERVAL: Duration = Duration::from_secs(5);

const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum time of a request, connecting included. Its spans are lost afterwards. The default of
/// OTLP exporters.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum time that the end of the process waits for the last spans to be sent.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(1);

/// Path of traces below the endpoint (OTLP/HTTP).
const TRACES_PATH: [&str; 2] = ["v1", "traces"];

/// Error: the URL of `--otlp-endpoint` cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use --otlp-endpoint {shown}: {reason}")]
pub struct OtlpEndpointError {
    /// URL without its secret parts.
    shown: String,
    reason: String,
}

/// Environment variables with the compression of requests. The first one that is set counts
/// (OpenTelemetry's exporter specification).
const COMPRESSION_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION"];

/// Exporter of this process.
#[derive(Debug)]
pub(super) struct TraceExporter(SdkTracerProvider);

impl TraceExporter {
    /// Starts the exporter. Its requests run on `runtime`.
    pub(super) fn start(endpoint: &SecretUrl, runtime: &Handle) -> Result<Self, OtlpEndpointError> {
        let compression = compression(|name| std::env::var(name).ok());
        let compression = compression.map_err(|reason| OtlpEndpointError { shown: endpoint.shown(), reason })?;
        Self::start_with(endpoint, runtime, compression)
    }

    fn start_with(endpoint: &SecretUrl, runtime: &Handle, compression: Option<Compression>) -> Result<Self, OtlpEndpointError> {
        let unusable = |reason: String| OtlpEndpointError { shown: endpoint.shown(), reason };
        let client = OtlpClient::new(endpoint, runtime).map_err(unusable)?;
        // the client sends to its own URL: errors of the exporter may repeat the one that it knows
        let origin = client.url.origin().ascii_serialization();
        let builder = SpanExporter::builder().with_http().with_endpoint(origin).with_timeout(REQUEST_TIME_MAX);
        let builder =
            compression.into_iter().fold(builder.with_http_client(client), |builder, compression| builder.with_compression(compression));
        let exporter = builder.build().map_err(|error| unusable(readable_error(&error)))?;
        let limits = BatchConfigBuilder::default().with_max_queue_size(WAITING_SPANS_MAX).with_scheduled_delay(SEND_INTERVAL).build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(limits).build();
        let resource = Resource::builder()
            .with_service_name("meshkeep")
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        Ok(Self(SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource.build()).build()))
    }

    /// Returns the layer that passes the spans of traces to the exporter, and enables them.
    pub(super) fn layer<S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync>(&self) -> Box<dyn Layer<S> + Send + Sync> {
        enable_traces();
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer("meshkeep"));
        // the place in the code, the thread and the level say nothing to a reader of traces
        let layer = layer.with_location(false).with_threads(false).with_target(false).with_tracked_inactivity(false);
        layer.with_filter(filter_fn(|metadata| metadata.target() == TRACE_TARGET)).boxed()
    }

    /// Sends the waiting spans, for at most [`FLUSH_TIME_MAX`], and ends the exporter.
    pub(super) fn end(&self) {
        // the spans that cannot be sent are lost, and the client has logged the reason
        let _ = self.0.shutdown_with_timeout(FLUSH_TIME_MAX);
    }
}

/// HTTP client for the receiver.
#[derive(Debug)]
struct OtlpClient {
    client: Client,
    url: Url,
    shown: String,
    runtime: Handle,
    is_failing: AtomicBool,
}

impl OtlpClient {
    fn new(endpoint: &SecretUrl, runtime: &Handle) -> Result<Self, String> {
        let mut url = Url::parse(endpoint.whole()).map_err(|error| format!("it is not a URL ({error})"))?;
        url.path_segments_mut().map_err(|()| "it is not a URL of a server")?.pop_if_empty().extend(TRACES_PATH);
        // reqwest needs a provider for plain HTTP too; the call fails only if one is installed
        // already
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut builder = Client::builder().connect_timeout(CONNECT_TIME_MAX).timeout(REQUEST_TIME_MAX);
        builder = builder.redirect(Policy::none()).no_proxy();
        if url.scheme() == "https" {
            builder = system_certificates().into_iter().fold(builder, ClientBuilder::add_root_certificate);
        }
        let client = builder.build().map_err(|error| error_text(&error.without_url()))?;
        Ok(Self { client, url, shown: endpoint.shown(), runtime: runtime.clone(), is_failing: AtomicBool::new(false) })
    }

    /// Logs the first of several failures, and the first success after them.
    fn log_outcome(&self, failure: Option<&str>) {
        match (self.is_failing.swap(failure.is_some(), Ordering::Relaxed), failure) {
            (false, Some(reason)) => {
                tracing::warn!(receiver = self.shown, reason, "cannot send traces: their spans are lost until the receiver accepts them");
            }
            (true, None) => tracing::info!(receiver = self.shown, "traces are being sent again"),
            (false, None) | (true, Some(_)) => {}
        }
    }
}

/// Returns the compression of requests, from environment variables. The exporter would ignore an
/// unknown value.
fn compression(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Compression>, String> {
    for name in COMPRESSION_VARIABLES {
        let value = variable(name).unwrap_or_default().trim().to_ascii_lowercase();
        match value.as_str() {
            "" => {}
            "none" => return Ok(None),
            "gzip" => return Ok(Some(Compression::Gzip)),
            _ => return Err(format!("{name} is {value:?}: use gzip or none")),
        }
    }
    Ok(None)
}

/// Returns the text of an error's innermost cause.
fn error_text(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    readable_error(innermost)
}

impl HttpClient for OtlpClient {
    fn send_bytes<'client, 'response>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'response>>
    where
        'client: 'response,
        Self: 'response,
    {
        let (head, body) = request.into_parts();
        let request = self.client.post(self.url.clone()).headers(head.headers).body(body);
        Box::pin(async move {
            // the exporter's thread has no runtime
            let sent = self.runtime.spawn(async move { request.send().await.map(|response| response.status()) }).await;
            let status = match sent {
                Ok(Ok(status)) => status,
                Ok(Err(error)) => {
                    let error = error_text(&error.without_url());
                    self.log_outcome(Some(&error));
                    return Err(error.into());
                }
                // the runtime has ended
                Err(error) => return Err(error.into()),
            };
            self.log_outcome((!status.is_success()).then(|| format!("it answers {status}")).as_deref());
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use opentelemetry::trace::Tracer as _;

    use super::*;

    #[test]
    fn an_unknown_compression_is_refused() {
        for (of_traces, of_all, expected) in [
            (None, None, Ok(None)),
            (None, Some("gzip"), Ok(Some(Compression::Gzip))),
            (Some(""), Some("GZIP"), Ok(Some(Compression::Gzip))),
            (Some("none"), Some("gzip"), Ok(None)),
            (Some("gzip"), Some("none"), Ok(Some(Compression::Gzip))),
            (None, Some("zstd"), Err("OTEL_EXPORTER_OTLP_COMPRESSION is \"zstd\": use gzip or none".to_owned())),
            (Some("brotli"), None, Err("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION is \"brotli\": use gzip or none".to_owned())),
        ] {
            let variable = |name: &str| if name == COMPRESSION_VARIABLES[0] { of_traces } else { of_all }.map(str::to_owned);
            let found = compression(variable).map(|found| found.map(|compression| compression.to_string()));
            assert_eq!(found, expected.map(|expected| expected.map(|compression| compression.to_string())), "{of_traces:?} {of_all:?}");
        }
    }

    #[test]
    fn spans_are_compressed_on_request() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        for (compression, expected) in [(None, false), (Some(Compression::Gzip), true)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let endpoint = SecretUrl::new(&format!("http://{}", listener.local_addr().unwrap()));
            let exporter = TraceExporter::start_with(&endpoint, runtime.handle(), compression).unwrap();
            drop(exporter.0.tracer("test").start("a span"));
            // the receiver closes the connection without an answer
            let receiver = std::thread::spawn(move || {
                let (mut head, mut buffer) = (Vec::new(), [0; 4096]);
                let (mut socket, _) = listener.accept().unwrap();
                while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
                    let length = socket.read(&mut buffer).unwrap();
                    head.extend_from_slice(&buffer[..length]);
                }
                String::from_utf8_lossy(&head).to_ascii_lowercase()
            });
            exporter.end();
            let head = receiver.join().unwrap();
            assert_eq!(head.contains("content-encoding: gzip\r\n"), expected, "{head}");
        }
    }

    #[tokio::test]
    async fn no_error_has_a_secret_of_the_endpoint() {
        let start = |endpoint: &str| TraceExporter::start(&SecretUrl::new(endpoint), &Handle::current());
        // `http` refuses such a long URI, and its error repeats the URI
        let long = format!("http://user:hunter2@127.0.0.1:1/hunter2{}?token=hunter2", "x".repeat(70_000));
        assert!(start(&long).is_ok());
        for endpoint in ["http://user:hunter2@127.0.0.1:hunter2", "hunter2", "mailto:hunter2", "http://user:hunter2@"] {
            let error = start(endpoint).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn no_failed_request_has_a_secret_of_the_endpoint() {
        let endpoint = SecretUrl::new("http://user:hunter2@127.0.0.1:1/hunter2?token=hunter2");
        let client = OtlpClient::new(&endpoint, &Handle::current()).unwrap();
        let request = Request::post("http://other/").header("authorization", "hunter2").body(Bytes::new()).unwrap();
        let error = client.send_bytes(request).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

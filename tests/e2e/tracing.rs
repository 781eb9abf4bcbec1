//! `--otlp-endpoint`: a receiver of OTLP/HTTP gets the spans of requests, connections and store
//! writes.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AttributeValue;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::samples::in_state_form;
use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::meshkeep::{Meshkeep, http};

/// Headers and trace id of a client, from the examples of W3C Trace Context.
const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT_ID: &str = "00f067aa0ba902b7";

/// Heads and bodies of the requests so far.
type RecordedRequests = Arc<Mutex<Vec<(String, ExportTraceServiceRequest)>>>;

/// A receiver that accepts all spans.
struct TraceReceiver {
    port: u16,
    requests: RecordedRequests,
    _accepting: JoinSet<()>,
}

impl TraceReceiver {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, requests) = (listener.local_addr().unwrap().port(), RecordedRequests::default());
        let (mut accepting, recorded) = (JoinSet::new(), Arc::clone(&requests));
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(answer(socket, Arc::clone(&recorded)));
            }
        });
        Self { port, requests, _accepting: accepting }
    }

    /// Returns the service and the spans so far.
    fn spans(&self) -> Vec<(String, Span)> {
        let requests = self.requests.lock().unwrap();
        let resources = requests.iter().flat_map(|(_, request)| &request.resource_spans);
        let spans = resources.flat_map(|resource| {
            let service = attribute(&resource.resource.as_ref().unwrap().attributes, "service.name");
            resource.scope_spans.iter().flat_map(|scope| &scope.spans).map(move |span| (service.clone(), span.clone()))
        });
        spans.collect()
    }

    fn named(&self, name: &str) -> Vec<Span> {
        self.spans().into_iter().map(|(_, span)| span).filter(|span| span.name == name).collect()
    }
}

/// Reads one request, records it, and answers.
async fn answer(mut socket: TcpStream, requests: RecordedRequests) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let length = socket.read(&mut buffer).await.unwrap_or(0);
        if length == 0 {
            return;
        }
        request.extend_from_slice(&buffer[..length]);
        let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(request[..end].to_vec()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
        if request.len() == end + 4 + length {
            let body = ExportTraceServiceRequest::decode(&request[end + 4..]).unwrap();
            requests.lock().unwrap().push((head, body));
            break;
        }
    }
    let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await;
}

/// Returns an attribute as text; empty if there is none.
fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let value = attributes.iter().find(|attribute| attribute.key == key).and_then(|attribute| attribute.value.clone());
    match value {
        Some(AnyValue { value: Some(AttributeValue::StringValue(text)) }) => text,
        Some(AnyValue { value: Some(AttributeValue::IntValue(number)) }) => number.to_string(),
        other => other.map(|value| format!("{value:?}")).unwrap_or_default(),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a request that is refused, with a client's `traceparent`. Returns the problem document.
async fn refused_request(running: &Meshkeep, sampled: &str) -> Value {
    let url = format!("{}/v1/ipcache/lookup?ip=hunter2", running.url());
    let request = http().get(url).header("traceparent", format!("00-{TRACE_ID}-{PARENT_ID}-{sampled}"));
    request.send().await.unwrap().json().await.unwrap()
}

/// Returns whether the process has the exporter's thread.
fn has_exporter(running: &Meshkeep) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", running.id())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.into_iter().any(|name| name.starts_with("OpenTelemetry"))
}

#[tokio::test]
async fn a_receiver_gets_the_spans_of_requests_connections_and_writes() {
    let receiver = TraceReceiver::start().await;
    let endpoint = format!("--otlp-endpoint=http://hunter2:hunter2@127.0.0.1:{}", receiver.port);
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[&endpoint]).await;
    assert!(has_exporter(&running));
    let problem = refused_request(&running, "01").await;
    assert_eq!((&problem["code"], &problem["traceId"]), (&"badParameter".into(), &TRACE_ID.into()), "{problem}");
    // an own trace, and one that the client does not sample
    let own = running.send_get("/v1/nodes/nowhere/none").await.1["traceId"].as_str().unwrap().to_owned();
    assert!(own.len() == 32 && own != TRACE_ID, "{own}");
    let shown = running.get("/v1/config").await;
    let metrics = http().get(format!("{}/metrics", running.url())).header("accept", "application/openmetrics-text");
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    let exemplar = format!(" 1 # {{trace_id=\"{TRACE_ID}\"}} 0.");
    let line = metrics.lines().find(|line| line.contains(&exemplar)).unwrap_or_else(|| panic!("{metrics}"));
    assert!(line.starts_with("meshkeep_http_request_duration_seconds_bucket{route=\"/v1/ipcache/lookup\",status=\"400\""), "{line}");
    assert!(!running.text("/metrics").await.contains(" # "), "only OpenMetrics has exemplars");
    refused_request(&running, "00").await;
    let ended = running.stop().await;
    assert!(ended.status.success() && !ended.log.contains("hunter2") && !shown.to_string().contains("hunter2"), "{}", ended.log);

    let spans = receiver.spans();
    assert!(spans.iter().all(|(service, _)| service == "meshkeep"), "{spans:?}");
    let lookups = receiver.named("GET /v1/ipcache/lookup");
    let refused: Vec<&Span> = lookups.iter().filter(|span| hexadecimal(&span.trace_id) == TRACE_ID).collect();
    assert_eq!(refused.len(), 1, "{lookups:?}");
    assert_eq!((hexadecimal(&refused[0].parent_span_id).as_str(), refused[0].kind()), (PARENT_ID, SpanKind::Server));
    let of_lookup = |key| attribute(&refused[0].attributes, key);
    assert_eq!((of_lookup("http.request.method"), of_lookup("http.route")), ("GET".to_owned(), "/v1/ipcache/lookup".to_owned()));
    assert_eq!(of_lookup("http.response.status_code"), "400");
    let missing = receiver.named("GET /v1/nodes/{cluster}/{name}");
    assert!(missing.iter().any(|span| hexadecimal(&span.trace_id) == own && span.parent_span_id.is_empty()), "{missing:?}");
    let mut clusters: Vec<String> =
        receiver.named("connect to a cluster").iter().map(|span| attribute(&span.attributes, "meshkeep.cluster")).collect();
    clusters.sort();
    clusters.dedup();
    assert_eq!(clusters, ["paris", "tokyo"]);
    assert!(!receiver.named("store a group").is_empty());
    let requests = receiver.requests.lock().unwrap();
    assert!(requests.iter().all(|(head, _)| head.starts_with("POST /v1/traces HTTP/1.1\r\n")), "{requests:?}");
    assert!(requests.iter().all(|(head, _)| head.contains("authorization: Basic aHVudGVyMjpodW50ZXIy")), "{requests:?}");
    assert!(requests.iter().all(|(_, body)| !format!("{body:?}").contains("hunter2")));
}

#[tokio::test]
async fn without_the_setting_there_are_no_traces() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let problem = refused_request(&running, "01").await;
    assert_eq!((&problem["code"], &problem["traceId"]), (&"badParameter".into(), &Value::Null), "{problem}");
    assert!(!has_exporter(&running));
}

#[tokio::test]
async fn a_receiver_that_is_down_is_logged_once_and_delays_nothing() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &["--otlp-endpoint=http://127.0.0.1:1/hunter2"]).await;
    eventually("the failure in the log", || async { (running.log_lines_with(&["cannot send traces", "refused"]) == 1).then_some(()) })
        .await;
    assert!(refused_request(&running, "01").await["traceId"] == TRACE_ID);
    let ended = running.stop().await;
    assert_eq!(ended.log.matches("cannot send traces").count(), 1, "{}", ended.log);
    assert!(ended.status.success() && !ended.log.contains("hunter2"), "{}", ended.log);
}

//! The change stream over HTTP: server-sent events, or the same objects as NDJSON.
//!
//! [`crate::handle::Subscription`] decides what a reader lacks until the reader is current. From
//! then on, a [`group`] encodes each event once for all readers with the same filter.
//! [`change_router`] routes changes to the groups in ticks, [`event_stream`] is one stream,
//! [`catch_up`] scans snapshots, [`encode`] writes the events, and [`conflation`] merges changes
//! for busy readers.
//!
//! There is no queue per reader: the socket pulls the body, so a slow reader slows only itself.

mod catch_up;
mod change_router;
pub(crate) mod changes;
mod conflation;
mod encode;
mod event_stream;
mod group;
mod stream_metrics;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::dto::meta::MetaOptions;
use super::problem::{Problem, ProblemCode};
use super::query::{EventsQuery, Parameters, StreamParameters, StreamQuery};
use crate::admission::{Client, ScanExecutor, StreamLimiter, StreamPermit};
use crate::api::render::answer_properties::MediaType;
use crate::dto::problem::ProblemDocument;
use crate::dto::values::closed::OnExpired;
use crate::handle::{BatchLimits, Filter, Handle, Reading, ResetReason, StreamStart, Subscription};
use crate::model::{Kind, ReaderPosition};

pub(crate) use change_router::{ChangeRouter, ConflationPolicy};
pub(crate) use encode::Encoding;
use event_stream::EventStream;
use group::GroupKey;
pub(crate) use stream_metrics::StreamMetrics;

/// Bounds of a short scan: it runs immediately and does not wait for a slice among the long
/// [scans](crate::admission).
///
/// A short scan takes less than a millisecond at about 4 µs per change. A change of an ipcache
/// entry has about 0.6 KB with its old value, so the bytes are enough for 100 of them, or for one
/// service with 400 backends.
const SHORT: BatchLimits = BatchLimits { changes: 128, bytes: 64 << 10 };

/// State shared by all streams. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct StreamContext {
    pub(crate) handle: Handle,
    /// Cancelled when meshkeep shuts down: streams end.
    pub(crate) stop: CancellationToken,
    /// Slots for streams.
    pub(crate) stream_limiter: StreamLimiter,
    /// Groups of streams that share bytes.
    pub(crate) change_router: ChangeRouter,
    /// Metrics of streams.
    pub(crate) stream_metrics: StreamMetrics,
    /// Scheduler of long scans.
    pub(crate) scans: ScanExecutor,
}

/// The change stream.
///
/// Server-sent events or, with `Accept: application/x-ndjson`, one `WatchEvent` per line. A
/// client that applies the events has, at every `synced` and every `bookmark`, exactly what the
/// lists return at that position. `reset`: drop the copy, a snapshot follows. `upsert` and
/// `delete`: the newest state of one key; ignore a `delete` of a key that the copy does not
/// have. `patch` (only with `patch=true`): changes to the backends of a service in the copy.
/// `error`: a problem document, then the stream ends.
#[utoipa::path(get, path = "/v1/events", operation_id = "watchEvents", tag = "events",
    params(
        EventsQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "Starts after this position. Takes precedence over `after`, `since` and `snapshot`.")
    ),
    responses(
        (status = 200, description = "The stream; each `data:` is a `WatchEvent` in JSON.", content(
            (String = "text/event-stream", example = json!("event: bookmark\nid: v1.00000000deadbeef.42\ndata: {\"type\":\"bookmark\",\"position\":\"v1.00000000deadbeef.42\",\"clusters\":[]}\n\n"))
        )),
        (status = 410, description = "With `onExpired=fail`: the position can no longer be served.", body = ProblemDocument),
        (status = 429, description = "Too many streams are open.", body = ProblemDocument)
    ))]
pub(crate) async fn watch_events(
    State(streams): State<StreamContext>,
    client: Option<Extension<Client>>,
    headers: HeaderMap,
    query: Parameters<EventsQuery>,
) -> Result<Response, Problem> {
    let Extension(client) = client.unwrap_or(Extension(Client::Local));
    let encoding = if query.media_type == MediaType::Lines { Encoding::NdJson } else { Encoding::Sse };
    let filter = query.values.filter()?.canonical();
    let parts = query.values.common()?;
    // checked even if the header wins: a wrong parameter is an error of the client
    let after = parts.after.map(position).transpose()?;
    let start = match last_event_id(&headers) {
        // an EventSource stops for good after an error, so a header that cannot be parsed leads to
        // a `reset`
        Some(id) => StreamStart::After(id.parse().ok()),
        None => start(after, &parts),
    };
    let permit = acquire_stream(&streams, client)?;
    let reading = streams.handle.reading().await?;
    check_stream_age(parts.meta_options, &filter, &reading)?;
    if parts.on_expired == OnExpired::Fail {
        Subscription::check_start(&start, &filter, &reading).map_err(expired)?;
    }
    let mut subscription = Subscription::new(filter.clone(), &start, &reading);
    if query.values.patch == Some(true) {
        subscription = subscription.with_patches();
    }
    let key = GroupKey { filter, encoding, patch: subscription.sends_patches() };
    let mut response = Body::from_stream(EventStream::new(streams, key, subscription, permit)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(encoding.content_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Returns the `Last-Event-ID` header. A header that is not text becomes `?`, which is a malformed
/// position.
fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    headers.get("last-event-id").map(|value| value.to_str().unwrap_or("?")).filter(|id| !id.is_empty())
}

/// Parses `after=`.
fn position(text: &str) -> Result<ReaderPosition, Problem> {
    text.parse()
        .map_err(|error| Problem::bad_parameter("after", format!("{text:?} is {error}: use the position of an event or of meta.position")))
}

fn start(after: Option<ReaderPosition>, parameters: &StreamParameters<'_>) -> StreamStart {
    match (after, parameters.since) {
        (Some(position), _) => StreamStart::After(Some(position)),
        (None, Some(time)) => StreamStart::Since(time),
        (None, None) if parameters.snapshot => StreamStart::Snapshot,
        (None, None) => StreamStart::Now,
    }
}

/// Gets a slot for a stream.
fn acquire_stream(streams: &StreamContext, client: Client) -> Result<StreamPermit, Problem> {
    streams.stream_limiter.try_acquire(client).map_err(|none| Problem::new(ProblemCode::TooManyStreams, none.to_string()))
}

fn expired(_: ResetReason) -> Problem {
    Problem::new(ProblemCode::ExpiredPosition, "this position can no longer be served: start again with snapshot=true")
}

fn check_stream_age(meta_options: MetaOptions, filter: &Filter, reading: &Reading) -> Result<(), Problem> {
    let is_selected = |kind: &Kind| filter.kinds.is_empty() || filter.kinds.contains(kind);
    // the ipcache also contains entries derived from nodes
    let kinds: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| is_selected(kind) || (*kind == Kind::Node && is_selected(&Kind::Ip))).collect();
    meta_options.check_clusters(reading, &kinds, |name| filter.clusters.is_empty() || filter.clusters.contains(name))
}

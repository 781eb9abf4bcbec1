//! Long polling of the change stream (`/v1/changes`): events in single answers, for clients that
//! cannot read a stream.
//!
//! Each answer has its own [`Subscription`]. It begins where the previous answer ended, and ends
//! when there are events or the wait is over. `nextPosition` has all the state that the client must
//! send back: a position, or a [`ResumePoint`] inside a snapshot.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{SHORT, StreamContext, StreamMetrics, acquire_stream, check_stream_age, expired, position, start};
use crate::admission::Client;
use crate::admission::{MemoryPermit, Scanner};
use crate::api::paging::list_request::{PAGE_BYTES_MAX, checked_limit};
use crate::api::paging::page_starts::PAGE_STARTS;
use crate::api::paging::scanner;
use crate::api::problem::Problem;
use crate::api::query::{ChangesQuery, Parameters, StreamQuery};
use crate::dto::events::{Changes, WatchEvent};
use crate::dto::problem::ProblemDocument;
use crate::dto::values::closed::OnExpired;
use crate::handle::{
    BatchLimits, CatchUpStage, EncodedByteCount, Reading, ResetReason, ResumePoint, StreamEvent, Subscription, SyncMode, WorkSlice,
};
use crate::model::{ApiEnum, EntryKey, Sequence};

/// Maximum wait for an answer, in seconds (docs/use/api/streams.md): the idle time after which
/// proxies drop a connection.
const WAIT_SECONDS_MAX: u32 = 60;

/// Size in bytes at which an answer is complete, as for pages of lists.
///
/// The event that reaches it is included, so an answer has at least one event. An event usually has
/// at most 1.5 MiB, etcd's limit for a value.
const ANSWER_BYTES_MAX: usize = PAGE_BYTES_MAX;

/// Prefix of an encoded [`ResumePoint`]. It distinguishes a resume point from a position.
const RESUME_POINT_PREFIX: &str = "c1.";

/// Encoded result of one part of a scan.
#[derive(Debug, Default)]
struct EncodedEvents {
    /// Encoded events, separated by commas.
    events: Vec<u8>,
    /// Number of upserts, patches and deletes in `events`.
    change_count: usize,
    /// Reason of a reset. It makes all earlier events of the answer obsolete.
    reset: Option<ResetReason>,
    /// Set if a snapshot or replay was completed (`synced`). The inner value is the number of
    /// upserts and deletes of a snapshot, or `None` for a replay.
    synced: Option<Option<u64>>,
}

/// A partial answer.
#[derive(Debug)]
struct ChangesResponse {
    subscription: Subscription,
    stream_metrics: StreamMetrics,
    /// Maximum number of upserts and deletes.
    limit: usize,
    /// Encoded events, separated by commas.
    events: Vec<u8>,
    change_count: usize,
    reset: Option<ResetReason>,
    /// Number of upserts and deletes of a snapshot that this answer completes.
    snapshot_count: Option<u64>,
}

/// Request that waits for an answer, and its deadline.
#[derive(Debug)]
struct LongPoll {
    streams: StreamContext,
    client: Client,
    signal: watch::Receiver<Sequence>,
    has_writer_ended: bool,
    deadline: Instant,
    /// Slot and memory for a long scan, once the request needs them.
    long_scan: Option<(Scanner, MemoryPermit)>,
}

/// The change stream in single answers.
///
/// Filters, positions and events are those of `/v1/events`. The answer comes as soon as there
/// are events, and at the latest after `waitSeconds`. Begin with `snapshot=true`, then send
/// each `nextPosition` as `after`. A client that applies all events has, at each answer with
/// `more` false, exactly what the lists return at that position.
#[utoipa::path(get, path = "/v1/changes", operation_id = "listChanges", tag = "events", params(ChangesQuery),
    responses(
        (status = 200, description = "The events.", body = Changes),
        (status = 410, description = "With `onExpired=fail`: the position can no longer be served.", body = ProblemDocument),
        (status = 429, description = "Too many streams are open.", body = ProblemDocument)
    ))]
pub(crate) async fn list_changes(
    State(streams): State<StreamContext>,
    client: Option<Extension<Client>>,
    query: Parameters<ChangesQuery>,
) -> Result<impl IntoResponse, Problem> {
    let values = &query.values;
    let parts = values.common()?;
    let (filter, limit, wait) = (values.filter()?, checked_limit(values.limit)?, wait(values.wait_seconds)?);
    let place =
        parts.after.and_then(decode_resume_point).map(|(fingerprint, place)| same_filters(&fingerprint, place, &query)).transpose()?;
    let after = parts.after.filter(|_| place.is_none()).map(position).transpose()?;
    let start = start(after, &parts);
    let client = client.map_or(Client::Local, |Extension(client)| client);
    let _permit = acquire_stream(&streams, client)?;
    let signal = streams.handle.signal().await?;
    let reading = streams.handle.reading().await?;
    check_stream_age(parts.meta_options, &filter, &reading)?;
    if parts.on_expired == OnExpired::Fail {
        match &place {
            Some(place) => Subscription::check_resume_point(place, &filter, &reading),
            None => Subscription::check_start(&start, &filter, &reading),
        }
        .map_err(expired)?;
    }
    let subscription = match &place {
        Some(place) => Subscription::resume(filter, place, &reading),
        None => Subscription::new(filter, &start, &reading),
    };
    let response = ChangesResponse::new(subscription, streams.stream_metrics.clone(), limit);
    let poll = LongPoll { streams, client, signal, has_writer_ended: false, deadline: Instant::now() + wait, long_scan: None };
    let bytes = poll.run(response, &query.fingerprint).await?;
    Ok(([(CACHE_CONTROL, "no-store"), (CONTENT_TYPE, "application/json")], bytes))
}

impl LongPoll {
    /// Waits for events and returns the bytes of the answer.
    async fn run(mut self, mut response: ChangesResponse, fingerprint: &str) -> Result<Bytes, Problem> {
        loop {
            // marked as seen before the snapshot is taken, so that later changes wake this task
            self.signal.borrow_and_update();
            let reading = self.streams.handle.reading().await?;
            response = self.scan(response, &reading).await?;
            let current = response.subscription.is_current(&reading);
            if response.is_full() || (current && (response.has_events() || self.is_over())) {
                let bytes = response.finish(&reading, fingerprint)?;
                return Ok(match self.long_scan {
                    Some((_, permit)) => permit.attach_to(bytes),
                    None => bytes.into(),
                });
            }
            if current {
                // a waiting request occupies no slot for long scans
                self.long_scan = None;
                self.wait().await;
            }
        }
    }

    /// Scans a snapshot once: immediately if the scan is short, otherwise in a slice of this
    /// client.
    async fn scan(&mut self, mut response: ChangesResponse, reading: &Reading) -> Result<ChangesResponse, Problem> {
        if response.events.len() < SHORT.bytes && response.subscription.lacks_at_most(SHORT, reading) {
            response.add_events(reading, SHORT)?;
            return Ok(response);
        }
        let (scanner, _) = match &mut self.long_scan {
            Some(long_scan) => long_scan,
            none => {
                let scanner = self.streams.scans.admit(self.client)?;
                let permit = scanner::acquire_page_memory(&scanner).await?;
                none.insert((scanner, permit))
            }
        };
        let reading = reading.clone();
        let scan = move |response: &mut ChangesResponse, slice: &mut WorkSlice| {
            slice.count_row();
            response.add_events(&reading, BatchLimits { changes: usize::MAX, bytes: ANSWER_BYTES_MAX })
        };
        let (outcome, response) = scanner.run_slice(response, scan).await;
        outcome.map(|()| response)
    }

    fn is_over(&self) -> bool {
        self.has_writer_ended || self.streams.stop.is_cancelled() || Instant::now() >= self.deadline
    }

    async fn wait(&mut self) {
        tokio::select! {
            changed = self.signal.changed() => self.has_writer_ended = changed.is_err(),
            () = tokio::time::sleep_until(self.deadline) => {}
            () = self.streams.stop.cancelled() => {}
        }
    }
}

impl ChangesResponse {
    fn new(subscription: Subscription, stream_metrics: StreamMetrics, limit: usize) -> Self {
        Self { subscription, stream_metrics, limit, events: Vec::new(), change_count: 0, reset: None, snapshot_count: None }
    }

    fn is_full(&self) -> bool {
        self.change_count >= self.limit || self.events.len() >= ANSWER_BYTES_MAX
    }

    fn has_events(&self) -> bool {
        !self.events.is_empty() || self.snapshot_count.is_some()
    }

    /// Adds events up to `bounds` and the answer's own limits.
    fn add_events(&mut self, reading: &Reading, bounds: BatchLimits) -> Result<(), Problem> {
        let (changes, bytes) = (self.limit - self.change_count, ANSWER_BYTES_MAX - self.events.len());
        let bounds = BatchLimits { changes: changes.min(bounds.changes), bytes: bytes.min(bounds.bytes) };
        for encoded in self.subscription.encode_next(reading, bounds, |items, bytes| EncodedEvents::encode(items, bytes, reading)) {
            let encoded = encoded?;
            if let Some(reason) = encoded.reset {
                self.events.clear();
                self.change_count = 0;
                self.reset = Some(reason);
                self.stream_metrics.reset(reason);
            }
            if !self.events.is_empty() && !encoded.events.is_empty() {
                self.events.push(b',');
            }
            self.events.extend(encoded.events);
            self.change_count += encoded.change_count;
            self.snapshot_count = encoded.synced.unwrap_or(self.snapshot_count);
        }
        Ok(())
    }

    /// Returns the whole answer: the events and the members after them.
    fn finish(mut self, reading: &Reading, fingerprint: &str) -> Result<Vec<u8>, Problem> {
        let more = !self.subscription.is_current(reading);
        if !more {
            let (mode, count) = match self.snapshot_count {
                Some(count) => (SyncMode::Snapshot, count),
                None => (SyncMode::Replay, self.change_count as u64),
            };
            let synced = StreamEvent::Synced { mode, count, position: self.subscription.position(reading) };
            append(&mut self.events, &WatchEvent::of(&synced, reading))?;
        }
        let next_position = match self.subscription.resume_point(reading) {
            Some(place) => encode_resume_point(&place, fingerprint),
            None => self.subscription.position(reading).to_string(),
        };
        // the events are encoded already: a comma replaces the opening brace of the other members
        let rest = Changes { events: Vec::new(), next_position, more, reset: self.reset.map(Into::into) };
        let ending = serde_json::to_vec(&rest).map_err(encoding_failed)?;
        Ok([b"{\"events\":[", self.events.as_slice(), b"],", ending.get(1..).unwrap_or_default()].concat())
    }
}

impl EncodedEvents {
    /// Encodes items as they are produced, so that none of them is retained.
    fn encode(items: &mut dyn Iterator<Item = StreamEvent>, bytes: &EncodedByteCount, reading: &Reading) -> Result<Self, Problem> {
        let mut encoded = Self::default();
        let mut outcome = Ok(());
        for item in items {
            match &item {
                StreamEvent::Reset(reason) => encoded = Self { reset: Some(*reason), ..Self::default() },
                StreamEvent::Synced { mode, count, .. } => {
                    encoded.synced = Some((*mode == SyncMode::Snapshot).then_some(*count));
                    continue;
                }
                StreamEvent::Upsert { .. } | StreamEvent::Patch { .. } | StreamEvent::Delete { .. } => encoded.change_count += 1,
            }
            let before = encoded.events.len();
            outcome = outcome.and(append(&mut encoded.events, &WatchEvent::of(&item, reading)));
            bytes.add(encoded.events.len() - before);
        }
        outcome.map(|()| encoded)
    }
}

/// Appends an event to encoded events.
fn append(events: &mut Vec<u8>, event: &WatchEvent) -> Result<(), Problem> {
    if !events.is_empty() {
        events.push(b',');
    }
    serde_json::to_writer(events, event).map_err(encoding_failed)
}

fn encoding_failed(error: serde_json::Error) -> Problem {
    Problem::internal(format!("an event cannot be written: {error}"))
}

fn wait(seconds: Option<u32>) -> Result<Duration, Problem> {
    let seconds = seconds.unwrap_or(0);
    if seconds > WAIT_SECONDS_MAX {
        return Err(Problem::bad_parameter("waitSeconds", format!("{seconds} is not between 0 and {WAIT_SECONDS_MAX}")));
    }
    Ok(Duration::from_secs(seconds.into()))
}

fn same_filters(fingerprint: &str, place: ResumePoint, query: &Parameters<ChangesQuery>) -> Result<ResumePoint, Problem> {
    let other =
        "continues a snapshot with other filters: use the same filters as in the previous request, or start again with snapshot=true";
    if fingerprint == query.fingerprint { Ok(place) } else { Err(Problem::bad_parameter("after", other)) }
}

/// Encodes a resume point as text, with the fingerprint of its filters.
fn encode_resume_point(place: &ResumePoint, fingerprint: &str) -> String {
    let ResumePoint { sent, seen, mode, stage, count } = place;
    let (stage, key) = match stage {
        CatchUpStage::Scan(None) => ("begin", String::new()),
        CatchUpStage::Scan(Some(key)) => ("scan", PAGE_STARTS.shorten(&key.to_string())),
        CatchUpStage::Replay => ("replay", String::new()),
    };
    format!("{RESUME_POINT_PREFIX}{}", URL_SAFE_NO_PAD.encode(format!("{fingerprint}\n{sent}\n{seen}\n{count}\n{mode}\n{stage}\n{key}")))
}

/// Decodes the fingerprint and the resume point. Returns `None` if the text is not a resume point;
/// the caller then parses it as a position.
fn decode_resume_point(text: &str) -> Option<(String, ResumePoint)> {
    let text = String::from_utf8(URL_SAFE_NO_PAD.decode(text.strip_prefix(RESUME_POINT_PREFIX)?).ok()?).ok()?;
    let mut parts = text.splitn(7, '\n');
    let mut part = || parts.next();
    let (fingerprint, sent, seen, count) = (part()?, part()?.parse().ok()?, part()?.parse().ok()?, part()?.parse().ok()?);
    let mode = SyncMode::from_api_name(part()?)?;
    let stage = match (part()?, part()?) {
        ("begin", "") => CatchUpStage::Scan(None),
        ("scan", start) => CatchUpStage::Scan(Some(EntryKey::from_cache_form(&PAGE_STARTS.expand(start)?)?)),
        ("replay", "") => CatchUpStage::Replay,
        _ => return None,
    };
    Some((fingerprint.to_owned(), ResumePoint { sent, seen, mode, stage, count }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::fixture::{ApiFixture, key, node, put};
    use crate::handle::{Filter, StreamStart};
    use crate::model::{Change, Command, Kind, Scope};

    /// A client drops its copy at a reset, so an event from before the reset must not follow it.
    #[tokio::test]
    async fn a_reset_replaces_the_events_that_were_collected_before() {
        let fixture = ApiFixture::new();
        let reading = || fixture.handle.try_reading().unwrap();
        let put_node = |name: &str, revision| put(key(Kind::Node, "paris", name), node(name, "10.9.9.9", "a"), revision);
        let start = StreamStart::After(reading().position().to_string().parse().ok());
        let mut response =
            ChangesResponse::new(Subscription::new(Filter::default(), &start, &reading()), StreamMetrics::default(), usize::MAX);
        for (name, revision) in [("first", 101), ("second", 102)] {
            fixture.change(put_node(name, revision)).await;
        }
        response.add_events(&reading(), BatchLimits { changes: 1, bytes: ANSWER_BYTES_MAX }).unwrap();
        let count = |response: &ChangesResponse| String::from_utf8_lossy(&response.events).matches("\"name\":\"first\"").count();
        assert_eq!((count(&response), response.reset), (1, None));
        // more deletes than the feed keeps
        let names: Vec<String> = (0..1_500).map(|number| format!("short-lived-{number}")).collect();
        let scope = Scope { cluster: crate::api::tests::fixture::cluster("paris"), kind: Kind::Node };
        for changes in [
            names.iter().map(|name| put_node(name, 103)).collect::<Vec<_>>(),
            names.iter().map(|name| Change::Delete { key: key(Kind::Node, "paris", name) }).collect(),
        ] {
            let mut signal = fixture.handle.signal().await.unwrap();
            signal.borrow_and_update();
            fixture.command(Command::Apply { scope: scope.clone(), changes, cursor: None }).await;
            signal.changed().await.unwrap();
        }
        while !response.subscription.is_current(&reading()) {
            response.add_events(&reading(), BatchLimits { changes: usize::MAX, bytes: ANSWER_BYTES_MAX }).unwrap();
        }
        assert!(response.reset.is_some());
        assert_eq!(count(&response), 1, "{}", String::from_utf8_lossy(&response.events));
    }
}

//! `/metrics`: metrics for Prometheus, read from the newest snapshot at each scrape.
//!
//! All names have one namespace and base units; counters end with `_total`. Writing the text format
//! (version 0.0.4) needs 30 lines, so there is neither a library nor a registry, and nothing is
//! stored between scrapes. A remote cluster is `target_cluster`, as in `cilium_kvstoremesh_*`.

mod clusters;
mod page;
mod process;
mod reflection;

use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use self::clusters::timestamp;
use self::page::Page;
use crate::admission::Scanner;
use crate::api::dto::status::{readings, store_state};
use crate::api::state::ApiState;
use crate::findings::counts;
use crate::handle::{ClusterReading, Handle, Reading};
use crate::model::Kind;

/// Media type of Prometheus' text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics in Prometheus text format. Available while the store is loading.
///
/// Names begin with `meshkeep_`, or `process_` for metrics of the process.
#[utoipa::path(get, path = "/metrics", operation_id = "getMetrics", tag = "probes",
    responses((status = 200, description = "The metrics.", body = String, content_type = "text/plain")))]
pub(crate) async fn get_metrics(State(state): State<ApiState>, scanner: Scanner) -> impl IntoResponse {
    // about ten thousand lines with 255 clusters
    ([(CONTENT_TYPE, TEXT)], scanner.once(move || text(&state)).await)
}

fn text(state: &ApiState) -> String {
    let reading = state.handle.try_reading();
    let mut page = Page::default();
    process(&mut page, state, reading.is_some());
    process::add(&mut page);
    requests(&mut page, state);
    store(&mut page, &state.handle);
    streams(&mut page, state, reading.as_ref());
    posts(&mut page, state);
    etcd(&mut page, &state.handle);
    if let Some(reflection) = state.handle.reflection() {
        reflection::add(&mut page, &reflection);
    }
    if let Some(reading) = &reading {
        let all: Vec<ClusterReading> = readings(reading).collect();
        clusters::add(&mut page, &state.handle, &all);
        mirror(&mut page, reading);
        problems(&mut page, state, reading);
    }
    page.text
}

fn process(page: &mut Page, state: &ApiState, loaded: bool) {
    let handle = &state.handle;
    page.gauge("meshkeep_build_info", "The version that runs, and the commit that a release is built from; always 1.")
        .sample(&[("version", env!("CARGO_PKG_VERSION")), ("commit", commit())], 1);
    page.gauge("meshkeep_uptime_seconds", "How long it has been running.").sample(&[], handle.uptime().as_secs_f64());
    page.gauge("meshkeep_loaded", "Whether everything of the store is in memory.").sample(&[], u8::from(loaded));
    let scans = &state.scans;
    page.gauge("meshkeep_scans", "Requests that take long and are being answered.").sample(&[], scans.count());
    page.counter("meshkeep_scan_seconds_total", "Time that the threads for such requests worked.")
        .sample(&[], scans.spent().time.as_secs_f64());
    page.counter("meshkeep_scan_rows_total", "Rows that they looked at.").sample(&[], scans.spent().rows);
    let help = "Lines of the log that could not be written, or waited too long for a reader.";
    page.counter("meshkeep_log_lines_lost_total", help).sample(&[], handle.lost_lines());
    let mut marks = page.gauge("meshkeep_queue_high_water_mark", "The most that each queue ever held.");
    for (queue, length) in handle.queue_marks().into_iter().chain(state.hub.queue_marks()).chain([state.meters.queue_mark()]) {
        marks.sample(&[("queue", queue)], length);
    }
    let (taken, places) = state.seats.count();
    page.gauge("meshkeep_connections", "Open HTTP connections.").sample(&[], taken);
    page.gauge("meshkeep_connections_max", "How many may be open.").sample(&[], places);
    page.counter("meshkeep_connections_evicted_total", "Connections without token or certificate that were closed for new ones.")
        .sample(&[], state.seats.evicted_count());
    let mut stale = page.gauge("meshkeep_stale_files", "1 for the token file or TLS certificate that has changed and cannot be used.");
    for (name, failure) in state.findings.files.states() {
        stale.sample(&[("file", name)], u8::from(failure.is_some()));
    }
}

/// Returns the commit: the text in parentheses after the version.
fn commit() -> &'static str {
    env!("MESHKEEP_VERSION").split_once('(').map(|(_, commit)| commit.trim_end_matches(')')).unwrap_or_default()
}

fn requests(page: &mut Page, state: &ApiState) {
    let help = "From a request's head until the head of its answer, by route and status.";
    let mut requests = page.histogram("meshkeep_http_request_duration_seconds", help);
    for (route, status, times) in state.times.all() {
        requests.times(&[("route", &route), ("status", &status.to_string())], &times);
    }
    let expiry = state.findings.certificate.as_ref().and_then(|certificate| certificate.now().expiry);
    let mut certificate = page.gauge("meshkeep_tls_certificate_expiry_timestamp_seconds", "When the certificate of --tls-cert runs out.");
    if let Some(expiry) = expiry {
        certificate.sample(&[], timestamp(expiry));
    }
}

fn store(page: &mut Page, handle: &Handle) {
    let steps = handle.step_times();
    for (name, step, help) in [
        ("meshkeep_commit_duration_seconds", "commit", "What applying a batch of changes takes."),
        ("meshkeep_publish_duration_seconds", "publish", "From when the first change of a batch came until readers see all of it."),
        ("meshkeep_durable_duration_seconds", "durable", "From when the first change of a group is seen until all of it is stored."),
    ] {
        let mut family = page.histogram(name, help);
        for (_, times) in steps.iter().filter(|(of, _)| *of == step) {
            family.times(&[], times);
        }
    }
    let mut bytes = page.gauge("meshkeep_store_bytes", "Bytes of the disk that the data directory takes, by class of files.");
    for (class, count) in handle.disk_bytes() {
        bytes.sample(&[("class", class)], count);
    }
    let (now, _) = store_state(handle);
    let mut state = page.gauge("meshkeep_store_state", "1 for the state that storing is in.");
    for name in ["loading", "healthy", "lost", "failing", "stopped"] {
        state.sample(&[("state", name)], u8::from(name == now));
    }
    let report = handle.store();
    page.gauge("meshkeep_store_losses", "How many things the store had lost at the start; /v1/status has them in words.")
        .sample(&[], report.losses.len());
    page.gauge("meshkeep_store_restored_entries", "Keys restored at the start.").sample(&[], report.restored_count);
    page.gauge("meshkeep_store_damaged_records", "Stored records that could not be read at the start.").sample(&[], report.damaged_count);
}

fn streams(page: &mut Page, state: &ApiState, reading: Option<&Reading>) {
    let counts = state.meters.counts();
    let mut open = page.gauge("meshkeep_streams", "Open streams.");
    open.sample(&[("encoding", "sse")], counts.sse);
    open.sample(&[("encoding", "ndjson")], counts.ndjson);
    let mut resets = page.counter("meshkeep_stream_resets_total", "Readers that had to forget what they held.");
    for (reason, count) in &counts.resets {
        resets.sample(&[("reason", reason)], count);
    }
    page.counter("meshkeep_stream_replays_total", "Live streams that fell so far behind that they had to replay.").sample(&[], counts.lost);
    let mut events = page.counter("meshkeep_stream_encoded_events_total", "Events encoded: for one stream, or once for all of a filter.");
    events.sample(&[("shared", "false")], counts.events);
    events.sample(&[("shared", "true")], state.hub.encoded_count());
    page.counter(
        "meshkeep_stream_merged_changes_total",
        "Changes not told because a newer one of their key came while readers were too many.",
    )
    .sample(&[], state.hub.merged_count());
    page.counter("meshkeep_stream_sent_bytes_total", "Bytes that sockets took.").sample(&[], counts.bytes);
    if let Some(reading) = reading {
        let head = reading.feed().head;
        let alone = counts.oldest.map_or(0, |oldest| head.0.saturating_sub(oldest.0));
        let lag = alone.max(state.hub.lag(head));
        page.gauge("meshkeep_stream_lag_changes", "How many changes the slowest stream is behind.").sample(&[], lag);
    }
}

fn problems(page: &mut Page, state: &ApiState, reading: &Reading) {
    let mut family = page.gauge("meshkeep_problems", "What looks wrong: /v1/problems has each with what to do.");
    for ((kind, severity), count) in counts(&state.findings, reading) {
        family.sample(&[("kind", kind), ("severity", severity.api_name())], count);
    }
}

fn posts(page: &mut Page, state: &ApiState) {
    let (outcomes, waiting) = state.findings.posts.counts();
    let mut posts = page.counter("meshkeep_problem_posts_total", "What became of what was sent to --on-problem.");
    for (outcome, count) in outcomes {
        posts.sample(&[("outcome", outcome)], count);
    }
    page.gauge("meshkeep_problem_posts_waiting", "Findings that appeared or went and were not posted yet.").sample(&[], waiting);
}

fn etcd(page: &mut Page, handle: &Handle) {
    let counts = handle.etcd_counts();
    page.gauge("meshkeep_etcd_watch_streams", "Open streams of watches of an etcd's clients.").sample(&[], counts.watch_streams.get());
    page.gauge("meshkeep_etcd_watchers", "Watches that they have on these streams.").sample(&[], counts.watchers.get());
    page.counter("meshkeep_etcd_watches_compacted_total", "Watches that were cancelled because what they missed is not known any more.")
        .sample(&[], counts.compacted_watches());
    let mut ranges = page.counter("meshkeep_etcd_ranges_total", "Ranges, streams of ranges and transactions, by what became of them.");
    for (outcome, count) in counts.ranges() {
        ranges.sample(&[("outcome", outcome.name())], count);
    }
}

fn mirror(page: &mut Page, reading: &Reading) {
    let mut objects = page.gauge("meshkeep_objects", "Usable objects.");
    for kind in Kind::ALL {
        objects.sample(&[("kind", kind.api_name())], reading.object_count(kind));
    }
    page.gauge("meshkeep_global_services", "Names that some cluster shares or exports a service under.")
        .sample(&[], reading.global_service_count());
    page.gauge("meshkeep_rejected_entries", "Keys whose newest bytes could not be used.").sample(&[], reading.rejected_count());
    let feed = reading.feed();
    page.gauge("meshkeep_feed_head_sequence", "The sequence of the newest change.").sample(&[], feed.head);
    page.gauge("meshkeep_feed_floor_sequence", "The oldest sequence that a stream can go on from.").sample(&[], feed.floor);
    page.gauge("meshkeep_feed_tombstones", "Deleted keys that are remembered for streams.").sample(&[], feed.tombstone_count);
    let mut trimmed = page.counter("meshkeep_feed_trimmed_tombstones_total", "Tombstones that went, by the bound that took them.");
    trimmed.sample(&[("bound", "age")], feed.trimmed.by_age);
    trimmed.sample(&[("bound", "count")], feed.trimmed.by_count);
    let age = feed.oldest_tombstone.map_or(Duration::ZERO, |time| SystemTime::now().duration_since(time).unwrap_or_default());
    page.gauge("meshkeep_feed_oldest_tombstone_age_seconds", "How long ago the oldest of them was deleted; 0 if there is none.")
        .sample(&[], age.as_secs_f64());
}

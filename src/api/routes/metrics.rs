//! `/metrics`: metrics for Prometheus, read from the newest snapshot at each scrape.
//!
//! All names have one namespace and base units; counters end with `_total`. Writing the text format
//! (version 0.0.4, or OpenMetrics 1.0.0 if the client prefers it) needs 40 lines, so there is
//! neither a library nor a registry, and nothing is stored between scrapes. A remote cluster is
//! `target_cluster`, as in `cilium_kvstoremesh_*`.

mod clusters;
mod history;
mod metrics_text;
mod process;
mod reflection;

use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, VARY};
use axum::response::IntoResponse;

use self::clusters::timestamp;
use self::metrics_text::MetricsText;
use crate::admission::Scanner;
use crate::api::dto::status::{readings, store_state};
use crate::api::render::accept::prefers_openmetrics;
use crate::api::state::ApiState;
use crate::dto::values::closed::StoreState;
use crate::findings::counts;
use crate::handle::{ClusterReading, Handle, Reading};
use crate::model::Kind;

/// Media type of Prometheus' text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Media type of OpenMetrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics in the text format of Prometheus or OpenMetrics. Available while the store is loading.
///
/// Names begin with `meshkeep_`, or `process_` for metrics of the process.
#[utoipa::path(get, path = "/metrics", operation_id = "getMetrics", tag = "probes",
    responses((status = 200, description = "The metrics. OpenMetrics if `Accept` prefers `application/openmetrics-text`.", body = String,
        content_type = "text/plain")))]
pub(crate) async fn get_metrics(State(state): State<ApiState>, headers: HeaderMap, scanner: Scanner) -> impl IntoResponse {
    let is_openmetrics = prefers_openmetrics(&headers);
    let media_type = if is_openmetrics { OPENMETRICS } else { TEXT };
    // in a slice, because 255 clusters have thousands of lines
    let text = scanner.run_once(move || text(&state, is_openmetrics)).await;
    ([(CONTENT_TYPE, media_type), (VARY, "Accept, Accept-Encoding")], text)
}

fn text(state: &ApiState, is_openmetrics: bool) -> String {
    let reading = state.handle.try_reading();
    let mut text = MetricsText::new(is_openmetrics);
    process(&mut text, state, reading.is_some());
    process::add(&mut text);
    requests(&mut text, state);
    store(&mut text, &state.handle);
    if let Some(status) = state.handle.history_status() {
        history::add(&mut text, &status);
    }
    streams(&mut text, state, reading.as_ref());
    posts(&mut text, state);
    etcd(&mut text, &state.handle);
    if let Some(reflection) = state.handle.reflection() {
        reflection::add(&mut text, &reflection);
    }
    if let Some(reading) = &reading {
        let all: Vec<ClusterReading> = readings(reading).collect();
        clusters::add(&mut text, &state.handle, &all, state.all_metrics);
        mirror(&mut text, reading);
        problems(&mut text, state, reading);
    }
    text.finish()
}

fn process(text: &mut MetricsText, state: &ApiState, loaded: bool) {
    let handle = &state.handle;
    text.gauge("meshkeep_build_info", "Version and commit of the running binary; always 1.")
        .sample(&[("version", env!("CARGO_PKG_VERSION")), ("commit", commit())], 1);
    text.gauge("meshkeep_uptime_seconds", "Time since the start.").sample(&[], handle.uptime().as_secs_f64());
    text.gauge("meshkeep_loaded", "1 after the whole store was loaded into memory.").sample(&[], u8::from(loaded));
    let scans = &state.scans;
    text.gauge("meshkeep_scans", "Long requests in progress.").sample(&[], scans.admitted_count());
    text.counter("meshkeep_scan_seconds_total", "Processor time of long requests.").sample(&[], scans.total_usage().time.as_secs_f64());
    text.counter("meshkeep_scan_rows_total", "Rows that long requests scanned.").sample(&[], scans.total_usage().rows);
    let help = "Log lines that could not be written, or waited too long.";
    text.counter("meshkeep_log_lines_lost_total", help).sample(&[], handle.lost_lines());
    let mut marks = text.gauge("meshkeep_queue_high_water_mark", "Largest fill level of each queue.");
    for (queue, length) in
        handle.queue_marks().into_iter().chain(state.change_router.queue_marks()).chain([state.stream_metrics.queue_mark()])
    {
        marks.sample(&[("queue", queue)], length);
    }
    let (taken, places) = state.connection_limiter.count();
    text.gauge("meshkeep_connections", "Open HTTP connections.").sample(&[], taken);
    text.gauge("meshkeep_connections_max", "Maximum number of open HTTP connections.").sample(&[], places);
    text.counter("meshkeep_connections_evicted_total", "Connections without a token or certificate that were closed for new ones.")
        .sample(&[], state.connection_limiter.evicted_count());
    let mut stale =
        text.gauge("meshkeep_stale_files", "1 for a token file, view token file or TLS certificate that changed and cannot be used.");
    for (name, failure) in state.findings.files.states() {
        stale.sample(&[("file", name)], u8::from(failure.is_some()));
    }
}

/// Returns the commit: the text in parentheses after the version.
fn commit() -> &'static str {
    env!("MESHKEEP_VERSION").split_once('(').map(|(_, commit)| commit.trim_end_matches(')')).unwrap_or_default()
}

fn requests(text: &mut MetricsText, state: &ApiState) {
    let help = "Time from the head of a request to the head of its answer, by route and status.";
    let mut requests = text.histogram("meshkeep_http_request_duration_seconds", help);
    for (route, status, times) in state.times.all() {
        requests.times(&[("route", &route), ("status", &status.to_string())], &times);
    }
    let expiry = state.findings.certificate.as_ref().and_then(|certificate| certificate.current().expiry);
    let mut certificate = text.gauge("meshkeep_tls_certificate_expiry_timestamp_seconds", "Expiry of the certificate in --tls-cert.");
    if let Some(expiry) = expiry {
        certificate.sample(&[], timestamp(expiry));
    }
}

fn store(text: &mut MetricsText, handle: &Handle) {
    let steps = handle.step_times();
    for (name, step, help) in [
        ("meshkeep_commit_duration_seconds", "commit", "Time to apply a batch of changes."),
        ("meshkeep_publish_duration_seconds", "publish", "Time from the first change of a batch until readers see the batch."),
        ("meshkeep_durable_duration_seconds", "durable", "Time from the first visible change of a group until the group is on disk."),
    ] {
        let mut family = text.histogram(name, help);
        for (_, times) in steps.iter().filter(|(of, _)| *of == step) {
            family.times(&[], times);
        }
    }
    let mut bytes = text.gauge("meshkeep_store_bytes", "Disk space of the data directory, by class of files.");
    for (class, count) in handle.disk_bytes() {
        bytes.sample(&[("class", class)], count);
    }
    let (now, _) = store_state(handle);
    let mut state = text.gauge("meshkeep_store_state", "1 for the current state of the store.");
    for one in StoreState::ALL {
        state.sample(&[("state", one.api_name())], u8::from(one == now));
    }
    let report = handle.store_report();
    text.gauge("meshkeep_store_losses", "Number of losses of the store found at the start; /v1/status describes them.")
        .sample(&[], report.losses.len());
    text.gauge("meshkeep_store_restored_entries", "Entries restored at the start.").sample(&[], report.restored_count);
    text.gauge("meshkeep_store_damaged_records", "Stored records that could not be read at the start.").sample(&[], report.damaged_count);
}

fn streams(text: &mut MetricsText, state: &ApiState, reading: Option<&Reading>) {
    let counts = state.stream_metrics.counts();
    let mut open = text.gauge("meshkeep_streams", "Open streams.");
    open.sample(&[("encoding", "sse")], counts.sse);
    open.sample(&[("encoding", "ndjson")], counts.ndjson);
    let mut resets = text.counter("meshkeep_stream_resets_total", "Subscribers that had to drop their copy.");
    for (reason, count) in &counts.resets {
        resets.sample(&[("reason", reason)], count);
    }
    text.counter("meshkeep_stream_replays_total", "Live streams that were so far behind that they had to replay.")
        .sample(&[], counts.lagged);
    let mut events = text
        .counter("meshkeep_stream_encoded_events_total", "Encoded events, for one stream or shared by all streams with the same filter.");
    events.sample(&[("shared", "false")], counts.events);
    events.sample(&[("shared", "true")], state.change_router.encoded_count());
    text.counter(
        "meshkeep_stream_merged_changes_total",
        "Changes that were skipped because a newer change of the same key replaced them while the streams were busy.",
    )
    .sample(&[], state.change_router.merged_count());
    text.counter("meshkeep_stream_sent_bytes_total", "Bytes written to the sockets of streams.").sample(&[], counts.bytes);
    if let Some(reading) = reading {
        let head = reading.feed().head;
        let alone = counts.oldest.map_or(0, |oldest| head.0.saturating_sub(oldest.0));
        let lag = alone.max(state.change_router.lag(head));
        text.gauge("meshkeep_stream_lag_changes", "Number of changes that the slowest stream is behind.").sample(&[], lag);
    }
}

fn problems(text: &mut MetricsText, state: &ApiState, reading: &Reading) {
    let mut family = text.gauge("meshkeep_problems", "Current findings; /v1/problems has each with advice.");
    for ((kind, severity, cluster), count) in counts(&state.findings, reading) {
        let mut labels = vec![("kind", kind.api_name()), ("severity", severity.api_name())];
        // alerts leave out findings about a cluster that has an alert of its own
        labels.extend(cluster.as_deref().map(|cluster| ("target_cluster", cluster)));
        family.sample(&labels, count);
    }
}

fn posts(text: &mut MetricsText, state: &ApiState) {
    let (outcomes, waiting) = state.findings.webhook.counts();
    let mut posts = text.counter("meshkeep_problem_posts_total", "Requests to --on-problem, by outcome.");
    for (outcome, count) in outcomes {
        posts.sample(&[("outcome", outcome)], count);
    }
    text.gauge("meshkeep_problem_posts_waiting", "Findings that appeared or were resolved and are not posted yet.").sample(&[], waiting);
}

fn etcd(text: &mut MetricsText, handle: &Handle) {
    let counts = handle.etcd_counts();
    text.gauge("meshkeep_etcd_watch_streams", "Open watch streams of etcd clients.").sample(&[], counts.watch_streams.get());
    text.gauge("meshkeep_etcd_watchers", "Watches on these streams.").sample(&[], counts.watchers.get());
    text.counter("meshkeep_etcd_watches_compacted_total", "Watches cancelled because the changes that they missed are no longer known.")
        .sample(&[], counts.compacted_watches());
    let mut ranges = text.counter("meshkeep_etcd_ranges_total", "Ranges, streams of ranges and transactions, by outcome.");
    for (outcome, count) in counts.ranges() {
        ranges.sample(&[("outcome", outcome.name())], count);
    }
}

fn mirror(text: &mut MetricsText, reading: &Reading) {
    let mut objects = text.gauge("meshkeep_objects", "Usable objects.");
    for kind in Kind::ALL {
        objects.sample(&[("kind", kind.api_name())], reading.object_count(kind));
    }
    text.gauge("meshkeep_global_services", "Names of services that at least one cluster shares or exports.")
        .sample(&[], reading.global_service_count());
    text.gauge("meshkeep_rejected_entries", "Keys whose newest value cannot be used.").sample(&[], reading.rejected_count());
    let feed = reading.feed();
    text.gauge("meshkeep_feed_head_sequence", "Sequence of the newest change.").sample(&[], feed.head);
    text.gauge("meshkeep_feed_floor_sequence", "Oldest sequence from which a stream can continue.").sample(&[], feed.floor);
    text.gauge("meshkeep_feed_tombstones", "Tombstones kept for streams.").sample(&[], feed.tombstone_count);
    let mut trimmed = text.counter("meshkeep_feed_trimmed_tombstones_total", "Removed tombstones, by the bound that removed them.");
    trimmed.sample(&[("bound", "age")], feed.trimmed.by_age);
    trimmed.sample(&[("bound", "count")], feed.trimmed.by_count);
    let age = feed.oldest_tombstone.map_or(Duration::ZERO, |time| SystemTime::now().duration_since(time).unwrap_or_default());
    text.gauge("meshkeep_feed_oldest_tombstone_age_seconds", "Age of the oldest tombstone; 0 if there is none.")
        .sample(&[], age.as_secs_f64());
}

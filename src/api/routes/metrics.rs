//! `/metrics`: what Prometheus scrapes, read from the newest snapshot at each scrape.
//!
//! One namespace, base units, `_total` on counters. The text format (version 0.0.4) is 30 lines to write, so there is no registry and
//! no library: nothing here is kept between two scrapes. A remote is `target_cluster`, as in `cilium_kvstoremesh_*`.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::{Duration, SystemTime};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::api::dto::status::{readings, store_state};
use crate::api::scans::Scanner;
use crate::api::state::ApiState;
use crate::handle::{ClusterReading, Handle, Origin, Reading};
use crate::model::Phase;

/// Prometheus' text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A family of metrics in the making.
struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

/// A page of metrics.
#[derive(Default)]
struct Page {
    text: String,
}

/// Metrics in Prometheus' text format. Answers also while the store is loading.
///
/// For a scraper. Each begins with `meshkeep_` and has a line of help.
#[utoipa::path(get, path = "/metrics", operation_id = "getMetrics", tag = "probes",
    responses((status = 200, description = "The metrics.", body = String, content_type = "text/plain")))]
pub(crate) async fn get_metrics(State(state): State<ApiState>, scanner: Scanner) -> impl IntoResponse {
    // some ten thousand lines with 255 clusters
    ([(CONTENT_TYPE, TEXT)], scanner.once(move || text(&state)).await)
}

fn text(state: &ApiState) -> String {
    let reading = state.handle.try_reading();
    let mut page = Page::default();
    process(&mut page, state, reading.is_some());
    store(&mut page, &state.handle);
    streams(&mut page, state, reading.as_ref());
    if let Some(reading) = &reading {
        let all: Vec<ClusterReading> = readings(reading).collect();
        phases(&mut page, &all);
        resources(&mut page, &all);
        remotes(&mut page, &all);
        mirror(&mut page, reading);
    }
    page.text
}

impl Page {
    fn family(&mut self, name: &'static str, kind: &str, help: &str) -> Family<'_> {
        // writing to a String cannot fail
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Family { text: &mut self.text, name }
    }

    fn gauge(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "gauge", help)
    }

    fn counter(&mut self, name: &'static str, help: &str) -> Family<'_> {
        self.family(name, "counter", help)
    }
}

impl Family<'_> {
    /// One sample. Label values are names of ours, of Cilium's clusters or versions: none needs escaping, and what would is dropped.
    fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", value.replace(['\\', '"', '\n'], ""))).collect();
        let braced = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}{braced} {value}", self.name);
    }
}

fn process(page: &mut Page, state: &ApiState, loaded: bool) {
    let handle = &state.handle;
    page.gauge("meshkeep_build_info", "The version that runs; always 1.").sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
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
    for (name, failure) in state.files.states() {
        stale.sample(&[("file", name)], u8::from(failure.is_some()));
    }
}

fn store(page: &mut Page, handle: &Handle) {
    let (now, _) = store_state(handle);
    let mut state = page.gauge("meshkeep_store_state", "1 for the state that storing is in.");
    for name in ["loading", "healthy", "recovered", "failing", "stopped"] {
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

fn phases(page: &mut Page, all: &[ClusterReading]) {
    let mut counts: BTreeMap<&str, u64> = Phase::ALL.iter().map(|phase| (phase.api_name(), 0)).collect();
    for cluster in all {
        if let Some(phase) = cluster.phase {
            *counts.entry(phase.api_name()).or_default() += 1;
        }
    }
    let mut clusters = page.gauge("meshkeep_clusters", "Clusters in each phase.");
    for (phase, count) in counts {
        clusters.sample(&[("phase", phase)], count);
    }
}

fn resources(page: &mut Page, all: &[ClusterReading]) {
    let mut each = |name, help, value: &dyn Fn(&crate::handle::ResourceReading) -> Option<f64>| {
        let mut family = page.gauge(name, help);
        for (cluster, resource) in all.iter().flat_map(|cluster| cluster.resources.iter().map(move |resource| (cluster, resource))) {
            if let Some(value) = value(resource) {
                family.sample(&[("target_cluster", cluster.name.as_str()), ("kind", resource.kind.api_name())], value);
            }
        }
    };
    each("meshkeep_cluster_entries", "Keys that are held.", &|resource| Some(float(resource.entry_count)));
    let restored = "Keys from the store that the source has not confirmed yet.";
    each("meshkeep_cluster_restored_entries", restored, &|resource| Some(float(resource.restored_count)));
    let live = "Whether everything was confirmed by the source since the start.";
    each("meshkeep_cluster_confirmed", live, &|resource| Some(float(u64::from(resource.source.origin == Origin::Live))));
    let age = "How long ago the source last said anything.";
    each("meshkeep_cluster_age_seconds", age, &|resource| resource.source.age.map(|age| age.as_secs_f64()));
}

fn remotes(page: &mut Page, all: &[ClusterReading]) {
    let with_file = || all.iter().filter_map(|cluster| Some((cluster.name.as_str(), cluster.status.as_ref()?)));
    let mut failures = page.counter("meshkeep_cluster_failures_total", "Attempts that failed since the start.");
    for (name, status) in with_file() {
        failures.sample(&[("target_cluster", name)], status.failure_count);
    }
    let mut unknown = page.gauge("meshkeep_cluster_unknown_keys", "Keys at the source that this version does not know, by prefix.");
    for (name, status) in with_file() {
        for found in &status.unknown_prefixes {
            unknown.sample(&[("target_cluster", name), ("prefix", &found.prefix)], found.key_count);
        }
    }
    let mut last = page.gauge("meshkeep_cluster_last_failure_timestamp_seconds", "When the last attempt failed.");
    for (name, time) in with_file().filter_map(|(name, status)| Some((name, status.last_error_time?))) {
        last.sample(&[("target_cluster", name)], timestamp(time));
    }
    let help = "When the first of the client certificate and its CA runs out.";
    let mut expiry = page.gauge("meshkeep_cluster_certificate_expiry_timestamp_seconds", help);
    for (name, time) in with_file().filter_map(|(name, status)| Some((name, status.certificate_expiry?))) {
        expiry.sample(&[("target_cluster", name)], timestamp(time));
    }
}

fn mirror(page: &mut Page, reading: &Reading) {
    let counts = reading.counts();
    let mut objects = page.gauge("meshkeep_objects", "Usable objects.");
    for (kind, count) in
        [("node", counts.nodes), ("service", counts.services), ("identity", counts.identities), ("ipcache", counts.ipcache)]
    {
        objects.sample(&[("kind", kind)], count);
    }
    page.gauge("meshkeep_global_services", "Names that some cluster shares or exports a service under.")
        .sample(&[], counts.global_services);
    page.gauge("meshkeep_rejected_entries", "Keys whose newest bytes could not be used.").sample(&[], counts.rejected);
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

fn timestamp(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A count as Prometheus has it: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of keys are far below 2^53")]
const fn float(count: u64) -> f64 {
    count as f64
}

//! `meshkeep watch`: the change stream, one line for each change. If the connection breaks, the
//! command says so, reconnects and resumes at the last position.

use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use jiff::{Timestamp, Zoned};
use serde_json::Value;

use super::api_client::{ANSWER_BYTES_MAX, ApiClient, ServerOptions};
use super::filters::FilterOptions;
use super::kinds::owner;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::change_age::newest_time;
use crate::cli::terminal::output::{Colour, OutputFormat, OutputOptions, coloured, labels, print_coloured, text, yaml};
use crate::cli::terminal::route_commands::name_commands;
use crate::config::parse_duration;
use crate::dto::events::WatchEvent;
use crate::dto::streamed::StreamedObject;
use crate::dto::values::Open;
use crate::dto::values::closed::{EventReason, EventType};
use crate::model::{Backoff, ReaderPosition, printable};

/// Backoff between attempts to reconnect to the sidecar: a restart takes a moment.
const RETRY_MIN: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Maximum silence of a stream. It sends a bookmark at least every 15 s, so after three intervals
/// the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);

#[derive(Debug, Args)]
pub(in crate::cli) struct WatchOptions {
    /// Only changes of this kind: node, service, identity, ipcache, serviceExport, endpointSlice,
    /// cluster or problem (repeatable; without it, all kinds but problem)
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    #[command(flatten)]
    filters: FilterOptions,
    /// Start with all current objects
    #[arg(long)]
    snapshot: bool,
    /// Continue from this position
    #[arg(long, value_name = "POSITION", conflicts_with = "snapshot", value_parser = str::parse::<ReaderPosition>)]
    after: Option<ReaderPosition>,
    /// Start with everything that changed after this time: RFC 3339, or a duration before now, such
    /// as 10m
    #[arg(long, value_name = "TIME", conflicts_with_all = ["snapshot", "after"])]
    since: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
}

/// Start of a stream.
pub(in crate::cli) enum WatchStart {
    /// Only changes from now on.
    Now,
    /// A snapshot, and then the changes after it.
    Snapshot,
    /// Changes after this position.
    After(String),
    /// The newest state of everything that changed after this time.
    Since(SinceTime),
}

/// Time of `--since`. A duration before now counts from the start of the command, also if a
/// request is sent later.
pub(in crate::cli) struct SinceTime {
    /// The time as the user wrote it.
    text: String,
    /// The duration; `None` if the user gave a time.
    duration: Option<Duration>,
    start: Timestamp,
}

impl SinceTime {
    fn new(text: &str) -> Self {
        Self { text: text.to_owned(), duration: parse_duration(text).ok(), start: Timestamp::now() }
    }

    /// Returns the parameter of a request. It stays relative, because the clock of the server may
    /// differ.
    fn parameter(&self) -> String {
        let Some(duration) = self.duration else { return self.text.clone() };
        let elapsed = Timestamp::now().duration_since(self.start).as_secs_f64().max(0.0);
        format!("{:.0}s", (duration.as_secs_f64() + elapsed).ceil())
    }
}

/// Progress of a stream.
struct StreamProgress {
    /// Position to resume at; `None` before the first position, and inside a snapshot.
    position: Option<String>,
    /// Time of `--since`.
    since: Option<SinceTime>,
    /// True if a snapshot was requested and is not complete. If the connection breaks meanwhile,
    /// the next request asks for a snapshot again.
    snapshot: bool,
    /// Set if there are filters other than `kind` and `cluster`. A key alone does not show whether
    /// its object matches them.
    has_other_filters: bool,
}

/// Follows the stream until it is interrupted.
pub(in crate::cli) async fn run(options: &WatchOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let mut query = options.filters.query();
    query.extend(options.kind.iter().map(|kind| ("kind".to_owned(), kind.clone())));
    if matches!(options.output.output, OutputFormat::CustomColumns(_)) {
        return Err(Failure::usage("a watch has no columns: use -o jsonpath=, such as -o jsonpath='{.type} {.key}'"));
    }
    let start = match (&options.after, &options.since) {
        (Some(position), _) => WatchStart::After(position.to_string()),
        (None, Some(time)) => WatchStart::Since(SinceTime::new(time)),
        (None, None) if options.snapshot => WatchStart::Snapshot,
        (None, None) => WatchStart::Now,
    };
    follow(&ApiClient::new(server)?, query, start, options.output.output).await
}

/// Follows the filtered stream from `start` until it is interrupted.
pub(in crate::cli) async fn follow(
    client: &ApiClient,
    filters: Vec<(String, String)>,
    start: WatchStart,
    format: OutputFormat,
) -> Result<ExitStatus, Failure> {
    let (position, since, snapshot) = match start {
        WatchStart::Now => (None, None, false),
        WatchStart::Snapshot => (None, None, true),
        WatchStart::After(position) => (Some(position), None, false),
        WatchStart::Since(time) => (None, Some(time), false),
    };
    let has_other_filters = filters.iter().any(|(name, _)| !matches!(name.as_str(), "kind" | "cluster"));
    let mut progress = StreamProgress { position, since, snapshot, has_other_filters };
    let (mut backoff, mut connected_before) = (Backoff::new(RETRY_MIN, RETRY_MAX), false);
    loop {
        let mut query: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let since = progress.since.as_ref().map(SinceTime::parameter);
        match (&progress.position, &since) {
            (Some(position), _) => query.push(("after", position)),
            (None, Some(time)) => query.push(("since", time)),
            (None, None) if progress.snapshot => query.push(("snapshot", "true")),
            (None, None) => {}
        }
        let broken = match client.stream("/v1/events", &query).await {
            Ok(response) => {
                if connected_before {
                    print_note(if progress.position.is_some() {
                        "connected again: continuing after the last event"
                    } else {
                        "connected again"
                    });
                }
                connected_before = true;
                backoff.reset();
                read(client, response, &mut progress, format).await?
            }
            Err(failure) if connected_before && failure.is_unavailable() => failure.to_string(),
            Err(failure) => return Err(failure),
        };
        let wait = backoff.next_wait();
        print_note(&format!("{broken}; trying again in {:.1} s", wait.as_secs_f64()));
        tokio::time::sleep(wait).await;
    }
}

/// Prints the events of a stream until it ends. Returns why it ended.
async fn read(
    client: &ApiClient,
    response: reqwest::Response,
    progress: &mut StreamProgress,
    format: OutputFormat,
) -> Result<String, Failure> {
    let mut chunks = response.bytes_stream();
    let mut buffer = Vec::new();
    loop {
        let chunk = match tokio::time::timeout(SILENCE_MAX, chunks.next()).await {
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(_))) => return Ok("the connection broke".to_owned()),
            Ok(None) => return Ok("the stream ended".to_owned()),
            Err(_) => return Ok(format!("no data for {} s", SILENCE_MAX.as_secs())),
        };
        let Some(end) = chunk.iter().rposition(|byte| *byte == b'\n') else {
            buffer.extend_from_slice(&chunk);
            if buffer.len() > ANSWER_BYTES_MAX {
                return Err(client.too_large("an event", ANSWER_BYTES_MAX));
            }
            continue;
        };
        let (complete, rest) = chunk.split_at(end + 1);
        buffer.extend_from_slice(complete);
        let lines = std::mem::replace(&mut buffer, rest.to_vec());
        let mut printed = String::new();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            printed.extend(event_text(line, progress, format));
        }
        print_coloured(&printed)?;
    }
}

/// Returns the text to print for a line of the stream.
fn event_text(line: &[u8], progress: &mut StreamProgress, format: OutputFormat) -> Option<String> {
    // deserialized from a `Value`, like other answers: a second deserializer for all shapes would
    // add some hundred kilobytes to the binary
    let json: Value = serde_json::from_slice(line).ok()?;
    match crate::cli::terminal::output::parse_answer(&json) {
        Ok(event) => apply_event(&event, line, progress, format),
        // an event of a newer server must not be ignored silently
        Err(failure) => {
            let printed = raw_text(line, format);
            if printed.is_none() {
                print_note(&failure.to_string());
            }
            printed
        }
    }
}

/// Returns the event as the API sent it, for output that consists of its JSON.
fn raw_text(line: &[u8], format: OutputFormat) -> Option<String> {
    match format {
        OutputFormat::Json => Some(printable(&String::from_utf8_lossy(line)).into_owned() + "\n"),
        OutputFormat::Yaml => {
            let json: Value = serde_json::from_slice(line).ok()?;
            yaml(&json).ok().map(|text| format!("---\n{}", printable(&text)))
        }
        OutputFormat::JsonPath(template) => Some(printable(&template.text(&serde_json::from_slice(line).ok()?)).into_owned() + "\n"),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name | OutputFormat::CustomColumns(_) => None,
    }
}

/// Returns the text to print for an event, with its line end. Records the stream's progress.
fn apply_event(event: &WatchEvent, line: &[u8], progress: &mut StreamProgress, format: OutputFormat) -> Option<String> {
    let event_type = event.event_type.known();
    let reached = event.meta.as_ref().and_then(|meta| meta.position.as_ref()).or(event.position.as_ref());
    // inside a snapshot a position would skip the remaining events
    let is_mark = matches!(event_type, Some(EventType::Synced | EventType::Bookmark));
    if event_type != Some(EventType::Reset) && (is_mark || progress.position.is_some()) {
        progress.position = reached.cloned().or(progress.position.take());
    }
    progress.snapshot &= event_type != Some(EventType::Synced);
    match (event_type, format) {
        (_, OutputFormat::Json | OutputFormat::Yaml | OutputFormat::JsonPath(_)) => raw_text(line, format),
        // The key changed while no stream was open, so the server does not know its former object.
        // Only filters of `kind` and `cluster` can decide whether that object matched.
        (Some(EventType::Delete), _) if progress.has_other_filters && event.reason == Some(EventReason::Unknown.into()) => None,
        (Some(EventType::Upsert | EventType::Delete | EventType::Patch | EventType::Cluster), OutputFormat::Name) => {
            Some(text(event.key.as_ref()) + "\n")
        }
        (Some(EventType::Upsert | EventType::Patch | EventType::Cluster), _) => Some(event_line('+', Colour::Green, event)),
        (Some(EventType::Delete), _) => Some(event_line('-', Colour::Red, event)),
        (Some(EventType::Reset), _) => {
            // a snapshot follows, which starts again if the stream breaks
            (progress.position, progress.since, progress.snapshot) = (None, None, true);
            // the reason is `initial` if the command itself requested the snapshot
            if event.reason != Some(EventReason::Initial.into()) {
                let reason = event.reason.as_ref().map_or("", Open::name);
                print_note(&format!("it cannot continue at its position ({reason}): a new snapshot follows"));
            }
            None
        }
        (Some(EventType::Error), _) => {
            print_note(&event.problem.as_ref().map(|problem| name_commands(&problem.detail)).unwrap_or_default());
            None
        }
        _ => None,
    }
}

/// Returns a line such as `14:03:07 tokyo + ipcache 10.2.1.9/32 shop/cart-x id 131331`.
fn event_line(sign: char, colour: Colour, event: &WatchEvent) -> String {
    // a problem of several clusters or of none has the cluster `-`
    let cluster = event.meta.as_ref().map(|meta| meta.cluster.as_str()).filter(|name| *name != "-");
    let what = describe_object(event.key.as_deref().unwrap_or_default(), event.object.as_ref());
    let sign = coloured(&sign.to_string(), colour);
    let (kind, reason) = (event.kind.as_ref().map(Open::name), event.reason.as_ref().map(Open::name));
    let parts = [cluster, Some(sign.as_str()), kind, Some(what.as_str()), reason];
    let parts: Vec<&str> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
    format!("{} {}\n", time_of(event), parts.join(" "))
}

/// Returns the local time of an event: that of its change, with the date if that is not today, or
/// now for an event without one.
fn time_of(event: &WatchEvent) -> String {
    let now = Zoned::now();
    let change = match &event.object {
        Some(object) => object.last_change(),
        None => event.meta.as_ref().map(|meta| &meta.change),
    };
    let Some(time) = change.and_then(newest_time) else { return now.strftime("%H:%M:%S").to_string() };
    let time = time.to_zoned(now.time_zone().clone());
    time.strftime(if time.date() == now.date() { "%H:%M:%S" } else { "%Y-%m-%d %H:%M:%S" }).to_string()
}

/// Returns a short description of an object. Deleted objects and objects of other kinds have only
/// their short key.
pub(in crate::cli) fn describe_object(key: &str, object: Option<&StreamedObject>) -> String {
    let parts = match object {
        Some(StreamedObject::Ipcache(entry)) => vec![entry.prefix.clone(), owner(entry), format!("id {}", entry.identity)],
        Some(StreamedObject::Identity(identity)) => vec![identity.id.to_string(), labels(identity.labels.0.iter())],
        Some(StreamedObject::Finding(finding)) => vec![finding.severity.to_string(), short_key(key).to_owned(), finding.detail.clone()],
        Some(StreamedObject::Cluster(cluster)) => vec![text(cluster.phase.as_ref()), text(cluster.last_error.as_ref())],
        _ => vec![short_key(key).to_owned()],
    };
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns a key without the parts that its line already has:
/// `cilium/cache/services/v1/tokyo/shop/cart` becomes `shop/cart`.
fn short_key(key: &str) -> &str {
    if let Some(problem) = key.strip_prefix("problem/") {
        return problem;
    }
    // the line begins with the cluster
    if key.starts_with("cilium/cluster-config/") {
        return "";
    }
    let rest = key.strip_prefix("cilium/cache/").and_then(|rest| rest.split_once("/v1/")).and_then(|(_, rest)| rest.split_once('/'));
    rest.map_or(key, |(_, name)| name)
}

/// Prints a note to the user on standard error, next to the stream.
fn print_note(text: &str) {
    crate::cli::print_to_stderr(format!("{} {text}\n", Zoned::now().strftime("%H:%M:%S")));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the line without its time.
    fn line(sign: char, event: &Value) -> String {
        let line = crate::model::without_colours(&event_line(sign, Colour::Green, &read(event))).into_owned();
        line.split_once(' ').map(|(_, rest)| rest.trim_end().to_owned()).unwrap_or_default()
    }

    fn read(event: &Value) -> WatchEvent {
        crate::cli::terminal::output::parse_answer(event).unwrap()
    }

    #[test]
    fn a_change_is_one_line() {
        let ip = json!({"type": "upsert", "kind": "ipcache", "key": "cilium/cache/ip/v1/tokyo/10.2.1.9", "meta": {"cluster": "tokyo"},
            "object": {"prefix": "10.2.1.9/32", "cluster": "tokyo", "namespace": "shop", "podName": "cart-x", "identity": 131_331,
            "host": true, "source": "clustermesh"}});
        assert_eq!(line('+', &ip), "tokyo + ipcache 10.2.1.9/32 shop/cart-x id 131331");
        let gone = json!({"type": "delete", "kind": "service", "key": "cilium/cache/services/v1/tokyo/shop/cart", "reason": "deleted",
            "meta": {"cluster": "tokyo"}});
        assert_eq!(line('-', &gone), "tokyo - service shop/cart deleted");
        let cluster = json!({"type": "cluster", "kind": "cluster", "key": "cilium/cluster-config/osaka", "meta": {"cluster": "osaka"},
            "object": {"name": "osaka", "phase": "backingOff", "lastError": "refused", "origin": "neverRead", "configRetrieved": false,
                "resources": [], "failures": 1}});
        assert_eq!(line('+', &cluster), "osaka + cluster backingOff refused");
        let removed = json!({"type": "delete", "kind": "cluster", "key": "cilium/cluster-config/osaka", "reason": "clusterRemoved",
            "meta": {"cluster": "osaka"}});
        assert_eq!(line('-', &removed), "osaka - cluster clusterRemoved");
    }

    #[test]
    fn a_problem_is_one_line_with_its_detail() {
        let detail = "paris cannot be reached: connection refused";
        let problem = json!({"type": "upsert", "kind": "problem", "key": "problem/clusterUnreachable/paris", "meta": {"cluster": "paris"},
            "object": {"id": "clusterUnreachable/paris", "severity": "critical", "kind": "clusterUnreachable", "clusters": ["paris"], "detail": detail, "advice": "see its log"}});
        assert_eq!(line('+', &problem), format!("paris + problem critical clusterUnreachable/paris {detail}"));
        let over = json!({"type": "delete", "kind": "problem", "key": "problem/duplicateAddress/-/host/10.0.0.1", "reason": "deleted",
            "meta": {"cluster": "-"}});
        assert_eq!(line('-', &over), "- problem duplicateAddress/-/host/10.0.0.1 deleted");
    }

    #[test]
    fn json_and_yaml_print_events_that_this_version_cannot_parse() {
        let line = br#"{"type":"upsert","kind":"node","key":7}"#;
        let event_text = |format| {
            event_text(line, &mut StreamProgress { position: None, since: None, snapshot: false, has_other_filters: false }, format)
        };
        assert_eq!(event_text(OutputFormat::Json).as_deref(), Some("{\"type\":\"upsert\",\"kind\":\"node\",\"key\":7}\n"));
        assert_eq!(event_text(OutputFormat::Yaml).as_deref(), Some("---\nkey: 7\nkind: node\ntype: upsert\n"));
        assert_eq!(event_text(OutputFormat::Table), None);
    }

    #[test]
    fn a_snapshot_has_no_position_to_resume_at() {
        let mut progress = StreamProgress { position: None, since: None, snapshot: false, has_other_filters: true };
        let mut tell = |event: Value| {
            apply_event(&read(&event), b"", &mut progress, OutputFormat::Table);
            progress.position.clone()
        };
        assert_eq!(tell(json!({"type": "reset", "reason": "initial"})), None);
        assert_eq!(tell(json!({"type": "upsert", "kind": "node", "meta": {"cluster": "tokyo", "position": "v1.a.5"}})), None);
        assert_eq!(tell(json!({"type": "synced", "position": "v1.a.9"})).as_deref(), Some("v1.a.9"));
        assert_eq!(
            tell(json!({"type": "delete", "kind": "node", "meta": {"cluster": "tokyo", "position": "v1.a.10"}})).as_deref(),
            Some("v1.a.10")
        );
        assert_eq!(tell(json!({"type": "reset", "reason": "foreignEpoch"})), None);
        assert!(progress.snapshot, "a snapshot that breaks off is requested again");
        let apply_event = |event: Value, progress: &mut StreamProgress| apply_event(&read(&event), b"", progress, OutputFormat::Table);
        apply_event(json!({"type": "synced", "position": "v1.b.1"}), &mut progress);
        assert!(!progress.snapshot);
        let gone =
            |reason: &str| json!({"type": "delete", "kind": "ipcache", "key": "cilium/cache/ip/v1/tokyo/10.0.0.1", "reason": reason});
        assert_eq!(apply_event(gone("unknown"), &mut progress), None);
        assert!(apply_event(gone("deleted"), &mut progress).is_some());
    }
}

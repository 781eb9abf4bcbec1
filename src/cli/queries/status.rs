//! `meshkeep status`: the health of the sidecar and of each cluster, once or until all are live.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::api_client::{ApiClient, ServerOptions};
use super::kinds::{CLUSTERS, KindRow};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{OutputFormat, OutputOptions, Tabular, age, parse_answer, print_coloured, print_list, print_one};
use crate::cli::terminal::progress::ProgressLine;
use crate::config::parse_duration;
use crate::dto::reflection::ReflectionStatus;
use crate::dto::status::{Cluster, DirectoryStatus, DumpStatus, Status, StatusCounts};
use crate::dto::values::Open;
use crate::dto::values::closed::{Origin, Phase};

/// Interval between requests while waiting: a person sees a change at once, and the load on the
/// sidecar is negligible.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(in crate::cli) struct StatusOptions {
    /// Wait until there is at least one cluster and all are live
    #[arg(long)]
    wait: bool,
    /// Maximum time to wait
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, requires = "wait")]
    timeout: Duration,
    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the state. Returns [`ExitStatus::Failed`] while anything is not live.
pub(in crate::cli) async fn run(options: &StatusOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let client = ApiClient::new(server)?;
    let deadline = Instant::now() + options.timeout;
    let mut wait_reporter = WaitReporter::default();
    let answers = loop {
        let answers = fetch_status(&client).await;
        let waits = options.wait && Instant::now() < deadline;
        match answers {
            Ok(answers) => match not_live_reason(&answers.status.directory, &answers.clusters).filter(|_| waits) {
                Some(reason) => wait_reporter.report(&reason),
                None => break answers,
            },
            Err(failure) if waits && failure.is_unavailable() => wait_reporter.report(&failure.to_string()),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    drop(wait_reporter);
    let is_fine = not_live_reason(&answers.status.directory, &answers.clusters).is_none();
    let StatusAnswers { status, raw: (raw_status, raw_clusters), .. } = answers;
    match options.output.output {
        format @ (OutputFormat::Table | OutputFormat::Wide) => {
            print_coloured(&(summary(&status) + "\n" + &CLUSTERS.table(&raw_clusters, format == OutputFormat::Wide)?))?;
        }
        OutputFormat::Name => print_list(OutputFormat::Name, &CLUSTERS, &raw_clusters)?,
        format => print_one(format, &CLUSTERS, &json!({ "status": raw_status, "clusters": raw_clusters }))?,
    }
    Ok(ExitStatus::from_success(is_fine))
}

/// Answers about the sidecar and its clusters.
struct StatusAnswers {
    /// State of the sidecar and its config directory. As long as the directory was not read, it is
    /// unknown which clusters exist, so an empty list of clusters is not a good state.
    status: Status,
    clusters: Vec<Cluster>,
    /// Both answers as the API sent them.
    raw: (Value, Vec<Value>),
}

async fn fetch_status(client: &ApiClient) -> Result<StatusAnswers, Failure> {
    let raw_status: Value = client.get("/v1/status", &[]).await?;
    let path = KindRow::by_name("clusters").map(KindRow::path).unwrap_or_default();
    let (raw_clusters, _) = client.list(&path, &[]).await?;
    let (status, clusters) = (parse_answer(&raw_status)?, raw_clusters.iter().map(parse_answer).collect::<Result<_, _>>()?);
    Ok(StatusAnswers { status, clusters, raw: (raw_status, raw_clusters) })
}

fn is_live(cluster: &Cluster) -> bool {
    cluster.phase == Some(Phase::Live.into()) && cluster.origin == Origin::Live
}

/// Returns the first reason why not everything is live.
fn not_live_reason(directory: &DirectoryStatus, clusters: &[Cluster]) -> Option<String> {
    if let Some(reason) = &directory.no_clusters {
        return Some(format!("there is no cluster: {reason}"));
    }
    if !directory.readable {
        return Some("the config directory was not read yet".to_owned());
    }
    if !clusters.iter().all(is_live) {
        return Some(describe_first_waiting(clusters));
    }
    // an invalid file whose cluster exists was valid before: the cluster keeps the old
    // configuration
    let unused = directory.invalid_files.iter().find(|(file, _)| clusters.iter().all(|cluster| cluster.name != **file));
    unused.map(|(file, reason)| format!("file {file} cannot be used: {reason}"))
}

fn describe_first_waiting(clusters: &[Cluster]) -> String {
    let waiting: Vec<&Cluster> = clusters.iter().filter(|cluster| !is_live(cluster)).collect();
    let first = waiting.first().map(|cluster| {
        let phase = cluster.phase.as_ref().map_or("without a file", Open::name);
        let error = cluster.last_error.as_ref().map(|error| format!(" ({error})")).unwrap_or_default();
        format!("{} is {phase}{}{error}", cluster.name, list_progress(cluster))
    });
    format!("{} of {} clusters are live; {}", clusters.len() - waiting.len(), clusters.len(), first.unwrap_or_default())
}

/// Returns the progress of a cluster's lists, if the source reports how many keys it has.
fn list_progress(cluster: &Cluster) -> String {
    let expected: u64 = cluster.resources.iter().filter_map(|resource| resource.expected).sum();
    let entries: u64 = cluster.resources.iter().map(|resource| resource.entries).sum();
    let is_listing = cluster.phase == Some(Phase::Listing.into());
    if is_listing && expected > 0 { format!(", {entries} of {expected} entries") } else { String::new() }
}

/// Reports why the command still waits: on a terminal in one line, in a log once per reason.
#[derive(Debug, Default)]
struct WaitReporter {
    progress: Option<ProgressLine>,
    last_reported: String,
}

impl WaitReporter {
    fn report(&mut self, text: &str) {
        if io::stderr().is_terminal() {
            self.progress.get_or_insert_with(|| ProgressLine::start("")).set_text(text);
        } else if self.last_reported != text {
            crate::cli::print_to_stderr(format!("{text}\n"));
            text.clone_into(&mut self.last_reported);
        }
    }
}

/// Kind in the summary: its count, and its singular and plural.
type CountLabel = (fn(&StatusCounts) -> u64, &'static str, &'static str);

const COUNT_LABELS: [CountLabel; 7] = [
    (|counts| counts.nodes, "node", "nodes"),
    (|counts| counts.services, "service", "services"),
    (|counts| counts.identities, "identity", "identities"),
    (|counts| counts.ipcache, "ipcache entry", "ipcache entries"),
    (|counts| counts.service_exports, "service export", "service exports"),
    (|counts| counts.endpoint_slices, "endpoint slice", "endpoint slices"),
    (|counts| counts.rejected, "rejected value", "rejected values"),
];

/// Returns the number of entries per kind, in one line. Kinds without entries are left out.
fn counts_line(counts: &StatusCounts) -> String {
    let parts = COUNT_LABELS.iter().filter_map(|(count, one, several)| match count(counts) {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {several}")),
    });
    let parts: Vec<String> = parts.collect();
    let keys = if counts.entries == 1 { "1 key".to_owned() } else { format!("{} keys", counts.entries) };
    if parts.is_empty() { format!("{keys}\n") } else { format!("{keys}: {}\n", parts.join(", ")) }
}

/// Returns the state of `reflect`, in one line.
fn reflection_line(reflection: &ReflectionStatus) -> String {
    match &reflection.error {
        None if reflection.leader => format!("reflects {} clusters; {} keys wait\n", reflection.clusters, reflection.waiting),
        None => "does not reflect now: another meshkeep or KVStoreMesh writes\n".to_owned(),
        Some(error) => format!("cannot reflect: {error}\n"),
    }
}

/// Returns the state of the process in a few lines.
fn summary(status: &Status) -> String {
    let mut out = String::new();
    let loading = if status.loaded { "" } else { ", still loading its store" };
    let _ = writeln!(out, "meshkeep {}, up {}{loading}", status.version, age(status.uptime_seconds));
    out.extend(status.counts.as_ref().map(counts_line));
    let store = &status.store;
    let details: Vec<&str> = store.error.iter().chain(&store.losses).map(String::as_str).collect();
    let colon = if details.is_empty() { "" } else { ": " };
    let _ = writeln!(out, "store {}{colon}{}", store.state, details.join("; "));
    out.extend(status.reflection.as_ref().map(reflection_line));
    if let Some(DumpStatus { path, form, time, .. }) = &status.dump {
        let _ = writeln!(out, "serves the dump {path} of {time}, made by {form}");
        return out;
    }
    match &status.directory.error {
        _ if status.directory.no_clusters.is_some() => {
            out.extend(status.directory.no_clusters.iter().map(|reason| format!("there is no cluster: {reason}\n")));
        }
        _ if status.directory.readable && status.clusters.is_empty() => out.push_str("there is no cluster yet\n"),
        _ if status.directory.readable => {}
        None => out.push_str("config directory was not read yet\n"),
        Some(error) => drop(writeln!(out, "cannot read the config directory: {error}")),
    }
    for (file, reason) in &status.directory.invalid_files {
        let _ = writeln!(out, "file {file} cannot be used: {reason}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_reports_an_invalid_file() {
        let directory = |readable: bool, invalid: Value| {
            let directory = json!({"readable": readable, "invalidFiles": invalid});
            not_live_reason(&serde_json::from_value(directory).unwrap(), &[])
        };
        assert_eq!(directory(true, json!({})), None);
        assert_eq!(directory(false, json!({})).as_deref(), Some("the config directory was not read yet"));
        assert_eq!(directory(true, json!({"paris": "it is empty"})).as_deref(), Some("file paris cannot be used: it is empty"));
    }

    #[test]
    fn counts_are_human_readable() {
        let none: StatusCounts = serde_json::from_value(json!({"entries": 1, "nodes": 0, "services": 0, "serviceExports": 0,
            "endpointSlices": 0, "identities": 0, "ipcache": 0, "rejected": 0}))
        .unwrap();
        let some = StatusCounts { entries: 22, nodes: 4, services: 1, ipcache: 44, service_exports: 1, rejected: 2, ..none.clone() };
        assert_eq!(counts_line(&some), "22 keys: 4 nodes, 1 service, 44 ipcache entries, 1 service export, 2 rejected values\n");
        assert_eq!(counts_line(&none), "1 key\n");
    }
}

//! `meshkeep status`: the health of the sidecar and of each cluster, once or until all are live.

mod report;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Value, json};

use super::api_client::{ApiClient, ServerOptions};
use super::kinds::{CLUSTERS, KindRow, list_progress};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{OutputFormat, parse_answer, print_coloured};
use crate::cli::terminal::progress::ProgressLine;
use crate::config::parse_duration;
use crate::dto::status::{Cluster, DirectoryStatus, Status};
use crate::dto::values::Open;
use crate::dto::values::closed::{Origin, Phase};
use crate::model::ApiEnum as _;

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
    rows: RowOptions,
    #[command(flatten)]
    list: ListOptions,
}

/// Selection of the clusters.
#[derive(Debug, Default, Args)]
pub(super) struct RowOptions {
    /// List the live clusters too if there are more than 20 clusters
    #[arg(long)]
    all: bool,
    /// Only these clusters, also for --wait and the exit code (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// List only clusters in this phase (repeatable)
    #[arg(long, value_name = "PHASE", value_parser = PossibleValuesParser::new(Phase::values().map(Phase::api_name)))]
    phase: Vec<String>,
}

impl RowOptions {
    fn has_phase(&self, cluster: &Cluster) -> bool {
        self.phase.is_empty() || cluster.phase.as_ref().is_some_and(|phase| self.phase.iter().any(|wanted| wanted == phase.name()))
    }

    /// Returns the first reason why not every selected cluster is live.
    fn not_live_reason(&self, answers: &StatusAnswers) -> Option<String> {
        // a dump has no connections: there is nothing to wait for
        if answers.status.dump.is_some() {
            return None;
        }
        not_live_reason(&answers.status.directory, &answers.clusters).or_else(|| self.missing_cluster(answers))
    }

    /// Returns that a cluster does not exist, if the user asks for one that does not.
    fn missing_cluster(&self, answers: &StatusAnswers) -> Option<String> {
        if !answers.status.directory.readable {
            return None;
        }
        let exists = |name: &String| answers.clusters.iter().any(|cluster| cluster.name == *name);
        let missing = self.cluster.iter().find(|name| !exists(name) && !answers.status.directory.invalid_files.contains_key(*name))?;
        Some(format!("there is no cluster {missing:?}: `meshkeep get clusters` lists all"))
    }
}

/// Prints the state. Returns [`ExitStatus::Failed`] while anything is not live.
pub(in crate::cli) async fn run(options: &StatusOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let client = ApiClient::new(server)?;
    let deadline = Instant::now() + options.timeout;
    let mut wait_reporter = WaitReporter::default();
    let answers = loop {
        let answers = fetch_status(&client, &options.rows).await;
        let waits = options.wait && Instant::now() < deadline;
        match answers {
            Ok(answers) => match options.rows.not_live_reason(&answers).filter(|_| waits) {
                Some(reason) => wait_reporter.report(&reason),
                None => break answers,
            },
            Err(failure) if waits && failure.is_unavailable() => wait_reporter.report(&failure.to_string()),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    drop(wait_reporter);
    if let Some(missing) = options.rows.missing_cluster(&answers) {
        return Err(Failure::new(missing));
    }
    let is_fine = options.rows.not_live_reason(&answers).is_none();
    let (list, format) = (&options.list, options.list.format());
    if format.is_table() {
        let clusters = sort_clusters(list, &answers)?;
        print_coloured(&report::report(&answers.status, clusters, &options.rows, list.table_style()))?;
        return Ok(ExitStatus::from_success(is_fine));
    }
    let clusters = answers.raw_clusters(&options.rows);
    if matches!(format, OutputFormat::Name | OutputFormat::CustomColumns(_)) {
        list.print_list(&CLUSTERS, clusters)?;
    } else {
        list.print_one(&CLUSTERS, &json!({ "status": answers.raw.0, "clusters": list.sorted(clusters)? }))?;
    }
    Ok(ExitStatus::from_success(is_fine))
}

/// Returns the selected clusters in the order of the table: that of the user, or the worst first.
fn sort_clusters(list: &ListOptions, answers: &StatusAnswers) -> Result<Vec<Cluster>, Failure> {
    if list.has_order() {
        return list.sorted(answers.raw.1.clone())?.iter().map(parse_answer).collect();
    }
    let mut clusters = answers.clusters.clone();
    report::sort_by_health(&mut clusters);
    Ok(clusters)
}

/// Returns the text of the command for a generated mesh.
#[cfg(test)]
pub(super) fn render(mesh: &super::tests::mesh::Mesh, arguments: &[&str], width: Option<usize>) -> String {
    let command = RowOptions::augment_args(clap::Command::new("status").no_binary_name(true));
    let rows = <RowOptions as clap::FromArgMatches>::from_arg_matches(&command.get_matches_from(arguments)).unwrap();
    let style = crate::cli::terminal::layout::TableStyle { wide: false, has_headings: true, width };
    let mut clusters = mesh.parsed_clusters();
    report::sort_by_health(&mut clusters);
    report::report(&mesh.status, clusters, &rows, style)
}

/// Answers about the sidecar and its clusters.
struct StatusAnswers {
    /// State of the sidecar and its config directory. As long as the directory was not read, it is
    /// unknown which clusters exist, so an empty list of clusters is not a good state.
    status: Status,
    /// Clusters that the options select, except by their phase.
    clusters: Vec<Cluster>,
    /// The state of the sidecar and of these clusters as the API sent it.
    raw: (Value, Vec<Value>),
}

impl StatusAnswers {
    /// Returns the clusters that the options select, as the API sent them.
    fn raw_clusters(&self, rows: &RowOptions) -> Vec<Value> {
        let pairs = self.raw.1.iter().zip(&self.clusters);
        pairs.filter(|(_, cluster)| rows.has_phase(cluster)).map(|(raw, _)| raw.clone()).collect()
    }
}

async fn fetch_status(client: &ApiClient, rows: &RowOptions) -> Result<StatusAnswers, Failure> {
    let raw_status: Value = client.get("/v1/status", &[]).await?;
    let path = KindRow::by_name("clusters").map(KindRow::path).unwrap_or_default();
    let mut raw_clusters = client.list(&path, &[]).await?;
    let is_selected = |name: &str| rows.cluster.is_empty() || rows.cluster.iter().any(|wanted| wanted == name);
    raw_clusters.retain(|cluster| cluster["name"].as_str().is_none_or(is_selected));
    let mut status: Status = parse_answer(&raw_status)?;
    status.directory.invalid_files.retain(|file, _| is_selected(file));
    let clusters = raw_clusters.iter().map(parse_answer).collect::<Result<_, _>>()?;
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
        let progress = list_progress(cluster).map(|progress| format!(", {progress}")).unwrap_or_default();
        format!("{} is {phase}{progress}{error}", cluster.name)
    });
    format!("{} of {} clusters are live; {}", clusters.len() - waiting.len(), clusters.len(), first.unwrap_or_default())
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
}

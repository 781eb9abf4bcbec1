//! `meshkeep doctor`: checks step by step whether this machine can read each remote cluster; needs
//! no running sidecar.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{Colour, coloured, one_line, print_coloured, print_json};
use crate::cli::terminal::progress::ProgressLine;
use crate::config::{parse_cluster_id, parse_cluster_name, parse_duration, parse_max_connected_clusters};
use crate::doctor::{Check, CheckOutcome, DoctorOptions, Report, examine};
use crate::model::{ClusterId, ClusterName, MaxConnectedClusters};

#[derive(Debug, Args)]
pub(in crate::cli) struct Options {
    /// Only these clusters
    #[arg(value_name = "CLUSTER")]
    clusters: Vec<String>,
    /// Directory with one etcd client file for each remote cluster
    #[arg(long, value_name = "DIR", env = "MESHKEEP_CLUSTERMESH_CONFIG", default_value = "/var/lib/cilium/clustermesh")]
    clustermesh_config: PathBuf,
    /// Name of the own cluster: its file in the directory is ignored
    #[arg(long, value_name = "NAME", env = "MESHKEEP_CLUSTER_NAME", value_parser = parse_cluster_name)]
    cluster_name: Option<ClusterName>,
    /// Ignore the file of this cluster in the directory; repeatable, or separated by commas
    #[arg(long, value_name = "NAME", env = "MESHKEEP_IGNORE_CLUSTER", value_delimiter = ',', value_parser = parse_cluster_name)]
    ignore_cluster: Vec<ClusterName>,
    /// Accept a directory without any client file, before the first cluster exists
    #[arg(long, env = "MESHKEEP_ALLOW_NO_CLUSTERS")]
    allow_no_clusters: bool,
    /// Read these clusters even without a cluster config; repeatable, or separated by commas
    #[arg(long, value_name = "NAME", env = "MESHKEEP_LEGACY_CLUSTERS", value_delimiter = ',', value_parser = parse_cluster_name)]
    legacy_clusters: Vec<ClusterName>,
    /// Id of the own cluster; 0 means unknown
    #[arg(long, value_name = "ID", env = "MESHKEEP_CLUSTER_ID", default_value = "0", value_parser = parse_cluster_id)]
    cluster_id: ClusterId,
    /// Maximum number of clusters in the mesh: 255 or 511; if not given, the value in each cluster
    /// config
    #[arg(long, value_name = "COUNT", env = "MESHKEEP_MAX_CONNECTED_CLUSTERS", value_parser = parse_max_connected_clusters)]
    max_connected_clusters: Option<MaxConnectedClusters>,
    /// Data directory of meshkeep
    #[arg(long, value_name = "DIR", env = "MESHKEEP_DATA_DIR", default_value = "/var/lib/meshkeep")]
    data_dir: PathBuf,
    /// Maximum time of each step
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    timeout: Duration,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: ReportFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// Human-readable lines
    Text,
    /// JSON
    Json,
}

/// Runs the checks and prints the report. Returns [`ExitStatus::Failed`] if a step failed.
pub(in crate::cli) async fn run(options: &Options) -> Result<ExitStatus, Failure> {
    let doctor_options = DoctorOptions {
        clustermesh_config: options.clustermesh_config.clone(),
        ignored_clusters: options.cluster_name.iter().chain(&options.ignore_cluster).cloned().collect(),
        allow_no_clusters: options.allow_no_clusters,
        legacy_clusters: options.legacy_clusters.clone(),
        own_id: options.cluster_id,
        max_connected_clusters: options.max_connected_clusters,
        data_dir: options.data_dir.clone(),
        clusters: options.clusters.clone(),
        step_max: options.timeout,
    };
    let progress = ProgressLine::start("testing the connection to each remote cluster");
    let report = examine(&doctor_options).await.map_err(Failure::new)?;
    drop(progress);
    match options.output {
        ReportFormat::Json => print_json(&json!(report))?,
        ReportFormat::Text => print_coloured(&text(&report))?,
    }
    Ok(ExitStatus::from_success(report.is_fine()))
}

/// Returns the human-readable report.
pub(in crate::cli) fn text(report: &Report) -> String {
    let mut out = String::new();
    lines(&mut out, "", &report.checks);
    for cluster in &report.clusters {
        let _ = writeln!(out, "\ncluster {} ({})", one_line(&cluster.cluster), one_line(&cluster.file.to_string_lossy()));
        lines(&mut out, "  ", &cluster.checks);
        for endpoint in &cluster.endpoints {
            let _ = writeln!(out, "  {}", one_line(&endpoint.endpoint));
            lines(&mut out, "    ", &endpoint.checks);
        }
    }
    let failed = |checks: &[Check]| checks.iter().any(|check| check.outcome == CheckOutcome::Failed);
    let failed_clusters: Vec<String> = report
        .clusters
        .iter()
        .filter(|cluster| failed(&cluster.checks) || cluster.endpoints.iter().any(|endpoint| failed(&endpoint.checks)))
        .map(|cluster| one_line(&cluster.cluster))
        .collect();
    let verdict = match (failed_clusters.as_slice(), report.is_fine()) {
        ([], true) => coloured("everything works", Colour::Green),
        ([], false) => coloured("a check of this machine failed", Colour::Red),
        (failed_clusters, _) => coloured(
            &format!("checks failed for {} of {} clusters: {}", failed_clusters.len(), report.clusters.len(), failed_clusters.join(", ")),
            Colour::Red,
        ),
    };
    let _ = writeln!(out, "\n{verdict}");
    out
}

fn lines(out: &mut String, indent: &str, checks: &[Check]) {
    for check in checks {
        let mark = match check.outcome {
            CheckOutcome::Ok => coloured("ok  ", Colour::Green),
            CheckOutcome::Warning => coloured("warn", Colour::Yellow),
            CheckOutcome::Failed => coloured("FAIL", Colour::Red),
        };
        let _ = writeln!(out, "{indent}{mark}  {:<16} {}", check.step, one_line(&check.found));
        if let Some(advice) = &check.advice {
            let _ = writeln!(out, "{indent}      {}", coloured(&format!("-> {}", one_line(advice)), Colour::Faint));
        }
    }
}

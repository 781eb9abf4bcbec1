//! `meshkeep problems`: the findings, and advice for each.

use clap::Args;

use super::api_client::{ApiClient, ServerOptions};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{OutputFormat, OutputOptions, TableColumn, TableShape, age_of, joined, print, print_list, text};
use crate::dto::findings::Finding;

#[derive(Debug, Args)]
pub(in crate::cli) struct ProblemsOptions {
    /// Only problems of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Only problems of this kind, such as danglingIdentity
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only problems of this severity: critical, warning or info
    #[arg(long, value_name = "SEVERITY")]
    severity: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
}

const SHAPE: TableShape<Finding> = TableShape {
    columns: &[
        TableColumn::new("SEVERITY", |finding| finding.severity.to_string()),
        TableColumn::new("KIND", |finding| finding.kind.to_string()),
        TableColumn::new("CLUSTERS", |finding| joined(&finding.clusters)),
        TableColumn::new("COUNT", |finding| text(finding.count.as_ref())),
        TableColumn::new("SINCE", since),
        TableColumn::wide("KEY", |finding| text(finding.key.as_ref())),
        TableColumn::new("PROBLEM AND ADVICE", |finding| format!("{}; {}", finding.detail, finding.advice)),
    ],
    name: |finding| finding.id.clone(),
};

/// Returns how long a finding has existed.
fn since(finding: &Finding) -> String {
    let time = finding.since.as_ref().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    age_of(time.map(|time| jiff::Timestamp::now().duration_since(time).as_secs_f64()))
}

/// Prints the findings. Returns [`ExitStatus::Failed`] if there are any.
pub(in crate::cli) async fn run(options: &ProblemsOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let mut query: Vec<(&str, &str)> = options.cluster.iter().map(|name| ("cluster", name.as_str())).collect();
    query.extend(options.kind.iter().map(|kind| ("kind", kind.as_str())));
    query.extend(options.severity.iter().map(|severity| ("severity", severity.as_str())));
    let (items, _) = ApiClient::new(server)?.list("/v1/problems", &query).await?;
    match options.output.output {
        OutputFormat::Table | OutputFormat::Wide if items.is_empty() => print("no problems\n")?,
        format => print_list(format, &SHAPE, &items)?,
    }
    Ok(ExitStatus::from_success(items.is_empty()))
}

//! `meshkeep problems`: the findings, and advice for each.

use clap::Args;

use super::asker::{Asker, ServerOptions};
use crate::cli::failure::{Failure, Verdict};
use crate::cli::terminal::output::{Column, Format, OutputOptions, Shape, age_of, joined, print, print_list, text};
use crate::dto::problems::Finding;

/// What to tell.
#[derive(Debug, Args)]
pub(in crate::cli) struct ProblemsOptions {
    /// Only those of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Only those of this kind, for instance danglingIdentity
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only those of this severity: critical, warning or info
    #[arg(long, value_name = "SEVERITY")]
    severity: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
}

const SHAPE: Shape<Finding> = Shape {
    columns: &[
        Column::new("SEVERITY", |finding| finding.severity.to_string()),
        Column::new("KIND", |finding| finding.kind.to_string()),
        Column::new("CLUSTERS", |finding| joined(&finding.clusters)),
        Column::new("COUNT", |finding| text(finding.count.as_ref())),
        Column::new("SINCE", since),
        Column::wide("KEY", |finding| text(finding.key.as_ref())),
        Column::new("WHAT, AND WHAT TO DO", |finding| format!("{}; {}", finding.detail, finding.advice)),
    ],
    name: |finding| finding.id.clone(),
};

/// Returns how long a finding has existed.
fn since(finding: &Finding) -> String {
    let time = finding.since.as_ref().and_then(|time| time.parse::<jiff::Timestamp>().ok());
    age_of(time.map(|time| jiff::Timestamp::now().duration_since(time).as_secs_f64()))
}

/// Prints the findings. Not fine if there are any.
pub(in crate::cli) async fn run(options: &ProblemsOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let mut query: Vec<(&str, &str)> = options.cluster.iter().map(|name| ("cluster", name.as_str())).collect();
    query.extend(options.kind.iter().map(|kind| ("kind", kind.as_str())));
    query.extend(options.severity.iter().map(|severity| ("severity", severity.as_str())));
    let (items, _) = Asker::new(server)?.list("/v1/problems", &query).await?;
    match options.output.output {
        Format::Table | Format::Wide if items.is_empty() => print("nothing looks wrong\n")?,
        format => print_list(format, &SHAPE, &items)?,
    }
    Ok(Verdict::of(items.is_empty()))
}

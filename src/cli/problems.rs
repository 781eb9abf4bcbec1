//! `meshkeep problems`: what looks wrong, and what to do.

use clap::Args;
use serde_json::Value;

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::output::{Column, Format, OutputOptions, Shape, age, print, print_list, text};

/// What to tell.
#[derive(Debug, Args)]
pub(super) struct ProblemsOptions {
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

const SHAPE: Shape = Shape {
    columns: &[
        Column::new("SEVERITY", |item| text(item, "/severity")),
        Column::new("KIND", |item| text(item, "/kind")),
        Column::new("CLUSTERS", |item| text(item, "/clusters")),
        Column::new("COUNT", |item| text(item, "/count")),
        Column::new("SINCE", since),
        Column::wide("KEY", |item| text(item, "/key")),
        Column::new("WHAT, AND WHAT TO DO", |item| format!("{}; {}", text(item, "/detail"), text(item, "/advice"))),
    ],
    name: |item| text(item, "/id"),
};

/// How long a finding has been there.
fn since(item: &Value) -> String {
    let time = text(item, "/since").parse::<jiff::Timestamp>();
    time.map(|time| age(jiff::Timestamp::now().duration_since(time).as_secs_f64())).unwrap_or_default()
}

/// Prints the findings; not fine if there are any.
pub(super) async fn run(options: &ProblemsOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
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

//! `meshkeep problems`: what looks wrong, and what to do.

use clap::Args;

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::output::{Column, Format, OutputOptions, Shape, print, print_list, text};

/// What to tell.
#[derive(Debug, Args)]
pub(super) struct ProblemsOptions {
    /// Only those of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    #[command(flatten)]
    output: OutputOptions,
}

const SHAPE: Shape = Shape {
    columns: &[
        Column::new("SEVERITY", |item| text(item, "/severity")),
        Column::new("KIND", |item| text(item, "/kind")),
        Column::new("CLUSTERS", |item| text(item, "/clusters")),
        Column::new("COUNT", |item| text(item, "/count")),
        Column::wide("SINCE", |item| text(item, "/since")),
        Column::wide("KEY", |item| text(item, "/key")),
        Column::new("WHAT, AND WHAT TO DO", |item| text(item, "/detail")),
    ],
    name: |item| text(item, "/id"),
};

/// Prints the findings; not fine if there are any.
pub(super) async fn run(options: &ProblemsOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let query: Vec<(&str, &str)> = options.cluster.iter().map(|name| ("cluster", name.as_str())).collect();
    let (items, _) = Asker::new(server)?.list("/v1/problems", &query).await?;
    match options.output.output {
        Format::Table | Format::Wide if items.is_empty() => print("nothing looks wrong\n")?,
        format => print_list(format, &SHAPE, &items)?,
    }
    Ok(Verdict::of(items.is_empty()))
}

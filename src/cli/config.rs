//! `meshkeep config`: the settings in force, and where each comes from.

use clap::Args;
use serde_json::Value;

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::output::{Column, OutputOptions, Shape, print_list, text};

/// What to tell.
#[derive(Debug, Args)]
pub(super) struct ConfigOptions {
    #[command(flatten)]
    output: OutputOptions,
}

const SHAPE: Shape = Shape {
    columns: &[
        Column::new("NAME", |item| text(item, "/name")),
        Column::new("VALUE", |item| text(item, "/values")),
        Column::new("FROM", |item| text(item, "/source")),
        Column::wide("WHERE", |item| text(item, "/origin")),
        Column::wide("WHAT IT IS", |item| text(item, "/description")),
    ],
    name: |item| text(item, "/name"),
};

/// Prints them.
pub(super) async fn run(options: &ConfigOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let answer = Asker::new(server)?.get("/v1/config", &[]).await?;
    let items = answer.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    print_list(options.output.output, &SHAPE, &items)?;
    Ok(Verdict::Fine)
}

//! `meshkeep config`: the settings in force, and the source of each.

use super::asker::{Asker, ServerOptions, items};
use crate::cli::failure::{Failure, Verdict};
use crate::cli::terminal::output::{Column, OutputOptions, Shape, joined, print_list, text};
use crate::dto::config::Setting;
use clap::Args;

/// What to tell.
#[derive(Debug, Args)]
pub(in crate::cli) struct ConfigOptions {
    #[command(flatten)]
    output: OutputOptions,
}

const SHAPE: Shape<Setting> = Shape {
    columns: &[
        Column::new("NAME", |setting| setting.name.clone()),
        Column::new("VALUE", |setting| joined(&setting.values)),
        Column::new("FROM", |setting| setting.source.to_string()),
        Column::wide("WHERE", |setting| text(setting.origin.as_ref())),
        Column::wide("WHAT IT IS", |setting| setting.description.clone()),
    ],
    name: |setting| setting.name.clone(),
};

pub(in crate::cli) async fn run(options: &ConfigOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let answer = Asker::new(server)?.get("/v1/config", &[]).await?;
    print_list(options.output.output, &SHAPE, &items(answer))?;
    Ok(Verdict::Fine)
}

//! `meshkeep config`: the effective settings, and the source of each.

use super::api_client::{ApiClient, ServerOptions, items};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{TableColumn, TableShape, joined, text};
use crate::dto::config::Setting;
use clap::Args;

#[derive(Debug, Args)]
pub(in crate::cli) struct ConfigOptions {
    #[command(flatten)]
    list: ListOptions,
}

const SHAPE: TableShape<Setting> = TableShape {
    columns: &[
        TableColumn::new("NAME", |setting| setting.name.clone()),
        TableColumn::new("VALUE", |setting| joined(&setting.values)),
        TableColumn::new("FROM", |setting| setting.source.to_string()),
        TableColumn::wide("WHERE", |setting| text(setting.origin.as_ref())),
        TableColumn::wide("DESCRIPTION", |setting| setting.description.clone()),
    ],
    name: |setting| setting.name.clone(),
};

pub(in crate::cli) async fn run(options: &ConfigOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let answer = ApiClient::new(server)?.get("/v1/config", &[]).await?;
    options.list.print_list(&SHAPE, items(answer))?;
    Ok(ExitStatus::Success)
}

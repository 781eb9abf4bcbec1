//! `meshkeep config`: the effective settings, and the source of each. `meshkeep config schema`
//! prints the schema of the config file.

use std::io::Write as _;

use super::api_client::{ApiClient, ServerOptions, items};
use crate::cli::etcd::reflect::ReflectTargetOptions;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{TableColumn, TableShape, joined, print_document, text};
use crate::config::{Settings, config_schema};
use crate::dto::config::Setting;
use clap::{Args, Command, Subcommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct ConfigOptions {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
    #[command(flatten)]
    list: ListOptions,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum ConfigCommand {
    /// Print the JSON schema of the --config file, with which editors check and complete it
    Schema,
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
    match options.command {
        Some(ConfigCommand::Schema) => print_document(|out| out.write_all(schema_document().as_bytes()))?,
        None => options.list.print_list(&SHAPE, items(ApiClient::new(server)?.get("/v1/config", &[]).await?))?,
    }
    Ok(ExitStatus::Success)
}

/// Returns the JSON schema of the config file as a document.
pub(in crate::cli) fn schema_document() -> String {
    let serve = Settings::augment_args(Command::new("serve"));
    let reflect = ReflectTargetOptions::augment_args(Command::new("reflect"));
    format!("{:#}\n", config_schema(&serve, &reflect))
}

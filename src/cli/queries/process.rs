//! `meshkeep version` and `meshkeep log`: the version and the newest log lines of a running
//! sidecar.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api_client::{ApiClient, ServerOptions};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{OutputOptions, TableColumn, TableShape, one_line, print, print_one, text};
use crate::dto::log::Log;

#[derive(Debug, Args)]
pub(in crate::cli) struct VersionOptions {
    /// Only the version of this command, without a request
    #[arg(long)]
    client: bool,
    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct LogOptions {
    /// Only the newest lines
    #[arg(long, value_name = "COUNT")]
    tail: Option<usize>,
}

/// Versions of this command and of the sidecar.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    server_version: Option<String>,
}

const VERSIONS: TableShape<Versions> = TableShape {
    columns: &[
        TableColumn::new("CLIENT", |versions| versions.client_version.clone()),
        TableColumn::new("SERVER", |versions| text(versions.server_version.as_ref())),
    ],
    name: |versions| versions.client_version.clone(),
};

/// Prints both versions. If the sidecar cannot be reached, prints the version of this command and
/// returns the failure.
pub(in crate::cli) async fn run_version(options: &VersionOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let server_version = if options.client { Ok(None) } else { fetch_version(server).await.map(Some) };
    let (server_version, result) = match server_version {
        Ok(version) => (version, Ok(ExitStatus::Success)),
        Err(failure) => (None, Err(failure)),
    };
    let versions = Versions { client_version: env!("MESHKEEP_VERSION").to_owned(), server_version };
    if options.output.output.is_table() {
        let server_line = versions.server_version.iter().map(|version| format!("Server Version: {}\n", one_line(version)));
        print(&(format!("Client Version: {}\n", versions.client_version) + &server_line.collect::<String>()))?;
    } else {
        print_one(options.output.output, &VERSIONS, &json!(versions))?;
    }
    result
}

async fn fetch_version(server: &ServerOptions) -> Result<String, Failure> {
    // only this member, because the sidecar may be newer
    let status: Value = ApiClient::new(server)?.get("/v1/status", &[]).await?;
    let missing = || Failure::unavailable("the status of the server has no version, so it is not a meshkeep");
    status["version"].as_str().map(str::to_owned).ok_or_else(missing)
}

/// Prints the newest log lines, the oldest first.
pub(in crate::cli) async fn run_log(options: &LogOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let log: Log = ApiClient::new(server)?.get("/v1/log", &[]).await?;
    let skipped = log.lines.len().saturating_sub(options.tail.unwrap_or(usize::MAX));
    if options.tail.is_none() && log.omitted > 0 {
        crate::cli::print_to_stderr(format!("{} older lines are omitted\n", log.omitted));
    }
    print(&log.lines[skipped..].iter().map(|line| line.clone() + "\n").collect::<String>())?;
    Ok(ExitStatus::Success)
}

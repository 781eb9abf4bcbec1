//! `meshkeep healthcheck`: exec probe for images that have no shell and no curl.

use clap::Args;

use super::api_client::{ApiClient, ServerOptions};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::print;

#[derive(Debug, Args)]
pub(in crate::cli) struct HealthcheckOptions {
    /// Also check that every cluster was read completely since the start
    #[arg(long)]
    synced: bool,
    /// Only check that the process answers, for a liveness probe, which must not restart a process
    /// that is still loading
    #[arg(long, conflicts_with = "synced")]
    live: bool,
}

/// Requests `/readyz` or `/livez`, and prints what is not healthy.
pub(in crate::cli) async fn run(options: &HealthcheckOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let path = match (options.live, options.synced) {
        (true, _) => "/livez?verbose",
        (false, true) => "/readyz?synced&verbose",
        (false, false) => "/readyz?verbose",
    };
    let (healthy, text) = ApiClient::new(server)?.probe(path).await?;
    if !healthy {
        print(&(text.trim_end().to_owned() + "\n"))?;
    }
    Ok(ExitStatus::from_success(healthy))
}

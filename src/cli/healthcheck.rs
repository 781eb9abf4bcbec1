//! `meshkeep healthcheck`: a readiness probe for images that have no shell and no curl.

use clap::Args;

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::output::print;

/// What to ask.
#[derive(Debug, Args)]
pub(super) struct HealthcheckOptions {
    /// Also ask whether every cluster was read completely since the start
    #[arg(long)]
    synced: bool,
}

/// Asks `/readyz`; prints what is not well.
pub(super) async fn run(options: &HealthcheckOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let path = if options.synced { "/readyz?synced&verbose" } else { "/readyz?verbose" };
    let (healthy, told) = Asker::new(server)?.probe(path).await?;
    if !healthy {
        print(&(told.trim_end().to_owned() + "\n"))?;
    }
    Ok(Verdict::of(healthy))
}

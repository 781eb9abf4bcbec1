//! `meshkeep demo`: a simulated mesh that needs no installation.

use std::net::SocketAddr;

use clap::Args;

use crate::cli::failure::{CommandResult, ExitStatus, ResultExt as _};
use crate::cli::{NO_RUNTIME, NO_SIGNALS};
use crate::demo::{self, DemoOptions};
use crate::runtime::{Signals, StartSignals};

#[derive(Debug, Args)]
pub(in crate::cli) struct Options {
    /// Number of pods in each of the three clusters
    #[arg(long, value_name = "COUNT", default_value = "500", value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pods: u32,

    /// Number of pod changes per second
    #[arg(long, value_name = "COUNT", default_value = "20", value_parser = clap::value_parser!(u32).range(0..=20_000))]
    changes: u32,

    /// Address to serve HTTP on
    #[arg(long, value_name = "ADDR", default_value_t = demo::DEFAULT_LISTEN)]
    listen: SocketAddr,

    /// Address for requests that break and heal clusters
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9869")]
    control: SocketAddr,
}

/// Runs until a stop signal arrives.
pub(in crate::cli) fn run(options: &Options, start: &StartSignals) -> CommandResult {
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().or_fail(NO_RUNTIME)?;
    let mut signals = executor.block_on(async { Signals::new(start) }).or_fail(NO_SIGNALS)?;
    let Options { pods, changes, listen, control } = *options;
    let options = DemoOptions { pods, changes_per_second: changes, listen, control };
    // SIGHUP (a closed terminal) ends the demo too: the sidecar would only reload its files and go
    // on without the simulated clusters
    let stopped = async {
        let _ = signals.next().await;
    };
    let ended = executor.block_on(demo::run(&options, stopped));
    executor.shutdown_background();
    ended?;
    Ok(ExitStatus::Success)
}

//! `meshkeep serve`: the sidecar.

use anyhow::Context;

use crate::config::Settings;
use crate::{runtime, telemetry};

/// Serves until told to stop.
pub(super) fn run(settings: Settings) -> anyhow::Result<()> {
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")?;
    // before anything else: whoever ends a start, or asks for files to be read again, shall not meet the system's default, a sudden end
    let signals = executor.block_on(async { runtime::Signals::new() }).context("cannot receive signals")?;
    let log = telemetry::init(settings.log_format, settings.log_level)?;
    let ended = executor.block_on(runtime::run(settings, signals, log.lost()));
    // an orderly end has waited for everything already; any other must not wait for a store that is still loading
    executor.shutdown_background();
    Ok(ended?)
}

//! `meshkeep serve`: the sidecar.

use rustix::process::{Signal, getpid, kill_process};

use super::doctor;
use crate::cli::failure::{CommandResult, ExitStatus, Failure, ResultExt as _};
use crate::cli::terminal::output::print_coloured;
use crate::cli::{NO_RUNTIME, NO_SIGNALS};
use crate::config::{Setting, Settings};
use crate::doctor::{DoctorOptions, examine_files};
use crate::reflect::ReflectOptions;
use crate::runtime::{Signals, StartSignals};
use crate::telemetry::TraceReceiver;
use crate::{runtime, telemetry};

/// Serves until a stop signal arrives, or only checks the settings. With `reflect`, also writes the
/// mirror into that etcd.
pub(in crate::cli) fn run(
    settings: Settings,
    effective_settings: Vec<Setting>,
    warnings: &[String],
    reflect: Option<ReflectOptions>,
    start: &StartSignals,
) -> CommandResult {
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().or_fail(NO_RUNTIME)?;
    if settings.check_config {
        // a signal must kill this process, because an orderly end would have exit code 0, which
        // means that the settings are valid
        start.kill_from_now_on();
        return executor.block_on(check(&settings, warnings));
    }
    let signals = executor.block_on(async { Signals::new(start) }).or_fail(NO_SIGNALS)?;
    let endpoint = settings.receivers.otlp_endpoint.clone();
    let receiver = endpoint.as_ref().map(|endpoint| TraceReceiver { endpoint, runtime: executor.handle() });
    let log = telemetry::init(settings.log_format, settings.log_level, receiver)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    if settings.end_with_stdin {
        std::thread::spawn(end_with_stdin);
    }
    let ended = executor.block_on(runtime::run(settings, effective_settings, signals, &log, reflect));
    log.end_traces();
    // an orderly end has already waited for everything; after any other end, the process must not
    // wait for a store that is still loading
    executor.shutdown_background();
    ended?;
    Ok(ExitStatus::Success)
}

/// Waits until standard input ends, then ends this process as SIGTERM does. The kernel closes the
/// other end of the pipe when the process that holds it ends, even if that process is killed.
fn end_with_stdin() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = kill_process(getpid(), Signal::TERM);
}

/// Reads everything that a start would read, and reports what is wrong with it.
async fn check(settings: &Settings, warnings: &[String]) -> CommandResult {
    for warning in warnings {
        crate::cli::print_warning(warning);
    }
    runtime::check(settings).await?;
    let options = DoctorOptions {
        clustermesh_config: settings.clustermesh_config.clone(),
        ignored_clusters: settings.clusters_without_file(),
        allow_no_clusters: settings.allow_no_clusters,
        legacy_clusters: settings.legacy_clusters.clone(),
        own_id: settings.cluster_id,
        max_connected_clusters: Some(settings.max_connected_clusters),
        data_dir: settings.data_dir.clone(),
        clusters: Vec::new(),
        step_max: std::time::Duration::ZERO,
    };
    let report = examine_files(&options).await.map_err(Failure::new)?;
    print_coloured(&doctor::text(&report))?;
    if !report.is_fine() {
        return Err(Failure::new("a file in the settings cannot be used"));
    }
    Ok(ExitStatus::Success)
}

//! `meshkeep announce`: publishes a cluster of machines outside Kubernetes from files.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::target::{check_takeover, parse_lease_ttl};
use crate::announce::{AnnounceError, AnnounceOptions, ChangeRules, MaxWithdrawal, announce, dry_run, retire_cluster};
use crate::cli::failure::{CommandResult, ExitStatus, Failure, ResultExt as _};
use crate::cli::terminal::output;
use crate::cli::{NO_RUNTIME, NO_SIGNALS};
use crate::config::{LogFormat, LogLevel, parse_duration};
use crate::model::printable;
use crate::runtime::{SHUTDOWN_MAX, SignalRequest, Signals, StartSignals};
use crate::telemetry;
use cilium_kvstore::SessionOptions;

#[derive(Debug, Args)]
pub(in crate::cli) struct Options {
    /// YAML files that together describe one cluster
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Client file of the etcd from which clients read the cluster
    #[arg(long, value_name = "ETCD-CONFIG", required_unless_present = "dry_run")]
    to: Option<PathBuf>,
    /// Only print the keys and values that would be written
    #[arg(long, conflicts_with = "retire")]
    dry_run: bool,
    /// Retire the cluster in the files: delete its config and, after --retire-grace, all its other
    /// keys
    #[arg(long)]
    retire: bool,
    /// Time for clients to notice that the config was deleted
    #[arg(long, value_name = "TIME", default_value = "3m", value_parser = parse_duration, requires = "retire")]
    retire_grace: Duration,
    /// Lease time of the announced keys, which expire after it when the announcer ends: 60s to 24h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_announced_ttl)]
    lease_ttl: Duration,
    /// Hold back a change of a file for a minute, or until SIGHUP, if it withdraws more than this
    /// percentage of the file's workloads; 100% holds nothing back
    #[arg(long, value_name = "SHARE", default_value = "50%")]
    max_withdrawal: MaxWithdrawal,
    /// Write metrics into this file, in the Prometheus text format, for node_exporter's textfile
    /// collector
    #[arg(long, value_name = "FILE")]
    metrics_file: Option<PathBuf>,
    /// Time that a file must be unchanged before its change is applied
    #[arg(long, hide = true, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    stable_time: Duration,
    /// Time that a file must be unchanged before a change is applied that exceeds --max-withdrawal
    #[arg(long, hide = true, value_name = "TIME", default_value = "1m", value_parser = parse_duration)]
    hold_time: Duration,
    /// Minimum level of the log
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: LogLevel,
    /// Format of the log
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

fn parse_announced_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_lease_ttl(text)?;
    check_takeover(ttl, SessionOptions::default().lock_ttl).map(|()| ttl)
}

/// Announces the cluster until a stop signal arrives. With `--dry-run`, only prints the keys and
/// values; with `--retire`, deletes its keys.
pub(in crate::cli) fn run(options: Options, start: &StartSignals) -> CommandResult {
    if options.dry_run {
        start.kill_from_now_on();
        return print(&options.files);
    }
    let to = options.to.ok_or_else(|| Failure::usage("--to is missing"))?;
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().or_fail(NO_RUNTIME)?;
    let mut signals = executor.block_on(async { Signals::new(start) }).or_fail(NO_SIGNALS)?;
    let _log = telemetry::init(options.log_format, options.log_level, None)?;
    let (apply_now, stop, is_retirement) = (Arc::new(Notify::new()), CancellationToken::new(), options.retire);
    let announce_options = AnnounceOptions {
        to,
        files: options.files,
        lease_ttl: options.lease_ttl,
        rules: ChangeRules { stable_time: options.stable_time, hold_time: options.hold_time, max_withdrawal: options.max_withdrawal },
        apply_now: Arc::clone(&apply_now),
        metrics_file: options.metrics_file,
    };
    let (grace, stopped) = (options.retire_grace, stop.clone());
    let work = executor.spawn(async move {
        if is_retirement { retire_cluster(&announce_options, grace, stopped).await } else { announce(&announce_options, stopped).await }
    });
    let done = executor.block_on(until_done(work, &mut signals, &apply_now, &stop));
    executor.shutdown_background();
    match done? {
        false if is_retirement => Err(Failure::new("stopped before the cluster was retired: run the command again")),
        _ => Ok(ExitStatus::Success),
    }
}

/// Waits until the work ends, and passes signals on to it. Returns false if the work does not end
/// in time after a stop signal: a file that cannot be read to its end, or an etcd that does not
/// answer, must not keep the process from stopping.
async fn until_done(
    mut work: JoinHandle<Result<(), AnnounceError>>,
    signals: &mut Signals,
    apply_now: &Notify,
    stop: &CancellationToken,
) -> Result<bool, Failure> {
    loop {
        tokio::select! {
            ended = &mut work => return Ok(ended?.map(|()| true)?),
            request = signals.next() => match request {
                SignalRequest::End => break,
                SignalRequest::Reload => apply_now.notify_one(),
            },
        }
    }
    stop.cancel();
    if let Ok(ended) = timeout(SHUTDOWN_MAX, work).await {
        return Ok(ended?.map(|()| true)?);
    }
    tracing::warn!("ending while a file or the etcd does not answer: the announced keys stay until their leases expire (--lease-ttl)");
    Ok(false)
}

/// Prints the keys and values that would be written.
fn print(files: &[PathBuf]) -> CommandResult {
    let mut text = String::new();
    for (key, value) in dry_run(files)? {
        text.extend([&key, " => ", &value, "\n"]);
    }
    crate::cli::print_to_stderr("the identity numbers are examples: announce allocates free ones in the cluster's range\n".to_owned());
    output::print_document(|out| out.write_all(printable(&text).as_bytes()))?;
    Ok(ExitStatus::Success)
}

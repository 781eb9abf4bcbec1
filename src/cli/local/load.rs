//! `meshkeep load DUMP`: serves a dump without any etcd.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;

use crate::cli::failure::{CommandResult, ExitStatus, Failure, ResultExt as _};
use crate::cli::terminal::output::print;
use crate::cli::{NO_RUNTIME, NO_SIGNALS};
use crate::config::{LogFormat, LogLevel};
use crate::dto::text::rfc3339;
use crate::dump::{Dump, DumpOptions, read_dump};
use crate::model::{ClusterName, DumpTimeSource, ListenAddress};
use crate::runtime::{Signals, StartSignals};
use crate::{runtime, telemetry};

/// Maximum number of printed warnings: a screen of them.
const WARNINGS_MAX: usize = 20;

#[derive(Debug, Args)]
pub(in crate::cli) struct Options {
    /// File, archive or directory: the output of `cilium-dbg kvstore get --recursive` or `etcdctl
    /// get --prefix -w json`, a Cilium sysdump, the output of `meshkeep store export` or of
    /// /v1/entries as NDJSON, or a bundle with --entries
    #[arg(value_name = "DUMP")]
    dump: PathBuf,

    /// Address to serve HTTP on, which only this machine can reach: ADDRESS:PORT or unix:///path;
    /// repeatable, port 0 selects a free port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9870", value_parser = ListenAddress::parse)]
    listen: Vec<ListenAddress>,

    /// Cluster of the identities and addresses below cilium/state, if no key of the dump names it
    #[arg(long, value_name = "NAME", value_parser = ClusterName::parse)]
    cluster_name: Option<ClusterName>,

    /// Time at which the dump was made, such as 2026-11-28T12:00:00Z [default: the time in the
    /// bundle, the newest heartbeat in the dump, or the time of the file]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time: Option<SystemTime>,
}

/// Reads the dump and serves it until a stop signal arrives.
pub(in crate::cli) fn run(options: Options, start: &StartSignals) -> CommandResult {
    let Options { dump: path, listen, cluster_name, time } = options;
    if let Some(open) = listen.iter().find(|address| !address.is_local()) {
        return Err(Failure::usage(format!(
            "other machines can reach --listen {open}, and load serves every client: listen on a loopback address or a unix socket"
        )));
    }
    let dump = read_dump(&path, &DumpOptions { cluster: cluster_name, time })?;
    for warning in dump.warnings.iter().take(WARNINGS_MAX) {
        crate::cli::print_warning(warning);
    }
    if let Some(more) = dump.warnings.len().checked_sub(WARNINGS_MAX).filter(|more| *more > 0) {
        crate::cli::print_warning(&format!("{more} more warnings are not printed"));
    }
    print(&describe(&dump))?;
    let executor = tokio::runtime::Builder::new_multi_thread().enable_all().build().or_fail(NO_RUNTIME)?;
    let signals = executor.block_on(async { Signals::new(start) }).or_fail(NO_SIGNALS)?;
    let log = telemetry::init(LogFormat::Text, LogLevel::Warn, None)?;
    let ended = executor.block_on(runtime::serve_dump(dump, &listen, signals, &log));
    executor.shutdown_background();
    ended?;
    Ok(ExitStatus::Success)
}

/// Returns a description of the dump in one line.
fn describe(dump: &Dump) -> String {
    let (source, clusters) = (&dump.source, dump.clusters().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    let from = match source.time_from {
        DumpTimeSource::CommandLine => "--time",
        DumpTimeSource::Bundle => "the time in the bundle",
        DumpTimeSource::Heartbeat => "its newest heartbeat",
        DumpTimeSource::File => "the time of the file",
    };
    let (count, form, time) = (dump.entry_count(), source.form, rfc3339(source.time));
    format!("dump of {time} ({from}), made by {form}: {count} keys of {clusters}\n")
}

fn parse_time(text: &str) -> Result<SystemTime, String> {
    text.parse::<jiff::Timestamp>().map(SystemTime::from).map_err(|_| "must be a time such as 2026-11-28T12:00:00Z".to_owned())
}

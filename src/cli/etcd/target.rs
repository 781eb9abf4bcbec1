//! The etcd of `meshkeep kvstore`: its options and its session. The other commands for an etcd use
//! the checks of lease times and the wait for the connection.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::cli::failure::Failure;
use crate::cli::terminal::progress::ProgressLine;
use crate::client_file::ClientFile;
use crate::config::{KvstoreOption, KvstoreOptions, parse_duration};
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument};
use crate::model::{readable_error, redacted_path};
use crate::runtime::client_options;
use cilium_kvstore::{EtcdConfig, KvstoreError, Session, SessionOptions};

/// Maximum time to wait for a connection and for each call (cilium-dbg's `kvstore` commands: 30 s).
const WAITING_MAX: Duration = Duration::from_secs(30);

/// Interval between updates of the reason why there is no connection yet.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Allowed lease TTLs (Cilium's `--kvstore-lease-ttl`).
const LEASE_TTL: std::ops::RangeInclusive<Duration> = Duration::from_secs(25)..=Duration::from_secs(24 * 60 * 60);

/// Time beyond the lock's TTL that the next process may wait for the lock: etcd expires leases
/// slightly late.
const LOCK_WAIT_MARGIN: Duration = Duration::from_secs(5);

/// Maximum time from the start of the next process until it has renewed all keys.
const START_MAX: Duration = Duration::from_secs(5);

/// Options of the etcd, its client and its leases.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct TargetOptions {
    /// Client file of the etcd, in Cilium's format (same as `--kvstore-opt etcd.config=FILE`)
    #[arg(long, value_name = "FILE")]
    etcd: Option<PathBuf>,

    /// Options of the etcd client, as in Cilium: etcd.config, etcd.address (an address without
    /// TLS), etcd.qps=20, etcd.bootstrapQps, etcd.maxInflight, etcd.limit=256,
    /// etcd.keepaliveHeartbeat=15s, etcd.keepaliveTimeout=25s; repeatable
    #[arg(long = "kvstore-opt", value_name = "KEY=VALUE", value_parser = TargetOption::parse)]
    options: Vec<TargetOption>,

    /// Lease time of keys, which expire after it when this process ends: 25s to 24h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_lease_ttl)]
    kvstore_lease_ttl: Duration,

    /// Number of consecutive failed quorum checks after which the connection is closed
    #[arg(long, value_name = "COUNT", default_value = "2")]
    kvstore_max_consecutive_quorum_errors: u32,
}

/// One `--kvstore-opt` of `meshkeep kvstore`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TargetOption {
    /// `etcd.address`: an endpoint, plain or with the system's certificate authorities.
    Address(String),
    /// `etcd.config`: the client file.
    Config(PathBuf),
    /// Any other option.
    Tune(KvstoreOption),
}

impl TargetOption {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("etcd.address", address)) if !address.is_empty() => Ok(Self::Address(address.to_owned())),
            Some(("etcd.config", path)) if !path.is_empty() => Ok(Self::Config(path.into())),
            _ => KvstoreOption::parse(text).map(Self::Tune),
        }
    }
}

pub(super) fn parse_lease_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration(text)?;
    if LEASE_TTL.contains(&ttl) { Ok(ttl) } else { Err("must be from 25s to 24h".into()) }
}

/// Refuses a lease TTL that is too short for a takeover: after a process is killed, all keys would
/// expire before the next process has the lock and renews them.
pub(super) fn check_takeover(lease_ttl: Duration, lock_ttl: Duration) -> Result<(), String> {
    let wait = lock_ttl + LOCK_WAIT_MARGIN;
    let ttl_min = lock_ttl + wait + START_MAX;
    if lease_ttl >= ttl_min {
        return Ok(());
    }
    Err(format!(
        "{lease_ttl:?} is shorter than {ttl_min:?}: after a process is killed, its lock exists for {lock_ttl:?}, and the next process waits up to {wait:?} for it and needs up to {START_MAX:?} to start; keys with a shorter lease would expire before it can renew them"
    ))
}

impl TargetOptions {
    /// Opens a session and waits until it is connected. With `locks`, the session also checks that
    /// etcd has a quorum, as agents do, and revokes its leases when it is closed, because only
    /// locks are attached to them.
    pub(super) async fn connect(&self, locks: bool) -> Result<Session, Failure> {
        let session = Session::start(
            self.etcd()?,
            SessionOptions { quorum_check: locks, revoke_on_close: locks, ..self.session_options() },
            CancellationToken::new(),
        );
        connected(&session, WAITING_MAX).await.map(|()| session)
    }

    fn session_options(&self) -> SessionOptions {
        let tuning = self.options.iter().filter_map(|option| match option {
            TargetOption::Tune(option) => Some(*option),
            TargetOption::Address(_) | TargetOption::Config(_) => None,
        });
        SessionOptions {
            client: client_options(&KvstoreOptions::with(&tuning.collect::<Vec<_>>())),
            lease_ttl: self.kvstore_lease_ttl,
            quorum_errors_max: self.kvstore_max_consecutive_quorum_errors,
            ..SessionOptions::default()
        }
    }

    fn etcd(&self) -> Result<EtcdConfig, Failure> {
        let config_path = self.options.iter().rev().find_map(|option| match option {
            TargetOption::Config(path) => Some(path),
            TargetOption::Address(_) | TargetOption::Tune(_) => None,
        });
        let address = self.options.iter().rev().find_map(|option| match option {
            TargetOption::Address(address) => Some(address),
            TargetOption::Config(_) | TargetOption::Tune(_) => None,
        });
        match (self.etcd.as_ref().or(config_path), address) {
            (Some(path), _) => {
                let shown = redacted_path(path);
                let bytes =
                    read_argument(path, SMALL_FILE_BYTES_MAX).map_err(|error| Failure::usage(format!("cannot read {shown}: {error}")))?;
                let parsed = ClientFile::parse(&bytes);
                parsed.map(|file| file.config).map_err(|error| Failure::usage(format!("{shown}: {error}")))
            }
            (None, Some(address)) => Ok(EtcdConfig::new(address)),
            (None, None) => Err(Failure::usage("--etcd is missing: it is the client file of the etcd")),
        }
    }
}

/// Waits until a session is connected. Meanwhile shows why it is not connected yet.
pub(in crate::cli) async fn connected(session: &Session, limit: Duration) -> Result<(), Failure> {
    let progress = ProgressLine::start("connecting to the etcd");
    let reporting = async {
        let mut ticks = interval(PROGRESS_INTERVAL);
        loop {
            ticks.tick().await;
            if let Some(cause) = session.status().cause {
                progress.set_text(format!("connecting to the etcd: {}", readable_error(cause)));
            }
        }
    };
    let connecting = async {
        tokio::select! {
            result = session.connected() => result.map_err(|error| failure(&error)),
            () = reporting => Ok(()),
        }
    };
    let connected = timeout(limit, connecting).await;
    drop(progress);
    connected.unwrap_or_else(|_| {
        let cause = session.status().cause.unwrap_or_else(|| "it does not answer".to_owned());
        Err(Failure::unavailable(format!("no connection with the etcd within {limit:?}: {cause}")))
    })
}

/// Converts an error of a call into a [`Failure`] with advice for the user.
pub(in crate::cli) fn failure(error: &KvstoreError) -> Failure {
    let text = error.hint().map_or_else(|| error.to_string(), |hint| format!("{error}\n{hint}"));
    match error {
        KvstoreError::NotConnected { .. } | KvstoreError::Timeout { .. } | KvstoreError::Connect { .. } => Failure::unavailable(text),
        _ => Failure::new(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_outlive_a_takeover() {
        let seconds = Duration::from_secs;
        for (lease, lock, is_valid) in [(60, 25, true), (59, 25, false), (25, 2, true), (13, 2, false)] {
            assert_eq!(check_takeover(seconds(lease), seconds(lock)).is_ok(), is_valid, "{lease} {lock}");
        }
        assert_eq!(
            check_takeover(seconds(30), seconds(25)).unwrap_err(),
            "30s is shorter than 60s: after a process is killed, its lock exists for 25s, and the next process waits up to 30s for it and needs up to 5s to start; keys with a shorter lease would expire before it can renew them"
        );
    }

    #[test]
    fn options_have_ciliums_names_and_ranges() {
        assert_eq!(TargetOption::parse("etcd.address=http://a:1"), Ok(TargetOption::Address("http://a:1".into())));
        assert_eq!(TargetOption::parse("etcd.config=/a"), Ok(TargetOption::Config("/a".into())));
        assert_eq!(TargetOption::parse("etcd.qps=5"), Ok(TargetOption::Tune(KvstoreOption::Qps(5))));
        assert!(TargetOption::parse("etcd.qps=0").is_err());
        for (text, is_valid) in [("25s", true), ("24h", true), ("24s", false), ("25h", false), ("soon", false)] {
            assert_eq!(parse_lease_ttl(text).is_ok(), is_valid, "{text}");
        }
    }
}

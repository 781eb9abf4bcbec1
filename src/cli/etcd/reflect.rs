//! `meshkeep reflect`: runs the sidecar and writes its mirror into an etcd, as a KVStoreMesh does.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::target::{check_takeover, parse_lease_ttl};
use crate::cli::failure::{Failure, ResultExt as _};
use crate::client_file::ClientFile;
use crate::config::{KvstoreOption, KvstoreOptions, Settings, UsageError, parse_duration};
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument};
use crate::model::redacted_path;
use crate::reflect::ReflectOptions;
use crate::runtime::client_options;
use cilium_kvstore::SessionOptions;

/// Default limit of writes per second. In practice it limits nothing: the calls in flight bound the
/// rate.
const WRITES_PER_SECOND: u32 = 1_000_000;

/// Default number of calls in flight. An etcd syncs its disk once for all waiting writes, and an
/// etcd with a single member gets no faster with more than about 64 calls.
const IN_FLIGHT: u32 = 64;

/// Default number of keys per page. Comparing 512 keys takes a millisecond or two, and a target of
/// a million keys has 2,000 pages.
const PAGE_KEYS: u32 = 512;

/// Options of `serve` and of the target.
#[derive(Debug, Args)]
pub(in crate::cli) struct ReflectSettings {
    #[command(flatten)]
    pub(in crate::cli) settings: Settings,
    #[command(flatten)]
    pub(in crate::cli) to: ReflectTargetOptions,
}

/// Options of the etcd to write into.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct ReflectTargetOptions {
    /// Client file of the etcd to write into, in the same format as those of remote clusters; its
    /// user must be allowed to read and write below cilium/
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// Options of the client of that etcd, like --kvstore-opt; by default etcd.maxInflight=64,
    /// etcd.limit=512 and no etcd.qps
    #[arg(long = "to-opt", value_name = "KEY=VALUE", value_parser = KvstoreOption::parse)]
    to_options: Vec<KvstoreOption>,

    /// Lease time of the written keys, which expire after it if no meshkeep renews them: 60s to 24h
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_lease_ttl)]
    to_lease_ttl: Duration,

    /// Time to live of the lock: another meshkeep takes over this long after a kill (as in Cilium)
    #[arg(long, hide = true, value_name = "TIME", default_value = "25s", value_parser = parse_duration)]
    to_lock_ttl: Duration,

    /// Time between the deletes of a removed cluster's config and of its entries (as in
    /// KVStoreMesh)
    #[arg(long, hide = true, value_name = "TIME", default_value = "3m", value_parser = parse_duration)]
    drain_grace: Duration,

    /// Interval between two comparisons of all keys, one kind of a cluster at a time, which undo
    /// changes by other programs
    #[arg(long, hide = true, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    to_audit_interval: Duration,
}

impl ReflectTargetOptions {
    /// Checks that a target is set, and that its keys outlive a takeover after a kill. clap cannot
    /// check this, because the environment or the config file may also set the options.
    pub(in crate::cli) fn check(self) -> Result<Self, UsageError> {
        if self.to.is_none() {
            return Err(UsageError::Conflict("--to is missing: it is the client file of the etcd to write into".into()));
        }
        let takeover_check = check_takeover(self.to_lease_ttl, self.to_lock_ttl);
        takeover_check.map(|()| self).map_err(|reason| UsageError::Conflict(format!("--to-lease-ttl {reason}")))
    }

    pub(in crate::cli) fn options(&self) -> Result<ReflectOptions, Failure> {
        let path = self.to.as_ref().ok_or_else(|| Failure::usage("--to is missing"))?;
        let bytes = read_argument(path, SMALL_FILE_BYTES_MAX).or_fail(format!("cannot read {}", redacted_path(path)))?;
        let file = ClientFile::parse(&bytes).or_fail(format!("--to {}", redacted_path(path)))?;
        let defaults = [KvstoreOption::Qps(WRITES_PER_SECOND), KvstoreOption::MaxInflight(IN_FLIGHT), KvstoreOption::Limit(PAGE_KEYS)];
        let tuning: Vec<KvstoreOption> = defaults.into_iter().chain(self.to_options.iter().copied()).collect();
        let session = SessionOptions {
            client: client_options(&KvstoreOptions::with(&tuning)),
            lease_ttl: self.to_lease_ttl,
            lock_ttl: self.to_lock_ttl,
            ..SessionOptions::default()
        };
        Ok(ReflectOptions { etcd: file.config, session, drain_grace: self.drain_grace, audit_interval: self.to_audit_interval })
    }
}

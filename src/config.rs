//! The settings of `meshkeep serve`, and the rules between them.
//!
//! [`Settings`] is the only list of options: flags, environment variables (`MESHKEEP_…`), the keys
//! of the `--config` file and the help texts all come from it. A flag overrides a variable, and a
//! variable overrides the file. Every `Settings` value has passed the rules between options. The
//! files that it names are not opened here, apart from the config file.

mod effective;
mod history;
mod layers;
mod receivers;
mod schema;
mod security;
mod timing;
mod values;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches, ValueEnum};

pub use self::history::{HistoryMode, HistorySettings};
#[cfg(test)]
pub(crate) use self::layers::options;
pub use self::receivers::ReceiverSettings;
pub use self::schema::config_schema;
pub use self::security::SecuritySettings;
pub use self::timing::{ClusterTiming, TimingSettings};
use self::values::parse_bytes;
pub use self::values::{KvstoreOption, KvstoreOptions};
pub use crate::model::Setting;
pub(crate) use crate::model::parse_duration;
use crate::model::{ApiEnum as _, ClusterId, ClusterName, ListenAddress, MaxConnectedClusters, MetricsDetail, SecretUrl, WebhookFormat};

/// Options of `meshkeep serve`. They have Cilium's names if Cilium has the option too.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Settings {
    /// YAML file with more options, a regular file of at most 1 MiB: its keys are the flags without
    /// their dashes
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Directory with one etcd client file for each remote cluster, as Cilium's agents and
    /// KVStoreMesh read it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cilium/clustermesh")]
    pub clustermesh_config: PathBuf,

    /// Directory that keeps the mirror across restarts
    #[arg(long, value_name = "DIR", default_value = "/var/lib/meshkeep")]
    pub data_dir: PathBuf,

    /// Address to serve HTTP on: ADDRESS:PORT or unix:///path; repeatable, port 0 selects a free
    /// port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:9870", value_parser = ListenAddress::parse)]
    pub listen: Vec<ListenAddress>,

    /// Address for only the probes and /metrics, without TLS or token, for a kubelet and a
    /// Prometheus that cannot reach loopback: ADDRESS:PORT or unix:///path
    #[arg(long, value_name = "ADDR", value_parser = ListenAddress::parse)]
    pub health_listen: Option<ListenAddress>,

    /// Address to serve the mirror as a read-only etcd, for agents and etcdctl: ADDRESS:PORT; for
    /// other machines, --tls-cert and --client-ca are required
    #[arg(long, value_name = "ADDR", value_parser = ListenAddress::parse)]
    pub etcd_listen: Option<ListenAddress>,

    /// Name of the own cluster: its file in the directory is ignored
    #[arg(long, value_name = "NAME", value_parser = parse_cluster_name)]
    pub cluster_name: Option<ClusterName>,

    /// Ignore the file of this cluster in the directory, so that the cluster is not mirrored; for a
    /// Secret that meshkeep shares with agents; repeatable, or separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_cluster_name)]
    pub ignore_cluster: Vec<ClusterName>,

    /// Id of the own cluster; 0 means unknown
    #[arg(long, value_name = "ID", default_value = "0", value_parser = parse_cluster_id)]
    pub cluster_id: ClusterId,

    /// Client file of the own cluster's etcd, in the same format as those in the directory.
    /// meshkeep then mirrors the own cluster like a remote one, so that lookups find its pods and
    /// affinity knows its local backends; needs --cluster-name
    #[arg(long, value_name = "FILE")]
    pub local_etcd: Option<PathBuf>,

    /// Read these clusters even without a cluster config, which old releases of Cilium do not
    /// write. meshkeep does not read other clusters without one, because their client file may name
    /// another cluster's etcd; repeatable, or separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_cluster_name)]
    pub legacy_clusters: Vec<ClusterName>,

    /// Allow a start before any cluster exists. Without this flag, a config directory without a
    /// usable client file is a problem, and meshkeep is neither synced nor healthy
    #[arg(long)]
    pub allow_no_clusters: bool,

    /// Maximum number of clusters in the mesh: 255 or 511
    #[arg(long, value_name = "COUNT", default_value = "255", value_parser = parse_max_connected_clusters)]
    pub max_connected_clusters: MaxConnectedClusters,

    /// Accept this Host header in addition to the bound addresses and loopback names; repeatable
    #[arg(long = "allowed-host", value_name = "NAME", value_parser = parse_host)]
    pub allowed_hosts: Vec<String>,

    /// Options of the etcd clients, as in Cilium: etcd.qps=20, etcd.bootstrapQps, etcd.maxInflight,
    /// etcd.limit=256, etcd.keepaliveHeartbeat=15s, etcd.keepaliveTimeout=25s; repeatable
    #[arg(long = "kvstore-opt", value_name = "KEY=VALUE", value_parser = KvstoreOption::parse)]
    pub kvstore_options: Vec<KvstoreOption>,

    /// Maximum age of tombstones: a stream cannot continue from an older position
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_duration)]
    pub tombstone_max_age: Duration,

    /// Maximum number of tombstones: the oldest are removed first
    #[arg(long, value_name = "COUNT", default_value = "1000000")]
    pub tombstone_max_count: u64,

    /// History of the mirror: the earlier versions of all entries.
    #[command(flatten)]
    pub history: HistorySettings,

    /// Remove the services, service exports and endpoint slices of a cluster that cannot be read
    /// for this time; 0 keeps them
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration)]
    pub cache_ttl: Duration,

    /// Receivers of findings and traces.
    #[command(flatten)]
    pub receivers: ReceiverSettings,

    /// Detail of /metrics: default has for each cluster only what the alerts and the dashboard
    /// need; full has every metric, and one series for each kind of each cluster
    #[arg(long, value_name = "DETAIL", default_value = "default", value_parser = parse_metrics_detail)]
    pub metrics_detail: MetricsDetail,

    /// Limits on memory.
    #[command(flatten)]
    pub memory: MemorySettings,

    /// Protection of the HTTP server.
    #[command(flatten)]
    pub security: SecuritySettings,

    /// Format of the log, which goes to standard error
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,

    /// Minimum level of the log; RUST_LOG can be more specific and takes precedence
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: LogLevel,

    /// Check all settings and files, report errors, and exit with code 0 if there are none
    #[arg(long)]
    pub check_config: bool,

    /// End as on SIGTERM when standard input ends. `meshkeep demo` starts this process with a pipe
    /// and holds its other end
    #[arg(long, hide = true)]
    pub end_with_stdin: bool,

    /// Waits and intervals, which tests shorten.
    #[command(flatten)]
    pub timing: TimingSettings,
}

/// Minimum of `--decoded-max-bytes`: the decoded size of the largest endpoint slice, which has 16
/// MiB unpacked and five times that when decoded, and a margin.
const DECODED_BYTES_MIN: u64 = 96 << 20;

/// Limits on memory, whatever remote clusters write.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MemorySettings {
    /// Maximum number of keys of a cluster, including those derived from its nodes: meshkeep does
    /// not read a larger cluster and keeps its last known state
    #[arg(long, value_name = "COUNT", default_value = "2000000", value_parser = parse_count)]
    pub cluster_max_keys: u64,

    /// Maximum size of a cluster's keys and values: meshkeep does not read a larger cluster
    #[arg(long, value_name = "BYTES", default_value = "1GiB", value_parser = parse_bytes)]
    pub cluster_max_bytes: u64,

    /// Memory for large values while they are decoded: further requests wait, or get an error and a
    /// time to retry
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = parse_bytes)]
    pub decoded_max_bytes: u64,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Minimum level of logged events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures that keep meshkeep from working.
    Error,
    /// Also conditions that need attention.
    Warn,
    /// Also changes of state.
    Info,
    /// Also the reasons for them.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Returns the name that log filters use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Error of settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// A bad flag or value, or a request for help, as clap reports it.
    #[error(transparent)]
    Arguments(Box<clap::Error>),
    /// A bad value from the environment or the file. It is not shown, because it may be a misplaced
    /// secret.
    #[error("{origin} has an invalid value for {option}: {reason}")]
    Value {
        /// Variable or key of the value.
        origin: String,
        /// Option that has the value.
        option: String,
        /// Description of valid values.
        reason: String,
    },
    /// The config file cannot be used.
    #[error("config file {}: {reason}", path.display())]
    ConfigFile {
        /// Path of the file.
        path: PathBuf,
        /// Reason without quoted content.
        reason: String,
    },
    /// A switch has another value than true or false.
    #[error("{origin} must be true or false")]
    NotASwitch {
        /// Variable or key of the value.
        origin: String,
    },
    /// Two options contradict each other.
    #[error("{0}")]
    Conflict(String),
}

impl From<clap::Error> for UsageError {
    fn from(error: clap::Error) -> Self {
        Self::Arguments(Box::new(error))
    }
}

impl Settings {
    /// Parses the arguments of the command, which begin with its name, and completes them from the
    /// environment and the config file. Also returns the value and the origin of each option.
    ///
    /// # Errors
    /// Returns a [`UsageError`] that names the flag, variable or key.
    pub fn resolve(
        command: &Command,
        arguments: &[OsString],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, Vec<Setting>), UsageError> {
        Self::resolve_with::<()>(command, arguments, environment).map(|(settings, (), effective_settings)| (settings, effective_settings))
    }

    /// Resolves the settings of a command that also has other options, `T`.
    ///
    /// # Errors
    /// Returns a [`UsageError`] that names the flag, variable or key.
    pub fn resolve_with<T: FromArgMatches>(
        command: &Command,
        arguments: &[OsString],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, T, Vec<Setting>), UsageError> {
        let layered = layers::parse_layered(command, arguments, &environment)?;
        let settings = Self::from_arg_matches(&layered.matches)?;
        settings.check()?;
        let others = T::from_arg_matches(&layered.matches)?;
        let effective_settings = effective::list_settings(command, &layered, &settings.kvstore_options, environment);
        Ok((settings, others, effective_settings))
    }

    /// Returns warnings about these settings: addresses that are open to other machines, and
    /// unknown variables with our prefix.
    #[must_use]
    pub fn warnings<'a>(&self, command: &Command, variables: impl Iterator<Item = &'a str>) -> Vec<String> {
        let open = self.listen.iter().filter(|address| !address.is_local() && !self.security.encrypts_and_authenticates());
        let etcd = self.etcd_listen.iter().filter(|address| !address.is_local() && !self.security.requires_client_certificates());
        let open = open.chain(etcd).map(|address| format!("--insecure: every client that can reach {address} can read everything"));
        let unknown = layers::unknown_variables(command, variables);
        open.chain(unknown.map(|name| format!("meshkeep has no environment variable {name}: is it misspelt? See meshkeep serve --help")))
            .collect()
    }

    /// Returns the kvstore options with their defaults.
    #[must_use]
    pub fn kvstore(&self) -> KvstoreOptions {
        KvstoreOptions::with(&self.kvstore_options)
    }

    /// Returns the clusters whose files in the config directory are ignored.
    #[must_use]
    pub fn clusters_without_file(&self) -> BTreeSet<ClusterName> {
        self.cluster_name.iter().chain(&self.ignore_cluster).cloned().collect()
    }

    /// Checks the rules between options.
    fn check(&self) -> Result<(), UsageError> {
        let id_max = self.max_connected_clusters.id_max();
        if self.cluster_id.0 > id_max {
            return conflict(format!("--cluster-id {} is above {id_max}, the limit that --max-connected-clusters sets", self.cluster_id));
        }
        if self.timing.cluster.backoff_min > self.timing.cluster.backoff_max {
            return conflict("--backoff-min must not be longer than --backoff-max".into());
        }
        if self.local_etcd.is_some() && self.cluster_name.is_none() {
            return conflict("--local-etcd needs --cluster-name, the name that the own cluster has in its cluster config".into());
        }
        if self.memory.decoded_max_bytes < DECODED_BYTES_MIN {
            return conflict(
                "--decoded-max-bytes must be at least 96MiB: the largest endpoint slice needs about 80 MiB when decoded".into(),
            );
        }
        self.receivers.check()?;
        self.check_ports()?;
        self.security.check()?;
        if let Some(address) = &self.etcd_listen {
            self.security.check_etcd(address)?;
        }
        match self.listen.iter().find(|address| !address.is_local()) {
            Some(address) if !self.security.encrypts_and_authenticates() && !self.security.insecure => conflict(format!(
                "other machines can reach --listen {address}: give --tls-cert and --tls-key, and --token-file or --client-ca; or listen on a loopback address; or allow every client to read everything with --insecure"
            )),
            _ => Ok(()),
        }
    }

    /// Checks that no two addresses need the same port or socket.
    fn check_ports(&self) -> Result<(), UsageError> {
        let listen = self.listen.iter().map(|address| ("--listen", address));
        let others = [("--health-listen", &self.health_listen), ("--etcd-listen", &self.etcd_listen)];
        let all: Vec<_> = listen.chain(others.into_iter().filter_map(|(flag, address)| Some((flag, address.as_ref()?)))).collect();
        for (index, (flag, address)) in all.iter().enumerate() {
            if let Some((earlier_flag, earlier)) = all[..index].iter().find(|(_, earlier)| earlier.conflicts_with(address)) {
                return conflict(format!("{earlier_flag} {earlier} and {flag} {address} need the same port or socket: give each its own"));
            }
        }
        Ok(())
    }
}

fn conflict(message: String) -> Result<(), UsageError> {
    Err(UsageError::Conflict(message))
}

// the errors of these parsers do not repeat the value, because clap shows it unless it is secret

pub(crate) fn parse_cluster_name(text: &str) -> Result<ClusterName, String> {
    ClusterName::parse(text)
        .map_err(|_| "must be 1 to 32 characters of a-z, 0-9 and '-', and begin and end with a letter or digit".to_owned())
}

/// Accepts any text, because an error would be shown with the text.
#[expect(clippy::unnecessary_wraps, reason = "the signature is clap's")]
fn parse_secret_url(text: &str) -> Result<SecretUrl, String> {
    Ok(SecretUrl::new(text))
}

fn parse_webhook_format(text: &str) -> Result<WebhookFormat, String> {
    WebhookFormat::from_api_name(text).ok_or_else(|| "must be json, alertmanager or cloudevents".to_owned())
}

fn parse_metrics_detail(text: &str) -> Result<MetricsDetail, String> {
    MetricsDetail::from_api_name(text).ok_or_else(|| "must be default or full".to_owned())
}

fn parse_count(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "must be a whole number above zero".to_owned())
}

pub(crate) fn parse_cluster_id(text: &str) -> Result<ClusterId, String> {
    let id_max = MaxConnectedClusters::Clusters511.id_max();
    let id = text.parse().ok().filter(|id| *id <= id_max);
    id.map(ClusterId).ok_or_else(|| format!("must be a number from 0 to {id_max}"))
}

pub(crate) fn parse_max_connected_clusters(text: &str) -> Result<MaxConnectedClusters, String> {
    text.parse().ok().and_then(MaxConnectedClusters::from_number).ok_or_else(|| "must be 255 or 511".to_owned())
}

/// Parses a host name as in a Host header, without a port.
fn parse_host(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    if text.is_empty() || !text.chars().all(fits) { Err("must be a host name or address".into()) } else { Ok(text.to_ascii_lowercase()) }
}

#[cfg(test)]
mod tests;

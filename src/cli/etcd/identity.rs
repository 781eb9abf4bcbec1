//! `meshkeep identity`: lists, looks up, allocates, releases and garbage-collects identities in an
//! etcd, like cilium-dbg and Cilium's operator.

use std::fmt::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::target::connected;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{print, print_json};
use crate::cli::terminal::progress::ProgressLine;
use crate::client_file::ClientFile;
use crate::config::parse_duration;
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument};
use crate::model::{ClusterId, MaxConnectedClusters, redacted_path};
use cilium_kvstore::allocator::{
    AllocateError, Allocator, AllocatorKey, AllocatorOptions, Backend, BackendError, CollectionLimits, EtcdBackend, Id, IdRange, StaleIds,
    StaleLocks,
};
use cilium_kvstore::{Session, SessionOptions};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum IdentityCommand {
    /// List all identities with their labels
    List {
        #[command(flatten)]
        etcd: IdentityEtcdOptions,
        /// Output format
        #[arg(short, long, value_name = "FORMAT", default_value = "text")]
        output: IdentityFormat,
    },
    /// Show the labels of a numeric identity, or the numeric identity of labels
    Get {
        /// A number, or labels as SOURCE:KEY=VALUE
        #[arg(value_name = "ID|LABEL", required = true)]
        selector: Vec<String>,
        #[command(flatten)]
        etcd: IdentityEtcdOptions,
    },
    /// Allocate an identity for labels, or reuse their existing one, and hold a reference until the
    /// lease ends
    Allocate {
        /// Labels as SOURCE:KEY=VALUE
        #[arg(value_name = "LABEL", required = true)]
        labels: Vec<String>,
        #[command(flatten)]
        range: RangeOptions,
        #[command(flatten)]
        etcd: IdentityEtcdOptions,
    },
    /// Delete a node's reference to the identity of labels
    Release {
        /// Labels as SOURCE:KEY=VALUE
        #[arg(value_name = "LABEL", required = true)]
        labels: Vec<String>,
        #[command(flatten)]
        etcd: IdentityEtcdOptions,
    },
    /// Delete the identities that no node refers to in two rounds, and the locks whose holders are
    /// stuck
    Gc {
        #[command(flatten)]
        range: RangeOptions,
        /// Time between the two rounds
        #[arg(long, value_name = "TIME", default_value = "15m", value_parser = parse_duration)]
        interval: Duration,
        #[command(flatten)]
        etcd: IdentityEtcdOptions,
    },
}

/// The etcd, and the node for which the command writes.
#[derive(Debug, Args)]
pub(in crate::cli) struct IdentityEtcdOptions {
    /// The etcd client file
    #[arg(long, value_name = "FILE")]
    etcd: PathBuf,
    /// Prefix of the identity keys
    #[arg(long, value_name = "PREFIX", default_value = "cilium/state/identities/v1")]
    base: String,
    /// Node whose references are written or deleted
    #[arg(long, value_name = "NAME", default_value = "meshkeep")]
    node: String,
    /// Maximum time to wait for the etcd
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
}

/// Range of identity numbers, given by the cluster that allocates from it.
#[derive(Debug, Args)]
pub(in crate::cli) struct RangeOptions {
    /// Id of the cluster, which determines the range of numbers; 0 for a cluster outside a mesh
    #[arg(long, value_name = "ID")]
    cluster_id: u32,
    /// The size of the mesh, 255 or 511
    #[arg(long, value_name = "NUMBER", default_value_t = 255)]
    max_connected_clusters: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum IdentityFormat {
    /// One line per identity
    Text,
    /// JSON
    Json,
}

impl RangeOptions {
    fn range(&self) -> Result<IdRange, Failure> {
        let max = MaxConnectedClusters::from_number(self.max_connected_clusters);
        let max =
            max.ok_or_else(|| Failure::usage(format!("--max-connected-clusters is {}, expected 255 or 511", self.max_connected_clusters)))?;
        let range = max.identities_of(ClusterId(self.cluster_id));
        let range = range.and_then(|range| IdRange::new((*range.start()).into(), (*range.end()).into()));
        range.ok_or_else(|| Failure::usage(format!("--cluster-id is {}, expected 0 to {}", self.cluster_id, max.id_max())))
    }
}

impl IdentityEtcdOptions {
    async fn open(&self) -> Result<Session, Failure> {
        let path = redacted_path(&self.etcd);
        let content =
            read_argument(&self.etcd, SMALL_FILE_BYTES_MAX).map_err(|error| Failure::usage(format!("cannot read {path}: {error}")))?;
        let file = ClientFile::parse(&content).map_err(|error| Failure::usage(format!("{path}: {error}")))?;
        let session = Session::start(file.config, SessionOptions::default(), CancellationToken::new());
        connected(&session, self.timeout).await.map(|()| session)
    }

    fn backend(&self, session: &Session) -> EtcdBackend {
        EtcdBackend::new(session.clone(), &self.base, &self.node)
    }
}

/// Parses labels of the command line.
fn parse_labels(labels: &[String]) -> Result<AllocatorKey, Failure> {
    let parts: Result<Vec<_>, _> = labels
        .iter()
        .map(|label| {
            let (name, value) = label.split_once('=').ok_or(label)?;
            if name.contains(';') || value.contains(';') || !name.contains(':') { Err(label) } else { Ok((name, value)) }
        })
        .collect();
    parts
        .map(AllocatorKey::from_labels)
        .map_err(|label| Failure::usage(format!("{label:?} is not a label: use SOURCE:KEY=VALUE, such as k8s:app=cart")))
}

fn backend_failure(error: &BackendError) -> Failure {
    Failure::new(error.to_string())
}

fn allocation_failure(error: &AllocateError) -> Failure {
    Failure::new(error.to_string())
}

/// A command whose arguments were checked before any etcd is contacted.
enum IdentityTask {
    List(IdentityFormat),
    Get(IdentitySelector),
    Allocate(AllocatorKey, IdRange),
    Release(AllocatorKey),
    Collect(IdRange, Duration),
}

/// Identity selected by number or by labels.
enum IdentitySelector {
    Number(Id),
    Labels(AllocatorKey),
}

impl IdentityCommand {
    fn check_arguments(&self) -> Result<(IdentityTask, &IdentityEtcdOptions), Failure> {
        Ok(match self {
            Self::List { output, etcd } => (IdentityTask::List(*output), etcd),
            Self::Get { selector, etcd } => {
                let number = selector.first().filter(|_| selector.len() == 1).and_then(|selector| Id::parse(selector));
                (
                    IdentityTask::Get(
                        number
                            .map_or_else(|| parse_labels(selector).map(IdentitySelector::Labels), |id| Ok(IdentitySelector::Number(id)))?,
                    ),
                    etcd,
                )
            }
            Self::Allocate { labels, range, etcd } => (IdentityTask::Allocate(parse_labels(labels)?, range.range()?), etcd),
            Self::Release { labels, etcd } => (IdentityTask::Release(parse_labels(labels)?), etcd),
            Self::Gc { range, interval, etcd } => (IdentityTask::Collect(range.range()?, *interval), etcd),
        })
    }
}

pub(in crate::cli) async fn run(command: &IdentityCommand) -> Result<ExitStatus, Failure> {
    let (task, etcd) = command.check_arguments()?;
    let session = etcd.open().await?;
    let backend = etcd.backend(&session);
    let result = match task {
        IdentityTask::List(output) => list(backend, etcd.timeout, output).await,
        IdentityTask::Get(selector) => get(&backend, selector).await,
        IdentityTask::Allocate(key, range) => allocate(backend, etcd.timeout, &key, range).await,
        IdentityTask::Release(key) => release(&backend, &key, &etcd.node).await,
        IdentityTask::Collect(range, interval) => collect(backend, range, interval).await,
    };
    // this does not revoke the lease: an allocated identity remains until its lease expires
    session.close().await;
    result
}

async fn list(backend: EtcdBackend, limit: Duration, output: IdentityFormat) -> Result<ExitStatus, Failure> {
    let options = AllocatorOptions { sync_interval: None, ..AllocatorOptions::default() };
    let allocator = Allocator::start(backend, options).map_err(|error| Failure::usage(error.to_string()))?;
    allocator.wait_for_initial_sync(limit).await.map_err(|error| allocation_failure(&error))?;
    let mut all = Vec::with_capacity(allocator.count());
    allocator.for_each(|id, key| all.push((id, key.clone())));
    allocator.delete().await;
    all.sort();
    match output {
        IdentityFormat::Text => {
            let mut text = String::new();
            for (id, key) in &all {
                let _ = writeln!(text, "{id}\t{key}");
            }
            print(&text)?;
        }
        IdentityFormat::Json => {
            let labels =
                |key: &AllocatorKey| key.labels().map(|(name, value)| (name.to_owned(), value.into())).collect::<serde_json::Map<_, _>>();
            let all: Vec<_> = all.iter().map(|(id, key)| json!({"id": id.number(), "labels": labels(key)})).collect();
            print_json(&json!(all))?;
        }
    }
    Ok(ExitStatus::Success)
}

async fn get(backend: &EtcdBackend, selector: IdentitySelector) -> Result<ExitStatus, Failure> {
    let (text, selector) = match selector {
        IdentitySelector::Number(id) => {
            (backend.get_by_id(id).await.map_err(|error| backend_failure(&error))?.map(|key| key.to_string()), id.to_string())
        }
        IdentitySelector::Labels(key) => {
            (backend.get(&key).await.map_err(|error| backend_failure(&error))?.map(|id| id.to_string()), key.to_string())
        }
    };
    match text {
        Some(text) => print(&format!("{text}\n")).map(|()| ExitStatus::Success),
        None => Err(Failure::new(format!("there is no identity {selector}"))),
    }
}

async fn allocate(backend: EtcdBackend, limit: Duration, key: &AllocatorKey, range: IdRange) -> Result<ExitStatus, Failure> {
    let options = AllocatorOptions { range, sync_interval: None, allocation_max: limit, ..AllocatorOptions::default() };
    let allocator = Allocator::start(backend, options).map_err(|error| Failure::usage(error.to_string()))?;
    let allocated = allocator.allocate(key).await;
    allocator.delete().await;
    let allocation = allocated.map_err(|error| allocation_failure(&error))?;
    print(&format!("{}\n", allocation.id)).map(|()| ExitStatus::Success)
}

async fn release(backend: &EtcdBackend, key: &AllocatorKey, node: &str) -> Result<ExitStatus, Failure> {
    if backend.delete_reference(key).await.map_err(|error| backend_failure(&error))? {
        return Ok(ExitStatus::Success);
    }
    Err(Failure::new(format!("node {node} does not refer to the identity of {key}: set --node to a node that does")))
}

async fn collect(backend: EtcdBackend, range: IdRange, interval: Duration) -> Result<ExitStatus, Failure> {
    // default of Cilium's operator: 2,500 per minute (`--identity-gc-rate-limit`)
    let deletes_per_minute = NonZeroU32::new(2_500).unwrap_or(NonZeroU32::MIN);
    let limits = CollectionLimits { range, deletes_per_minute };
    let allocator = Allocator::for_collection(backend, AllocatorOptions::default()).map_err(|error| Failure::usage(error.to_string()))?;
    let first = allocator.run_gc(&StaleIds::new(), &limits).await.map_err(|error| backend_failure(&error))?;
    let locks = allocator.run_locks_gc(&StaleLocks::new()).await.map_err(|error| backend_failure(&error))?;
    let progress = ProgressLine::start("waiting for the second round");
    sleep(interval).await;
    drop(progress);
    let second = allocator.run_gc(&first.stale, &limits).await.map_err(|error| backend_failure(&error))?;
    let locks = allocator.run_locks_gc(&locks.held).await.map_err(|error| backend_failure(&error))?;
    let mut text = String::new();
    for id in &second.deleted {
        let _ = writeln!(text, "deleted {id}");
    }
    let _ = writeln!(text, "{} identities remain; deleted {} identities and {} locks", second.alive, second.deleted.len(), locks.deleted);
    print(&text)?;
    Ok(ExitStatus::Success)
}

//! The face of the library: everything that `api` may ask.
//!
//! A [`Handle`] gives [`Reading`]s: immutable snapshots that answer lookups without waiting for the writer and without
//! disturbing it. While the store is still loading a reading waits, up to a bound, and then says so, unless it is asked for one thing that the
//! store answers at once; it is never partial (docs/develop/invariants.md, 9). Deliberately lacks: HTTP, JSON, and any way to change something but to have the
//! writer announce what was found wrong.

mod early;
mod explain;
mod facet;
mod filter;
mod findings_door;
mod global_services;
mod miss;
mod no_clusters;
mod raw;
mod reading;
mod reflected;
mod reflection;
mod scan;
mod seek;
mod selector;
mod slice;
mod spread;
mod subscribe;
mod survey;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use crate::commit::PersistState;
use crate::commit::{DecodedBudget, Published, Subscriber};
use crate::model::{ClusterName, ClusterStatus, DirectoryState, EtcdCounts, LogTail, MaxConnectedClusters, Scope, Setting, Times};

pub use crate::commit::{ChangeCounts, NoDecodedRoom};
pub use crate::model::IdentityScope;
pub use crate::view::{
    Affinity, BackendPort, CONFLICT_REASONS, ExportConflict, GlobalBackend, GlobalService, LookupMatch, MergedExports, RawPlace,
    SelectionRule, ServiceShare, Weakness,
};
pub use early::{Early, EarlyWatch};
pub use explain::{Merit, Verdict};
pub(crate) use facet::{Facet, concerns_all, facets_of};
pub use filter::Filter;
pub use findings_door::FindingsDoor;
pub use global_services::{LargeService, Selected, ServiceEntry};
pub use miss::Miss;
pub use no_clusters::ClusterFiles;
pub use raw::{RawChange, RawPast};
pub use reading::{ClusterReading, Origin, REJECTED_COUNTED_MAX, Reading, ResourceReading, SourceMeta};
pub use reflection::{Reflection, ReflectionDoor};
pub use scan::Scanned;
pub use selector::LabelSelector;
pub use slice::{Allowance, Slice, Spent};
pub(crate) use subscribe::LOOKED_AT_MAX;
pub use subscribe::{BackendsPatch, ByteCount, Departure, Item, LookBounds, Place, ResetReason, Stage, Start, Subscription, SyncMode};
pub use survey::{Finding, Look, Survey};

/// How long a request waits for the store to load (docs/use/api/errors.md: 2 s, then 503).
const LOADING_WAIT_MAX: Duration = Duration::from_secs(2);

/// The newest word of every cluster's task, by cluster.
pub type ClusterBoard = Arc<BTreeMap<ClusterName, watch::Receiver<ClusterStatus>>>;

/// What the process says of itself, beside the mirror.
#[derive(Debug, Clone)]
pub struct About {
    /// When it started.
    pub started: Instant,
    /// Set once the store is loaded.
    pub loaded: watch::Receiver<Option<Subscriber>>,
    /// Each cluster that has a file.
    pub clusters: watch::Receiver<ClusterBoard>,
    /// The config directory.
    pub directory: watch::Receiver<DirectoryState>,
    /// The own cluster, where it is named.
    pub own_cluster: Option<ClusterName>,
    /// The size of the mesh.
    pub max_connected_clusters: MaxConnectedClusters,
    /// How storing goes.
    pub persistence: watch::Receiver<PersistState>,
    /// The store that was found at the start.
    pub store: watch::Receiver<StoreReport>,
    /// Lines of the log that nobody can read.
    pub lost_lines: LostLines,
}

/// How many lines of the log were lost so far. Cheap to clone.
#[derive(Clone)]
pub struct LostLines(Arc<dyn Fn() -> u64 + Send + Sync>);

impl LostLines {
    /// Those that `count` counts.
    pub fn new(count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(count))
    }
}

/// What measures the data directory, by class of files. Cheap to clone.
#[derive(Clone)]
pub struct DiskBytes(Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>);

impl DiskBytes {
    /// As `measure` says.
    pub fn new(measure: impl Fn() -> Vec<(&'static str, u64)> + Send + Sync + 'static) -> Self {
        Self(Arc::new(measure))
    }
}

impl fmt::Debug for DiskBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskBytes").finish_non_exhaustive()
    }
}

impl Default for LostLines {
    /// None, ever.
    fn default() -> Self {
        Self::new(|| 0)
    }
}

impl fmt::Debug for LostLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LostLines").field(&(self.0)()).finish()
    }
}

/// What became of the store at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Where a store that could not be used was put, and why.
    pub set_aside: Option<(String, String)>,
    /// How many records could not be read and are fetched again.
    pub damaged_count: u64,
    /// How many keys were restored.
    pub restored_count: u64,
    /// What of the last start is not there any more, in words: a store that was set aside, records that cannot be read, an end that is gone.
    pub losses: Vec<String>,
}

/// Everything that may be asked. One pointer: each request has a copy.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

/// What a [`Handle`] points to.
#[derive(Debug, Clone)]
struct Shared {
    about: About,
    early: Option<EarlyWatch>,
    decoded: DecodedBudget,
    settings: Arc<[Setting]>,
    disk: Option<DiskBytes>,
    findings: FindingsDoor,
    reflection: ReflectionDoor,
    log: LogTail,
    etcd: Arc<EtcdCounts>,
    cluster_files: ClusterFiles,
    no_clusters_clock: no_clusters::NoClustersClock,
}

/// The store is still loading after the longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is still loading: try again in a moment")]
pub struct Loading;

impl Handle {
    /// A face over what the runtime built.
    #[must_use]
    pub fn new(about: About) -> Self {
        Self(Arc::new(Shared {
            about,
            early: None,
            decoded: DecodedBudget::default(),
            settings: Arc::default(),
            disk: None,
            findings: FindingsDoor::default(),
            reflection: ReflectionDoor::default(),
            log: LogTail::default(),
            etcd: Arc::default(),
            cluster_files: ClusterFiles::default(),
            no_clusters_clock: no_clusters::NoClustersClock::default(),
        }))
    }

    /// With some of it changed.
    fn with(mut self, change: impl FnOnce(&mut Shared)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// This face, taking room for large decoded values from what the whole process shares.
    #[must_use]
    pub fn with_decoded(self, decoded: DecodedBudget) -> Self {
        self.with(|shared| shared.decoded = decoded)
    }

    /// This face, which can say by what settings it runs.
    #[must_use]
    pub fn with_settings(self, settings: Vec<Setting>) -> Self {
        self.with(|shared| shared.settings = settings.into())
    }

    /// This face, which can say what was logged lately.
    #[must_use]
    pub fn with_log(self, log: LogTail) -> Self {
        self.with(|shared| shared.log = log)
    }

    /// What the etcd face counts of its calls.
    #[must_use]
    pub fn etcd_counts(&self) -> &EtcdCounts {
        &self.0.etcd
    }

    /// The newest lines of the log, the oldest of them first, and how many older ones there were.
    #[must_use]
    pub fn log_lines(&self) -> (Vec<String>, u64) {
        self.0.log.lines()
    }

    /// The settings in force.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.0.settings
    }

    /// The newest snapshot; waits for the store to load, 2 s at most.
    ///
    /// # Errors
    /// [`Loading`] after that.
    pub async fn reading(&self) -> Result<Reading, Loading> {
        self.reading_until(Instant::now() + LOADING_WAIT_MAX).await
    }

    async fn reading_until(&self, deadline: Instant) -> Result<Reading, Loading> {
        let mut loaded = self.0.about.loaded.clone();
        let waited = tokio::time::timeout_at(deadline.into(), loaded.wait_for(Option::is_some)).await;
        let subscriber = waited.ok().and_then(Result::ok).and_then(|subscriber| subscriber.clone()).ok_or(Loading)?;
        Ok(self.read(subscriber.current()))
    }

    /// The newest snapshot, or `None` while the store loads.
    #[must_use]
    pub fn try_reading(&self) -> Option<Reading> {
        let subscriber = self.0.about.loaded.borrow().clone()?;
        Some(self.read(subscriber.current()))
    }

    /// A signal that changes with every new snapshot; waits for the store like [`Handle::reading`].
    ///
    /// # Errors
    /// [`Loading`] while there is none.
    pub async fn signal(&self) -> Result<watch::Receiver<crate::model::Sequence>, Loading> {
        self.reading().await?;
        self.0.about.loaded.borrow().as_ref().map(Subscriber::signal).ok_or(Loading)
    }

    /// Waits for the store to load, however long, for callers that follow the mirror; then the signal of [`Handle::signal`]. `None` where it never
    /// will.
    pub async fn signal_once_loaded(&self) -> Option<watch::Receiver<crate::model::Sequence>> {
        let mut loaded = self.0.about.loaded.clone();
        let loaded = loaded.wait_for(Option::is_some).await.ok()?;
        loaded.as_ref().map(Subscriber::signal)
    }

    /// Whether lookups answer: everything of the store is in memory.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.0.about.loaded.borrow().is_some()
    }

    /// How long the process has been running.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.about.started.elapsed()
    }

    /// The config directory.
    #[must_use]
    pub fn directory(&self) -> DirectoryState {
        self.0.about.directory.borrow().clone()
    }

    /// How storing goes.
    #[must_use]
    pub fn persistence(&self) -> PersistState {
        self.0.about.persistence.borrow().clone()
    }

    /// The most that each queue ever held, by name; empty while the store loads.
    #[must_use]
    pub fn queue_marks(&self) -> Vec<(&'static str, usize)> {
        let loaded = self.0.about.loaded.borrow();
        let Some(marks) = loaded.as_ref().map(Subscriber::marks) else { return Vec::new() };
        vec![
            ("commit", marks.commands.get()),
            ("commit_bytes", marks.command_bytes.get()),
            ("ring_bytes", marks.ring_bytes.get()),
            ("persist", marks.changes.get()),
            ("persist_bytes", marks.change_bytes.get()),
            ("directory", marks.directory_events.get()),
        ]
    }

    /// How long each step of a change's way takes, by name; empty while the store loads.
    #[must_use]
    pub fn step_times(&self) -> Vec<(&'static str, Times)> {
        let loaded = self.0.about.loaded.borrow();
        let Some(marks) = loaded.as_ref().map(Subscriber::marks) else { return Vec::new() };
        let stored = marks.stored().map(|stored| ("durable", stored.times()));
        [("commit", marks.commit.times()), ("publish", marks.publish.times())].into_iter().chain(stored).collect()
    }

    /// How many changes each kind of each cluster had since the start; empty while the store loads.
    #[must_use]
    pub fn changes_counted(&self) -> BTreeMap<Scope, ChangeCounts> {
        self.0.about.loaded.borrow().as_ref().map(|loaded| loaded.marks().changes_counted()).unwrap_or_default()
    }

    /// How many bytes of the disk each class of files of the data directory takes. Asks the file system.
    #[must_use]
    pub fn disk_bytes(&self) -> Vec<(&'static str, u64)> {
        self.0.disk.as_ref().map(|DiskBytes(measure)| measure()).unwrap_or_default()
    }

    /// This face, which can say what the data directory takes.
    #[must_use]
    pub fn with_disk_bytes(self, disk: DiskBytes) -> Self {
        self.with(|shared| shared.disk = Some(disk))
    }

    /// Whether the newest changes could not be written to the log at once.
    #[must_use]
    pub fn is_log_failing(&self) -> bool {
        let loaded = self.0.about.loaded.borrow();
        loaded.as_ref().is_some_and(|subscriber| subscriber.marks().log_fails.load(Ordering::Relaxed))
    }

    /// How many lines of the log were lost: they could not be written, or too many waited for a reader that sleeps.
    #[must_use]
    pub fn lost_lines(&self) -> u64 {
        (self.0.about.lost_lines.0)()
    }

    /// What became of the store at the start.
    #[must_use]
    pub fn store(&self) -> StoreReport {
        self.0.about.store.borrow().clone()
    }

    fn read(&self, published: Arc<Published>) -> Reading {
        let board = Arc::clone(&self.0.about.clusters.borrow());
        let reading = Reading::new(published, board).with_decoded(self.0.decoded.clone());
        reading.within(self.0.about.own_cluster.clone(), self.0.about.max_connected_clusters)
    }
}

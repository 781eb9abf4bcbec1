//! The interface of the mirror for the APIs, findings and `reflect`.
//!
//! A [`Handle`] provides [`Reading`]s: immutable snapshots that answer queries without waiting for
//! the committer. While the store loads, a request for a reading waits for up to 2 s and then
//! fails. Only a single question that the store can answer at once need not wait. A reading is
//! never partial (docs/develop/invariants.md, 9). The mirror cannot be changed through a handle,
//! except that findings and heartbeats are sent to the committer.

mod answers;
mod early;
mod findings_door;
mod follower;
mod no_clusters;
mod raw;
mod reading;
mod reflected;
mod reflection;
mod scan;
mod selection;
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
use crate::instruments::{EtcdCounts, HistogramSnapshot, LogTail};
use crate::model::{ClusterName, ClusterStatus, DirectoryState, MaxConnectedClusters, Scope, Setting};

pub use crate::commit::{ChangeCounts, Changed, NoDecodedRoom};
pub use crate::feed::Announcement;
pub use crate::model::IdentityScope;
pub use crate::view::{
    Affinity, BackendPort, CONFLICT_REASONS, ExportConflict, GlobalBackend, GlobalService, LookupMatch, MergedExports, RankReason, RawKey,
    SelectionRule, ServiceShare,
};
pub use answers::explain::{Merit, Verdict};
pub use answers::global_services::{LargeService, Selected, ServiceEntry};
pub use answers::miss::Miss;
pub use early::{Early, EarlyWatch};
pub use findings_door::FindingsDoor;
pub use follower::{Expired, Follower, NewestChanges};
pub use no_clusters::ClusterFiles;
pub use raw::{RawChange, RawPast};
pub use reading::{ClusterReading, Origin, REJECTED_COUNTED_MAX, Reading, ResourceReading, SourceMeta};
pub use reflection::{Reflection, ReflectionDoor};
pub use scan::Scanned;
pub use scan::slice::{Allowance, Slice, Spent};
pub(crate) use selection::facet::{Facet, concerns_all, facets_of};
pub use selection::filter::Filter;
pub use selection::selector::LabelSelector;
pub(crate) use subscribe::LOOKED_AT_MAX;
pub use subscribe::{BackendsPatch, ByteCount, Departure, Item, LookBounds, Place, ResetReason, Stage, Start, Subscription, SyncMode};
pub use survey::{Finding, Look, Survey};

/// Maximum time that a request waits for the store to load (docs/use/api/errors.md: 2 s, then 503).
const LOADING_WAIT_MAX: Duration = Duration::from_secs(2);

/// Status of every cluster, by name.
pub type ClusterBoard = Arc<BTreeMap<ClusterName, watch::Receiver<ClusterStatus>>>;

/// State of the process besides the mirror.
#[derive(Debug, Clone)]
pub struct About {
    /// Start of the process.
    pub started: Instant,
    /// Access to the mirror, set once the store is loaded.
    pub loaded: watch::Receiver<Option<Subscriber>>,
    /// Status of each cluster with a client file.
    pub clusters: watch::Receiver<ClusterBoard>,
    /// State of the config directory.
    pub directory: watch::Receiver<DirectoryState>,
    /// Name of the own cluster, if it is set.
    pub own_cluster: Option<ClusterName>,
    /// Maximum number of clusters in the mesh.
    pub max_connected_clusters: MaxConnectedClusters,
    /// State of storing.
    pub persistence: watch::Receiver<PersistState>,
    /// Report about the store that was found at the start.
    pub store: watch::Receiver<StoreReport>,
    /// Counter of lost log lines.
    pub lost_lines: LostLines,
}

/// Counter of log lines that were lost since the start. Cheap to clone.
#[derive(Clone)]
pub struct LostLines(Arc<dyn Fn() -> u64 + Send + Sync>);

impl LostLines {
    /// Creates a counter that calls `count`.
    pub fn new(count: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(count))
    }
}

/// Measurement of the data directory by class of files. Cheap to clone.
#[derive(Clone)]
pub struct DiskBytes(Arc<dyn Fn() -> Vec<(&'static str, u64)> + Send + Sync>);

impl DiskBytes {
    /// Creates a measurement that calls `measure`.
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
    /// Always zero.
    fn default() -> Self {
        Self::new(|| 0)
    }
}

impl fmt::Debug for LostLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LostLines").field(&(self.0)()).finish()
    }
}

/// Report about the store that was found at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// Path to which an unusable store was moved, and the reason.
    pub set_aside: Option<(String, String)>,
    /// Number of records that could not be read and are fetched again.
    pub damaged_count: u64,
    /// Number of restored keys.
    pub restored_count: u64,
    /// Losses since the last start, as text: a store that was set aside, unreadable records, a
    /// missing end of the log.
    pub losses: Vec<String>,
}

/// Access to the mirror and to the state of the process. A single pointer, of which each request
/// has a copy.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

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

/// Error: the store is still loading after the longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is still loading: try again in a few seconds")]
pub struct Loading;

impl Handle {
    /// Creates a handle for what the runtime has built.
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

    fn with(mut self, change: impl FnOnce(&mut Shared)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets the memory for large decoded values, which the whole process shares.
    #[must_use]
    pub fn with_decoded(self, decoded: DecodedBudget) -> Self {
        self.with(|shared| shared.decoded = decoded)
    }

    /// Sets the settings in force.
    #[must_use]
    pub fn with_settings(self, settings: Vec<Setting>) -> Self {
        self.with(|shared| shared.settings = settings.into())
    }

    /// Sets the newest lines of the log.
    #[must_use]
    pub fn with_log(self, log: LogTail) -> Self {
        self.with(|shared| shared.log = log)
    }

    /// Returns the call counters of the etcd API.
    #[must_use]
    pub fn etcd_counts(&self) -> &EtcdCounts {
        &self.0.etcd
    }

    /// Returns the newest lines of the log, oldest first, and the number of earlier lines.
    #[must_use]
    pub fn log_lines(&self) -> (Vec<String>, u64) {
        self.0.log.lines()
    }

    /// Returns the settings in force.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.0.settings
    }

    /// Returns the newest snapshot. Waits up to 2 s for the store to load.
    ///
    /// # Errors
    /// [`Loading`] after the wait.
    pub async fn reading(&self) -> Result<Reading, Loading> {
        self.reading_until(Instant::now() + LOADING_WAIT_MAX).await
    }

    async fn reading_until(&self, deadline: Instant) -> Result<Reading, Loading> {
        let mut loaded = self.0.about.loaded.clone();
        let waited = tokio::time::timeout_at(deadline.into(), loaded.wait_for(Option::is_some)).await;
        let subscriber = waited.ok().and_then(Result::ok).and_then(|subscriber| subscriber.clone()).ok_or(Loading)?;
        Ok(self.read(subscriber.current()))
    }

    /// Returns the newest snapshot, or `None` while the store loads.
    #[must_use]
    pub fn try_reading(&self) -> Option<Reading> {
        let subscriber = self.0.about.loaded.borrow().clone()?;
        Some(self.read(subscriber.current()))
    }

    /// Returns a signal that changes with every new snapshot. Waits for the store like
    /// [`Handle::reading`].
    ///
    /// # Errors
    /// [`Loading`] after the wait.
    pub async fn signal(&self) -> Result<watch::Receiver<crate::model::Sequence>, Loading> {
        self.reading().await?;
        self.0.about.loaded.borrow().as_ref().map(Subscriber::signal).ok_or(Loading)
    }

    /// Returns the signal of [`Handle::signal`], and waits for the store without a limit. For
    /// callers that follow the mirror. `None` if the store will never be loaded.
    pub async fn signal_once_loaded(&self) -> Option<watch::Receiver<crate::model::Sequence>> {
        let mut loaded = self.0.about.loaded.clone();
        let loaded = loaded.wait_for(Option::is_some).await.ok()?;
        loaded.as_ref().map(Subscriber::signal)
    }

    /// Returns whether the store is loaded, so that every query is answered.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.0.about.loaded.borrow().is_some()
    }

    /// Returns the time since the start of the process.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.about.started.elapsed()
    }

    /// Returns the state of the config directory.
    #[must_use]
    pub fn directory(&self) -> DirectoryState {
        self.0.about.directory.borrow().clone()
    }

    /// Returns the state of storing.
    #[must_use]
    pub fn persistence(&self) -> PersistState {
        self.0.about.persistence.borrow().clone()
    }

    /// Returns the highest fill of each queue by name. Empty while the store loads.
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

    /// Returns the durations of each step of a change by name. Empty while the store loads.
    #[must_use]
    pub fn step_times(&self) -> Vec<(&'static str, HistogramSnapshot)> {
        let loaded = self.0.about.loaded.borrow();
        let Some(marks) = loaded.as_ref().map(Subscriber::marks) else { return Vec::new() };
        let stored = marks.stored().map(|stored| ("durable", stored.snapshot()));
        [("commit", marks.commit.snapshot()), ("publish", marks.publish.snapshot())].into_iter().chain(stored).collect()
    }

    /// Returns the number of changes since the start by cluster and kind. Empty while the store
    /// loads.
    #[must_use]
    pub fn changes_counted(&self) -> BTreeMap<Scope, ChangeCounts> {
        self.0.about.loaded.borrow().as_ref().map(|loaded| loaded.marks().changes_counted()).unwrap_or_default()
    }

    /// Measures the size of each class of files in the data directory. Reads from the file system.
    #[must_use]
    pub fn disk_bytes(&self) -> Vec<(&'static str, u64)> {
        self.0.disk.as_ref().map(|DiskBytes(measure)| measure()).unwrap_or_default()
    }

    /// Sets the measurement of the data directory.
    #[must_use]
    pub fn with_disk_bytes(self, disk: DiskBytes) -> Self {
        self.with(|shared| shared.disk = Some(disk))
    }

    /// Returns whether the newest changes cannot be written to the log.
    #[must_use]
    pub fn is_log_failing(&self) -> bool {
        let loaded = self.0.about.loaded.borrow();
        loaded.as_ref().is_some_and(|subscriber| subscriber.marks().log_fails.load(Ordering::Relaxed))
    }

    /// Returns the number of lost log lines: they could not be written, or too many waited for a
    /// slow reader.
    #[must_use]
    pub fn lost_lines(&self) -> u64 {
        (self.0.about.lost_lines.0)()
    }

    /// Returns the report about the store that was found at the start.
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

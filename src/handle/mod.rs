//! The interface of the mirror for the APIs, findings and `reflect`.
//!
//! A [`Handle`] provides [`Reading`]s: immutable snapshots that answer queries without waiting for
//! the committer. While the store loads, a request for a reading waits for up to 2 s and then
//! fails. A single query ([`Handle::reading_for`]) need not wait if the store can already answer
//! it. A reading never gives a partial answer (docs/develop/invariants.md, 9). The mirror cannot be
//! changed through a handle, except that findings and heartbeats are sent to the committer.

mod answers;
mod change_time;
mod early;
mod finding_index;
mod finding_sender;
mod follower;
mod keys;
mod missing_clusters;
mod parallel;
mod raw;
mod reading;
mod reflection;
mod scan;
mod selection;
mod status_version;
mod subscribe;
mod summary;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;

pub use crate::commit::PersistState;
use crate::commit::{DecodedBudget, MirrorSnapshot, PipelineMetrics, SnapshotReceiver};
pub use crate::history::{HistoryGap, HistoryStatus, SequenceAt, VersionSelection};
use crate::history::{HistoryReader, HistorySnapshot};
pub use crate::instruments::VerificationRequests;
use crate::instruments::{EtcdCounts, HistogramSnapshot, LogTail};
use crate::model::{ClusterName, ClusterStatus, DirectoryState, DumpSource, MaxConnectedClusters, Scope, Setting};

pub use crate::commit::{ChangeCounts, DecodedBudgetError, DecodedPermit, LatestChange};
pub use crate::feed::Announcement;
pub use crate::model::{Affinity, IdentityScope, Origin, ResetReason, SyncMode};
pub use crate::view::{
    BackendPort, ExportConflict, GlobalBackend, GlobalService, LookupMatch, MergedExports, NetworkEntries, RankReason, RawKey,
    ServiceMember,
};
pub use answers::explain::{EntryRole, UseReason};
pub use answers::global_services::{LargeService, SelectedBackends, ServiceEntry};
pub use answers::history::{EntryVersion, PastReading, VersionScan, VersionStart};
pub use answers::impact::{MissingPart, ServiceImpact};
pub use answers::miss::MissExplanation;
pub use answers::past::{LOOKUP_KINDS, PastExplanation, PastLookup, PastRecords, PastTime};
pub use answers::past_list::{PAST_LIST_BYTES_MAX, PastListStep, PastMirror};
pub use early::{EarlyLookup, EarlyLookupReceiver};
pub use finding_index::{Finding, FindingIndex, FindingIndexBuilder};
pub use finding_sender::FindingSender;
pub use follower::{Expired, Follower, NewestChanges};
pub use missing_clusters::ClientFileLocation;
pub use raw::{FormerValues, RawChange};
pub use reading::{ClusterReading, REJECTED_COUNTED_MAX, Reading, ResourceReading, SourceMeta};
pub use reflection::{Reflection, ReflectionSource};
pub use scan::ScanEnd;
pub use scan::work_slice::{ScanUsage, SliceLimit, WorkSlice};
pub use selection::filter::Filter;
pub(crate) use selection::filter_terms::{FilterTerm, filter_terms_of, may_match_any_filter};
pub use selection::search_text::SearchText;
pub use selection::selector::LabelSelector;
pub(crate) use subscribe::SCANNED_KEYS_MAX;
pub use subscribe::{
    BackendsPatch, BatchLimits, CatchUpStage, DeleteCause, EncodedByteCount, ResumePoint, StreamEvent, StreamStart, Subscription,
};
pub use summary::{ClusterSummary, MeshSummary};

/// Maximum time that a request waits for the store to load (docs/use/api/errors.md: 2 s, then 503).
const LOADING_WAIT_MAX: Duration = Duration::from_secs(2);

/// Status of every cluster, by name.
pub type ClusterStatuses = Arc<BTreeMap<ClusterName, watch::Receiver<ClusterStatus>>>;

/// State of the process, as opposed to the mirror.
#[derive(Debug, Clone)]
pub struct ProcessState {
    /// Start of the process.
    pub started: Instant,
    /// Access to the mirror, set once the store is loaded.
    pub loaded: watch::Receiver<Option<SnapshotReceiver>>,
    /// Status of each cluster with a client file.
    pub clusters: watch::Receiver<ClusterStatuses>,
    /// State of the config directory.
    pub directory: watch::Receiver<DirectoryState>,
    /// Name of the own cluster, if it is set.
    pub own_cluster: Option<ClusterName>,
    /// Maximum number of clusters in the mesh.
    pub max_connected_clusters: MaxConnectedClusters,
    /// State of storing.
    pub persistence: watch::Receiver<PersistState>,
    /// Report about the store as it was at the start.
    pub store: watch::Receiver<StoreReport>,
    /// Counter of lost log lines.
    pub lost_lines: Measurement<u64>,
}

impl ProcessState {
    /// Returns the state of a healthy process that has just started and has no clusters.
    #[must_use]
    pub fn without_clusters(loaded: watch::Receiver<Option<SnapshotReceiver>>) -> Self {
        Self {
            started: Instant::now(),
            loaded,
            clusters: watch::channel(ClusterStatuses::default()).1,
            directory: watch::channel(DirectoryState::default()).1,
            own_cluster: None,
            max_connected_clusters: MaxConnectedClusters::default(),
            persistence: watch::channel(PersistState::Healthy).1,
            store: watch::channel(StoreReport::default()).1,
            lost_lines: Measurement::default(),
        }
    }
}

/// Value that is measured whenever it is read. Cheap to clone.
#[derive(Clone)]
pub struct Measurement<T>(Arc<dyn Fn() -> T + Send + Sync>);

impl<T> Measurement<T> {
    /// Creates a measurement that calls `measure`.
    pub fn new(measure: impl Fn() -> T + Send + Sync + 'static) -> Self {
        Self(Arc::new(measure))
    }

    fn read(&self) -> T {
        (self.0)()
    }
}

impl<T: Default + 'static> Default for Measurement<T> {
    /// Always the default value.
    fn default() -> Self {
        Self::new(T::default)
    }
}

impl<T> fmt::Debug for Measurement<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Measurement").finish_non_exhaustive()
    }
}

/// Report about the store as it was at the start.
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

/// Access to the mirror and to the state of the process. Each request has a clone, which is a
/// single pointer.
#[derive(Debug, Clone)]
pub struct Handle(Arc<HandleState>);

#[derive(Debug, Clone)]
struct HandleState {
    process: ProcessState,
    early: Option<EarlyLookupReceiver>,
    decoded: DecodedBudget,
    settings: Arc<[Setting]>,
    disk: Measurement<Vec<(&'static str, u64)>>,
    findings: FindingSender,
    reflection: ReflectionSource,
    log: LogTail,
    etcd: Arc<EtcdCounts>,
    verification_requests: VerificationRequests,
    cluster_files: ClientFileLocation,
    /// The dump that filled the mirror.
    dump: Option<DumpSource>,
    missing_clusters_timer: missing_clusters::MissingClustersTimer,
    summary: summary::SummaryCache,
    status_version: status_version::StatusVersion,
    /// The history, once it is open.
    history: OnceLock<HistoryReader>,
}

/// Error: the store is still loading after the maximum wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the store is still loading: try again in a few seconds")]
pub struct StoreLoading;

impl Handle {
    /// Creates a handle from the parts that the runtime has built.
    #[must_use]
    pub fn new(process: ProcessState) -> Self {
        Self(Arc::new(HandleState {
            process,
            early: None,
            decoded: DecodedBudget::default(),
            settings: Arc::default(),
            disk: Measurement::default(),
            findings: FindingSender::default(),
            reflection: ReflectionSource::default(),
            log: LogTail::default(),
            etcd: Arc::default(),
            verification_requests: VerificationRequests::default(),
            cluster_files: ClientFileLocation::default(),
            dump: None,
            missing_clusters_timer: missing_clusters::MissingClustersTimer::default(),
            summary: summary::SummaryCache::default(),
            status_version: status_version::StatusVersion::default(),
            history: OnceLock::new(),
        }))
    }

    fn with(mut self, change: impl FnOnce(&mut HandleState)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// Sets the memory for large decoded values, which the whole process shares.
    #[must_use]
    pub fn with_decoded_budget(self, decoded: DecodedBudget) -> Self {
        self.with(|state| state.decoded = decoded)
    }

    /// Sets the settings in force.
    #[must_use]
    pub fn with_settings(self, settings: Vec<Setting>) -> Self {
        self.with(|state| state.settings = settings.into())
    }

    /// Sets the buffer that keeps the newest log lines.
    #[must_use]
    pub fn with_log(self, log: LogTail) -> Self {
        self.with(|state| state.log = log)
    }

    /// Sets the dump that filled the mirror.
    #[must_use]
    pub fn with_dump(self, dump: DumpSource) -> Self {
        self.with(|state| state.dump = Some(dump))
    }

    /// Returns the dump that filled the mirror. `None` if it has the state of etcds.
    #[must_use]
    pub fn dump(&self) -> Option<&DumpSource> {
        self.0.dump.as_ref()
    }

    /// Sets the history, which is open once the store is loaded. Only the first call has an effect.
    pub fn set_history(&self, history: HistoryReader) {
        drop(self.0.history.set(history));
    }

    /// Returns the history as it is now. `None` without a history, and while the store loads.
    fn history_snapshot(&self) -> Option<HistorySnapshot> {
        self.0.history.get().map(HistoryReader::snapshot)
    }

    /// Returns the state of the history. `None` without a history, and while the store loads.
    #[must_use]
    pub fn history_status(&self) -> Option<HistoryStatus> {
        self.0.history.get().map(HistoryReader::status)
    }

    /// Returns the call counters of the etcd API.
    #[must_use]
    pub fn etcd_counts(&self) -> &EtcdCounts {
        &self.0.etcd
    }

    /// Returns the requests to verify clusters.
    #[must_use]
    pub fn verification_requests(&self) -> &VerificationRequests {
        &self.0.verification_requests
    }

    /// Returns the newest lines of the log, oldest first, and the number of older lines that were
    /// dropped.
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
    /// [`StoreLoading`] after the wait.
    pub async fn reading(&self) -> Result<Reading, StoreLoading> {
        self.reading_until(Instant::now() + LOADING_WAIT_MAX).await
    }

    async fn reading_until(&self, deadline: Instant) -> Result<Reading, StoreLoading> {
        let mut loaded = self.0.process.loaded.clone();
        let waited = tokio::time::timeout_at(deadline.into(), loaded.wait_for(Option::is_some)).await;
        let subscriber = waited.ok().and_then(Result::ok).and_then(|subscriber| subscriber.clone()).ok_or(StoreLoading)?;
        Ok(self.reading_from(subscriber.current()))
    }

    /// Returns the newest snapshot, or `None` while the store loads.
    #[must_use]
    pub fn try_reading(&self) -> Option<Reading> {
        let subscriber = self.0.process.loaded.borrow().clone()?;
        Some(self.reading_from(subscriber.current()))
    }

    /// Returns a signal that changes with every new snapshot. Waits for the store like
    /// [`Handle::reading`].
    ///
    /// # Errors
    /// [`StoreLoading`] after the wait.
    pub async fn signal(&self) -> Result<watch::Receiver<crate::model::Sequence>, StoreLoading> {
        self.reading().await?;
        self.0.process.loaded.borrow().as_ref().map(SnapshotReceiver::signal).ok_or(StoreLoading)
    }

    /// Returns the signal of [`Handle::signal`], and waits for the store without a limit. For
    /// callers that follow the mirror. `None` if the store will never be loaded.
    pub async fn signal_once_loaded(&self) -> Option<watch::Receiver<crate::model::Sequence>> {
        let mut loaded = self.0.process.loaded.clone();
        let loaded = loaded.wait_for(Option::is_some).await.ok()?;
        loaded.as_ref().map(SnapshotReceiver::signal)
    }

    /// Returns whether the store is loaded, so that every query is answered.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.0.process.loaded.borrow().is_some()
    }

    /// Returns the time since the start of the process.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.0.process.started.elapsed()
    }

    /// Returns the state of the config directory.
    #[must_use]
    pub fn directory(&self) -> DirectoryState {
        self.0.process.directory.borrow().clone()
    }

    /// Returns the state of storing.
    #[must_use]
    pub fn persistence(&self) -> PersistState {
        self.0.process.persistence.borrow().clone()
    }

    /// Reads the metrics of the committer. Returns the default while the store loads.
    fn read_metrics<T: Default>(&self, read: impl FnOnce(&PipelineMetrics) -> T) -> T {
        self.0.process.loaded.borrow().as_ref().map(|loaded| read(loaded.marks())).unwrap_or_default()
    }

    /// Returns the highest fill of each queue by name. Empty while the store loads.
    #[must_use]
    pub fn queue_marks(&self) -> Vec<(&'static str, usize)> {
        self.read_metrics(|marks| {
            vec![
                ("commit", marks.commands.get()),
                ("commit_bytes", marks.command_bytes.get()),
                ("ring_bytes", marks.ring_bytes.get()),
                ("persist", marks.changes.get()),
                ("persist_bytes", marks.change_bytes.get()),
                ("directory", marks.directory_events.get()),
            ]
        })
    }

    /// Returns the durations of each step of a change by name. Empty while the store loads.
    #[must_use]
    pub fn step_times(&self) -> Vec<(&'static str, HistogramSnapshot)> {
        self.read_metrics(|marks| {
            let stored = marks.stored_times().map(|stored| ("durable", stored.snapshot()));
            [("commit", marks.commit.snapshot()), ("publish", marks.publish.snapshot())].into_iter().chain(stored).collect()
        })
    }

    /// Returns the number of changes since the start by cluster and kind. Empty while the store
    /// loads.
    #[must_use]
    pub fn changes_counted(&self) -> BTreeMap<Scope, ChangeCounts> {
        self.read_metrics(PipelineMetrics::changes_counted)
    }

    /// Measures the size of each class of files in the data directory. Reads from the file system.
    #[must_use]
    pub fn disk_bytes(&self) -> Vec<(&'static str, u64)> {
        self.0.disk.read()
    }

    /// Sets the measurement of the data directory.
    #[must_use]
    pub fn with_disk_bytes(self, disk: Measurement<Vec<(&'static str, u64)>>) -> Self {
        self.with(|state| state.disk = disk)
    }

    /// Returns whether the newest changes cannot be written to the log.
    #[must_use]
    pub fn is_log_failing(&self) -> bool {
        self.read_metrics(|marks| marks.log_fails.load(Ordering::Relaxed))
    }

    /// Returns the number of lost log lines: they could not be written, or too many waited for a
    /// slow reader.
    #[must_use]
    pub fn lost_lines(&self) -> u64 {
        self.0.process.lost_lines.read()
    }

    /// Returns the report about the store as it was at the start.
    #[must_use]
    pub fn store_report(&self) -> StoreReport {
        self.0.process.store.borrow().clone()
    }

    fn reading_from(&self, published: Arc<MirrorSnapshot>) -> Reading {
        let statuses = Arc::clone(&self.0.process.clusters.borrow());
        Reading {
            own_cluster: self.0.process.own_cluster.clone(),
            max_connected_clusters: self.0.process.max_connected_clusters,
            decoded: self.0.decoded.clone(),
            is_dump: self.0.dump.is_some(),
            summary: self.0.summary.clone(),
            status_version: self.0.status_version.clone(),
            ..Reading::new(published, statuses)
        }
    }
}

//! Watches the config directory, which has one client file for each remote cluster, as Cilium's
//! agents and KVStoreMesh read it.
//!
//! Each scan sends [`DirectoryEvent`]s in order: the changes of the files first, then the new
//! [`DirectoryState`]. A directory or file that is missing or unreadable removes no cluster, a file
//! with unchanged bytes causes no event, and every change is announced within 2 s. The content of
//! the files and their certificates are not inspected here.
//!
//! A notification only triggers a scan of the whole directory. Notifications come from a single
//! watch on the directory itself, which sees files that are written or renamed there and the swap
//! of a Secret's `..data` link. It does not see a write to a link's target in another directory, a
//! recreated directory, or changes on a file system without inotify. It also loses events if its
//! queue overflows. Comparing all metadata every second covers these cases. That takes a few
//! hundred `stat` calls, which is less work and fails in fewer ways than watching the target of
//! every link: each swap would invalidate those watches. The slow scan at
//! [`DirectoryOptions::rescan_interval`] reads every file and finds the changes that metadata does
//! not show.

mod diff;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinError;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use self::diff::AnnouncedFiles;
pub(super) use self::scan::read_cluster_file;
use self::scan::{DirectoryIdentity, DirectoryMetadata, DirectoryScan, ScannedFile, read_directory};
use crate::file_watch::DirectoryWatch;
use crate::instruments::{LogLimiter, LogPermit, ReminderSchedule};
use crate::model::{ClusterName, DirectoryState};

/// Interval between two checks of the metadata: half of the 2 s in which a change must take effect.
/// The other half is for the wait until two scans are equal.
const METADATA_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of scans while waiting for two equal ones in a row; the last scan is used then.
/// With the usual 100 ms between scans this takes 0.6 s, within the limit of 2 s.
const STABLE_SCANS_MAX: u32 = 6;

/// Recently logged files that cannot be used, with the reason.
static UNUSABLE_FILES: LogLimiter = LogLimiter::new();

/// Change of the set of remote clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryEvent {
    /// A cluster's file was added or its content changed.
    Upserted {
        /// Cluster, from the name of the file.
        cluster: ClusterName,
        /// Path of the file.
        path: PathBuf,
        /// Content of the file.
        content: Arc<[u8]>,
        /// SHA-256 of the content.
        digest: [u8; 32],
    },
    /// The directory is readable and no longer has the cluster's file.
    Removed {
        /// Cluster whose file was removed.
        cluster: ClusterName,
    },
    /// First successful scan since the start, or since the directory was unreadable. It follows the
    /// other events of that scan.
    FirstScan {
        /// Clusters with a file, including unreadable ones. Any other known cluster was removed.
        present: BTreeSet<ClusterName>,
    },
    /// New state of the directory. It follows the other events of the same scan.
    StateChanged(DirectoryState),
}

/// Settings of the directory watcher.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// Path of the directory.
    pub path: PathBuf,
    /// Clusters whose files are ignored, such as the own cluster.
    pub ignored_clusters: Arc<BTreeSet<ClusterName>>,
    /// Wait between two scans. Their results must be equal before they are used. Usually 100 ms.
    pub debounce: Duration,
    /// Interval between two scans of all files, even if nothing seems to have changed.
    pub rescan_interval: Duration,
    /// Interval between two log messages about a file that cannot be used.
    pub remind_interval: Duration,
    /// Requests a scan of all files.
    pub rescan: Arc<Notify>,
}

/// Watches the directory and sends its changes, until `stop` is cancelled or the receiver is
/// dropped.
pub async fn watch_directory(options: DirectoryOptions, events: mpsc::Sender<DirectoryEvent>, stop: CancellationToken) {
    let mut directory = DirectoryWatcher::new(options);
    let work = async {
        let mut announced = AnnouncedFiles::empty(directory.options.path.clone());
        loop {
            let scan = directory.scan_until_stable().await?;
            let (changes, new_state) = announced.apply_scan(&scan.files);
            let state = directory.report(new_state).map(DirectoryEvent::StateChanged);
            for change in changes.into_iter().chain(state) {
                if events.send(change).await.is_err() {
                    return Ok::<(), JoinError>(());
                }
            }
            directory.wait_for_change(scan.metadata).await?;
        }
    };
    if let Some(Err(error)) = stop.run_until_cancelled(work).await {
        // this happens only if a blocking read panicked or the runtime is shutting down; the owner
        // of this task restarts the task
        tracing::error!(%error, "the reader of the config directory failed");
    }
}

/// Cluster files by name: the content, or the reason why the file cannot be used.
pub type ClusterFileContents = BTreeMap<String, Result<Arc<[u8]>, String>>;

/// Reads the cluster files of a directory, except those of ignored clusters. Blocks.
///
/// # Errors
/// The reason why the directory cannot be read.
pub fn read_cluster_files(directory: &Path, ignored_clusters: &BTreeSet<ClusterName>) -> Result<ClusterFileContents, String> {
    let content = |file| match file {
        ScannedFile::Cluster(file) => Ok(file.content),
        ScannedFile::Unreadable { reason, .. } | ScannedFile::InvalidName { reason } | ScannedFile::Skipped { reason } => Err(reason),
    };
    Ok(read_directory(directory, ignored_clusters).files?.into_iter().map(|(name, file)| (name, content(file))).collect())
}

/// The directory, with the watch on it and the last reported state.
struct DirectoryWatcher {
    options: DirectoryOptions,
    watch: Option<ActiveWatch>,
    changed: Arc<Notify>,
    /// Reminders about unusable files by name, and for the directory as the empty name.
    reminders: ReminderSchedule<String>,
    last_reported: DirectoryState,
}

/// Watch on the directory that existed at the path when the watch was set up.
struct ActiveWatch {
    identity: DirectoryIdentity,
    /// `None` if the watch could not be set up. Changes are then found by the checks of the
    /// metadata alone.
    _watch: Option<DirectoryWatch>,
}

impl DirectoryWatcher {
    fn new(options: DirectoryOptions) -> Self {
        let reminders = ReminderSchedule::new(options.remind_interval);
        Self { changed: Arc::clone(&options.rescan), reminders, options, watch: None, last_reported: DirectoryState::default() }
    }

    /// Scans the directory until two scans in a row are equal. A file that is being written, or
    /// replaced by a delete and a create, then does not count as changed or removed.
    async fn scan_until_stable(&mut self) -> Result<DirectoryScan, JoinError> {
        let mut scan = self.read().await?;
        for _ in 1..STABLE_SCANS_MAX {
            sleep(self.options.debounce).await;
            let next = self.read().await?;
            let settled = next.files == scan.files;
            scan = next;
            if settled {
                break;
            }
        }
        Ok(scan)
    }

    /// Scans the directory once. First checks that the watch is on this directory, so that no
    /// change is missed in between.
    async fn read(&mut self) -> Result<DirectoryScan, JoinError> {
        let identity = self.metadata().await?.identity();
        if self.watch.as_ref().map(|watch| watch.identity) != identity {
            self.watch = identity.map(|identity| self.watch(identity));
        }
        let (path, ignored_clusters) = (self.options.path.clone(), Arc::clone(&self.options.ignored_clusters));
        tokio::task::spawn_blocking(move || read_directory(&path, &ignored_clusters)).await
    }

    async fn metadata(&self) -> Result<DirectoryMetadata, JoinError> {
        let path = self.options.path.clone();
        tokio::task::spawn_blocking(move || DirectoryMetadata::read(&path)).await
    }

    fn watch(&self, identity: DirectoryIdentity) -> ActiveWatch {
        let watch = DirectoryWatch::begin(&self.options.path, Arc::clone(&self.changed));
        if let Err(error) = &watch {
            let path = self.options.path.display();
            tracing::warn!(%path, %error, "cannot watch the config directory: checking it every second instead");
        }
        ActiveWatch { identity, _watch: watch.ok() }
    }

    /// Returns when the directory was notified as changed, its metadata differs from `before`, or
    /// the slow scan is due.
    async fn wait_for_change(&self, before: DirectoryMetadata) -> Result<(), JoinError> {
        let rescan_at = Instant::now() + self.options.rescan_interval;
        let mut ticks = interval_at(Instant::now() + METADATA_INTERVAL, METADATA_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let until_change = async {
            loop {
                tokio::select! {
                    () = self.changed.notified() => return Ok(()),
                    _ = ticks.tick() => {}
                }
                if self.metadata().await? != before {
                    return Ok(());
                }
            }
        };
        timeout_at(rescan_at, until_change).await.unwrap_or(Ok(()))
    }

    /// Logs the files that still cannot be used, and the directory if it still cannot be read. Runs
    /// at least once a minute.
    fn remind(&mut self, state: &DirectoryState) {
        let path = self.options.path.display();
        let broken = state.invalid.keys().cloned().chain(state.error.is_some().then(String::new));
        for (file, broken_for) in self.reminders.due(broken, std::time::Instant::now()) {
            let minutes = broken_for.as_secs() / 60;
            match state.invalid.get(&file) {
                Some(reason) => tracing::warn!(%path, file, reason, minutes, "client file {file} still cannot be used"),
                None => {
                    tracing::warn!(%path, error = state.error, minutes, "the config directory still cannot be read: all clusters are kept")
                }
            }
        }
    }

    /// Logs what changed since the last reported state, each message once. Returns the new state if
    /// it differs from that one.
    fn report(&mut self, state: DirectoryState) -> Option<DirectoryState> {
        self.remind(&state);
        let path = self.options.path.display();
        let before = std::mem::replace(&mut self.last_reported, state.clone());
        match &state.error {
            Some(error) if before.error.as_ref() != Some(error) => {
                tracing::warn!(%path, %error, "the config directory cannot be read: trying again, all clusters are kept");
            }
            None if !before.readable => tracing::info!(%path, "watching the config directory"),
            Some(_) | None => {}
        }
        for (file, reason) in state.invalid.iter().filter(|(file, reason)| before.invalid.get(*file) != Some(*reason)) {
            if let Some(LogPermit { more }) = UNUSABLE_FILES.permit(&format!("{file} {reason}")) {
                tracing::warn!(%path, file, reason, more, "client file {file} cannot be used");
            }
        }
        (before != state).then_some(state)
    }
}

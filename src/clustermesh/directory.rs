//! The config directory: one file for each remote cluster, as Cilium's agents and KVStoreMesh read it.
//!
//! Owns: the passes over the directory, and when they come. Emits: [`DirectoryEvent`]s, in
//! order, the [`DirectoryState`] for people to see behind what it says. Invariants: a missing or unreadable directory or file removes nothing;
//! equal bytes are no event; every change is announced within 2 s. Deliberately lacks: the meaning of a file's content, and any
//! interest in the certificates that it names.
//!
//! How a change is noticed. No event is taken at its word: each one, whatever it names, leads to a pass over the whole directory.
//! Notifications come from one watch, on the directory itself: they see files put and renamed there and the swap of a Secret's
//! `..data` link. What they cannot see (a write in place behind a link into another directory, a directory made anew, a file
//! system without inotify, a queue that overflowed) a glance at all metadata every second sees: some hundred `stat` calls, less
//! work and fewer ways to fail than a second set of watches on every link's target that each swap invalidates. What even the
//! metadata hides is found by the slow pass of [`DirectoryOptions::rescan_interval`], which reads everything.

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

use self::diff::Announced;
pub(super) use self::scan::read_cluster_file;
use self::scan::{DirectoryIdentity, FileReading, Glance, Reading, read_directory};
use crate::file_watch::DirectoryWatch;
use crate::model::{Causes, ClusterName, DirectoryState, Due, Reminders};

/// Half of the 2 s in which a change shall take effect (issue "The main job", item 1); the other half is for settling.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// A directory that differs in each of this many readings is taken as it is: with the usual 100 ms between them that is 0.6 s,
/// which keeps the 2 s.
const SETTLE_READINGS_MAX: u32 = 6;

/// Files, and what is wrong with them, that were logged lately.
static UNUSABLE: Causes = Causes::new();

/// What happened to the set of remote clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectoryEvent {
    /// A cluster's file came or its bytes changed.
    Upserted {
        /// The cluster: the file's name.
        cluster: ClusterName,
        /// The file.
        path: PathBuf,
        /// All of its bytes.
        content: Arc<[u8]>,
        /// Their SHA-256.
        digest: [u8; 32],
    },
    /// The directory is readable and the cluster's file is not in it any more.
    Removed {
        /// The cluster.
        cluster: ClusterName,
    },
    /// The first reading that succeeded, or the first after the directory could not be read; follows that reading's other events.
    FirstScan {
        /// Every cluster that has a file, unreadable ones included: any other cluster that is known from before is gone.
        present: BTreeSet<ClusterName>,
    },
    /// How the directory is, where that is new; follows the events of the reading that found it.
    Read(DirectoryState),
}

/// Which directory to watch, and how.
#[derive(Debug, Clone)]
pub struct DirectoryOptions {
    /// The directory.
    pub path: PathBuf,
    /// The own cluster, whose file is ignored.
    pub own_cluster: Option<ClusterName>,
    /// How long the directory must stay the same to be believed; 100 ms serves well.
    pub debounce: Duration,
    /// How often everything is read even if nothing seems to have changed.
    pub rescan_interval: Duration,
    /// How often what cannot be used is told again.
    pub remind_interval: Duration,
    /// Says that everything shall be read now.
    pub rescan: Arc<Notify>,
}

/// Watches the directory and announces what changes, until `stop` is cancelled or nobody receives events any more.
pub async fn watch_directory(options: DirectoryOptions, events: mpsc::Sender<DirectoryEvent>, stop: CancellationToken) {
    let mut directory = Directory::new(options);
    let work = async {
        let mut announced = Announced::nothing(directory.options.path.clone());
        loop {
            let reading = directory.read_settled().await?;
            let (changes, now) = announced.advance(&reading.files);
            let told = directory.report(now).map(DirectoryEvent::Read);
            for change in changes.into_iter().chain(told) {
                if events.send(change).await.is_err() {
                    return Ok::<(), JoinError>(());
                }
            }
            directory.wait_for_change(reading.glance).await?;
        }
    };
    if let Some(Err(error)) = stop.run_until_cancelled(work).await {
        // Only a panic or the end of the runtime: the task's owner sees it end and starts it anew.
        tracing::error!(%error, "reading the config directory failed");
    }
}

/// Cluster files by name: the content of each, or why nobody can use it.
pub type ClusterFiles = BTreeMap<String, Result<Arc<[u8]>, String>>;

/// The cluster files that stand in a directory now. Blocks.
///
/// # Errors
/// Why the directory cannot be read.
pub fn read_cluster_files(directory: &Path, own_cluster: Option<&ClusterName>) -> Result<ClusterFiles, String> {
    let content = |file| match file {
        FileReading::Cluster(file) => Ok(file.content),
        FileReading::Unreadable { reason, .. } | FileReading::InvalidName { reason } | FileReading::Skipped { reason } => Err(reason),
    };
    Ok(read_directory(directory, own_cluster).files?.into_iter().map(|(name, file)| (name, content(file))).collect())
}

/// The directory and the watch on it.
struct Directory {
    options: DirectoryOptions,
    watch: Option<Watch>,
    changed: Arc<Notify>,
    /// What cannot be used: files by name, and the directory as the empty one.
    reminders: Reminders<String>,
    /// What was told last.
    told: DirectoryState,
}

/// A watch on the directory that stood at the path at the time.
struct Watch {
    identity: DirectoryIdentity,
    /// `None` if it could not be set up: then the glances have to do.
    _watch: Option<DirectoryWatch>,
}

impl Directory {
    fn new(options: DirectoryOptions) -> Self {
        let reminders = Reminders::new(options.remind_interval);
        Self { changed: Arc::clone(&options.rescan), reminders, options, watch: None, told: DirectoryState::default() }
    }

    /// Reads the directory until two readings in a row agree, so that a file in the middle of being written, or of being replaced by
    /// removing and creating it, is never taken for a change, let alone a removal.
    async fn read_settled(&mut self) -> Result<Reading, JoinError> {
        let mut reading = self.read().await?;
        for _ in 1..SETTLE_READINGS_MAX {
            sleep(self.options.debounce).await;
            let again = self.read().await?;
            let settled = again.files == reading.files;
            reading = again;
            if settled {
                break;
            }
        }
        Ok(reading)
    }

    /// One pass over the directory, after making sure that it is this one which is watched: so nothing falls between the two.
    async fn read(&mut self) -> Result<Reading, JoinError> {
        let identity = self.glance().await?.identity();
        if self.watch.as_ref().map(|watch| watch.identity) != identity {
            self.watch = identity.map(|identity| self.watch(identity));
        }
        let (path, own_cluster) = (self.options.path.clone(), self.options.own_cluster.clone());
        tokio::task::spawn_blocking(move || read_directory(&path, own_cluster.as_ref())).await
    }

    async fn glance(&self) -> Result<Glance, JoinError> {
        let path = self.options.path.clone();
        tokio::task::spawn_blocking(move || Glance::take(&path)).await
    }

    /// Sets up a watch on the directory that stands at the path.
    fn watch(&self, identity: DirectoryIdentity) -> Watch {
        let watch = DirectoryWatch::begin(&self.options.path, Arc::clone(&self.changed));
        if let Err(error) = &watch {
            let path = self.options.path.display();
            tracing::warn!(%path, %error, "config directory cannot be watched: looking at it every second instead");
        }
        Watch { identity, _watch: watch.ok() }
    }

    /// Returns when the directory was notified as changed, looks different from `before`, or is due for the slow pass.
    async fn wait_for_change(&self, before: Glance) -> Result<(), JoinError> {
        let rescan_at = Instant::now() + self.options.rescan_interval;
        let mut ticks = interval_at(Instant::now() + GLANCE_INTERVAL, GLANCE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let look = async {
            loop {
                tokio::select! {
                    () = self.changed.notified() => return Ok(()),
                    _ = ticks.tick() => {}
                }
                if self.glance().await? != before {
                    return Ok(());
                }
            }
        };
        timeout_at(rescan_at, look).await.unwrap_or(Ok(()))
    }

    /// Tells again what still cannot be used. A pass comes each minute at least.
    fn remind(&mut self, now: &DirectoryState) {
        let path = self.options.path.display();
        let broken = now.invalid.keys().cloned().chain(now.error.is_some().then(String::new));
        for (file, broken_for) in self.reminders.due(broken, std::time::Instant::now()) {
            let minutes = broken_for.as_secs() / 60;
            match now.invalid.get(&file) {
                Some(reason) => tracing::warn!(%path, file, reason, minutes, "cluster file still cannot be used"),
                None => tracing::warn!(%path, error = now.error, minutes, "config directory still cannot be read: no cluster is removed"),
            }
        }
    }

    /// Logs what is new in the state: each message once, not with every pass. Gives it if anything is.
    fn report(&mut self, now: DirectoryState) -> Option<DirectoryState> {
        self.remind(&now);
        let path = self.options.path.display();
        let before = std::mem::replace(&mut self.told, now.clone());
        match &now.error {
            Some(error) if before.error.as_ref() != Some(error) => {
                tracing::warn!(%path, %error, "config directory cannot be read: waiting for it, no cluster is removed");
            }
            None if !before.readable => tracing::info!(%path, "watching config directory"),
            Some(_) | None => {}
        }
        for (file, reason) in now.invalid.iter().filter(|(file, reason)| before.invalid.get(*file) != Some(*reason)) {
            if let Some(Due { more }) = UNUSABLE.due(&format!("{file} {reason}")) {
                tracing::warn!(%path, file, reason, more, "cluster file cannot be used");
            }
        }
        (before != now).then_some(now)
    }
}

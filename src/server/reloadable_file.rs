//! Values loaded from files that can change: the token and the certificates.
//!
//! A background task checks the files every second and reloads them when they change. If the new
//! content cannot be used, the last good value stays in use. The failure is logged once per reason,
//! and `/v1/status` and `/metrics` expose it while it lasts.

use std::fmt::{self, Display};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::model::readable_error;

/// Interval between checks of the files' metadata. A rotated file is in use within a second.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between reloads of unchanged files, for file systems with coarse times. Same as the
/// kubelet's sync period.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// Metadata that identifies the content of a file without reading it.
///
/// `inode` has the numbers of the device and the inode. `modified` and `changed` are the times of
/// the last change of the content and of the inode, in seconds and nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileFingerprint {
    inode: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A value loaded from files. Keeps the last good value when the files change but cannot be used.
pub(crate) struct ReloadableFile<T> {
    name: &'static str,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    current: ArcSwap<T>,
    last_check: Mutex<LastCheck>,
}

/// Result of the last check of the files.
#[derive(Debug)]
struct LastCheck {
    fingerprints: Vec<Option<FileFingerprint>>,
    loaded: Instant,
    failure: Option<String>,
}

/// Files that can be checked for changes, whatever value is loaded from them.
pub(crate) trait Reloadable: Send + Sync {
    /// Name of the files in logs and metrics.
    fn name(&self) -> &'static str;
    /// Reloads the files if they seem to have changed, or always if `force` is set.
    fn reload_if_changed(&self, force: bool);
    /// Returns why the current content of the files is not in use; `None` if it is.
    fn failure(&self) -> Option<String>;
}

/// All reloadable files of an API. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct ReloadableFiles(Arc<Vec<Arc<dyn Reloadable>>>);

impl FileFingerprint {
    fn read(path: &Path) -> Option<Self> {
        let metadata: Metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            inode: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

impl<T> fmt::Debug for ReloadableFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReloadableFile").field("name", &self.name).field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReloadableFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|files| files.name())).finish()
    }
}

impl<T> ReloadableFile<T> {
    /// Loads the files for the first time.
    ///
    /// # Errors
    /// Returns the error of `load` if the files cannot be used.
    pub(crate) fn open<E: Display>(
        name: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let last_check = LastCheck { fingerprints: fingerprints(&paths), loaded: Instant::now(), failure: None };
        let current = ArcSwap::from_pointee(load()?);
        Ok(Self { name, paths, load: Box::new(move || load().map_err(readable_error)), current, last_check: Mutex::new(last_check) })
    }

    /// Returns the value in use.
    pub(crate) fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    fn last_check(&self) -> MutexGuard<'_, LastCheck> {
        self.last_check.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fingerprints(paths: &[PathBuf]) -> Vec<Option<FileFingerprint>> {
    paths.iter().map(|path| FileFingerprint::read(path)).collect()
}

impl<T: Send + Sync> Reloadable for ReloadableFile<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn reload_if_changed(&self, force: bool) {
        let mut last_check = self.last_check();
        // the metadata is read before the files, so that the next check notices a change in between
        let fingerprints = fingerprints(&self.paths);
        if fingerprints == last_check.fingerprints && last_check.loaded.elapsed() < RELOAD_INTERVAL && !force {
            return;
        }
        (last_check.fingerprints, last_check.loaded) = (fingerprints, Instant::now());
        match (self.load)() {
            Ok(value) => {
                self.current.store(Arc::new(value));
                if last_check.failure.take().is_some() {
                    tracing::info!("the {} can be used again", self.name);
                }
            }
            Err(reason) if last_check.failure.as_ref() == Some(&reason) => {}
            Err(reason) => {
                tracing::warn!(error = reason, "the {} has changed and cannot be used: meshkeep uses the last good content", self.name);
                last_check.failure = Some(reason);
            }
        }
    }

    fn failure(&self) -> Option<String> {
        self.last_check().failure.clone()
    }
}

impl ReloadableFiles {
    pub(crate) fn new(files: impl IntoIterator<Item = Arc<dyn Reloadable>>) -> Self {
        Self(Arc::new(files.into_iter().collect()))
    }

    /// Returns each group of files by name, and why its current content is not in use.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        self.0.iter().map(|files| (files.name(), files.failure()))
    }

    /// Checks the files at regular intervals, and reloads them unconditionally when `reload` is
    /// notified. Never ends.
    pub(crate) async fn watch(self, reload: Arc<Notify>) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let force = tokio::select! {
                () = reload.notified() => true,
                _ = ticks.tick() => false,
            };
            let files = Arc::clone(&self.0);
            let check = move || files.iter().for_each(|files| files.reload_if_changed(force));
            if let Err(error) = spawn_blocking(check).await {
                tracing::error!(%error, "the check of the token and certificates panicked");
            }
        }
    }
}

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
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between reloads of unchanged files, for file systems with coarse times. Same as the
/// kubelet's sync period.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// Metadata that identifies the content of a file without reading it.
///
/// `place` is the device and inode; the times are those of the last change of the content and of
/// the inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A value loaded from files. Keeps the last good value when the files change but cannot be used.
pub(crate) struct Kept<T> {
    name: &'static str,
    paths: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    current: ArcSwap<T>,
    seen: Mutex<Seen>,
}

/// Result of the last check of the files.
#[derive(Debug)]
struct Seen {
    stamps: Vec<Option<Stamp>>,
    read: Instant,
    failure: Option<String>,
}

/// Files that can be checked for changes, whatever value is loaded from them.
pub(crate) trait Look: Send + Sync {
    /// Name of the files in logs and metrics.
    fn name(&self) -> &'static str;
    /// Reloads the files if they seem to have changed, or always if `in_any_case` is set.
    fn look(&self, in_any_case: bool);
    /// Returns why the current content of the files is not in use; `None` if it is.
    fn failure(&self) -> Option<String>;
}

/// All reloadable files of an API. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct KeptFiles(Arc<Vec<Arc<dyn Look>>>);

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        let data: Metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            place: (data.dev(), data.ino()),
            size: data.size(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

impl<T> fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("name", &self.name).field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl fmt::Debug for KeptFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|files| files.name())).finish()
    }
}

impl<T> Kept<T> {
    /// Loads the files for the first time.
    ///
    /// # Errors
    /// Returns the error of `make` if the files cannot be used.
    pub(crate) fn open<E: Display>(
        name: &'static str,
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let seen = Seen { stamps: stamps(&paths), read: Instant::now(), failure: None };
        let current = ArcSwap::from_pointee(make()?);
        Ok(Self { name, paths, make: Box::new(move || make().map_err(readable_error)), current, seen: Mutex::new(seen) })
    }

    /// Returns the value in use.
    pub(crate) fn now(&self) -> Arc<T> {
        self.current.load_full()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    paths.iter().map(|path| Stamp::of(path)).collect()
}

impl<T: Send + Sync> Look for Kept<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn look(&self, in_any_case: bool) {
        let mut seen = self.seen();
        // the metadata is read before the files, so that the next check notices a change in between
        let stamps = stamps(&self.paths);
        if stamps == seen.stamps && seen.read.elapsed() < READ_INTERVAL && !in_any_case {
            return;
        }
        (seen.stamps, seen.read) = (stamps, Instant::now());
        match (self.make)() {
            Ok(made) => {
                self.current.store(Arc::new(made));
                if seen.failure.take().is_some() {
                    tracing::info!("the {} can be used again", self.name);
                }
            }
            Err(reason) if seen.failure.as_ref() == Some(&reason) => {}
            Err(reason) => {
                tracing::warn!(error = reason, "the {} has changed and cannot be used: meshkeep uses the last good content", self.name);
                seen.failure = Some(reason);
            }
        }
    }

    fn failure(&self) -> Option<String> {
        self.seen().failure.clone()
    }
}

impl KeptFiles {
    pub(crate) fn new(files: impl IntoIterator<Item = Arc<dyn Look>>) -> Self {
        Self(Arc::new(files.into_iter().collect()))
    }

    /// Returns each group of files by name, and why its current content is not in use.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        self.0.iter().map(|files| (files.name(), files.failure()))
    }

    /// Checks the files at regular intervals, and reloads them unconditionally when `reread` is
    /// notified. Never ends.
    pub(crate) async fn watch(self, reread: Arc<Notify>) {
        let mut ticks = interval(GLANCE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let in_any_case = tokio::select! {
                () = reread.notified() => true,
                _ = ticks.tick() => false,
            };
            let files = Arc::clone(&self.0);
            let look = move || files.iter().for_each(|files| files.look(in_any_case));
            if let Err(error) = spawn_blocking(look).await {
                tracing::error!(%error, "the check of the token and certificates panicked");
            }
        }
    }
}

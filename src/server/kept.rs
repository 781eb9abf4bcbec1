//! Files that are read again when they change: the token, the certificates.
//!
//! Owns: when they are looked at, and what is in force meanwhile. What cannot be used any more leaves in force what was read before and is
//! told: in the log once for each reason, in `/v1/status` and `/metrics` as long as it lasts. Deliberately lacks: what the files mean.

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

use crate::model::in_words;

/// How often the files are looked at: what was rotated works within a second.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// How often they are read even if they look the same, for file systems with coarse times: the kubelet's own period.
const READ_INTERVAL: Duration = Duration::from_secs(60);

/// What tells one content of a file from another without reading it: device, inode, size, and when content and inode changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    place: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// What is made of files, and stays in force until it can be made anew.
pub(crate) struct Kept<T> {
    name: &'static str,
    paths: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, String> + Send + Sync>,
    current: ArcSwap<T>,
    seen: Mutex<Seen>,
}

/// What the last look saw.
#[derive(Debug)]
struct Seen {
    stamps: Vec<Option<Stamp>>,
    read: Instant,
    failure: Option<String>,
}

/// Files of whatever meaning that can be looked at.
pub(crate) trait Look: Send + Sync {
    /// What they are, for people.
    fn name(&self) -> &'static str;
    /// Reads them again if they seem to have changed, or in any case.
    fn look(&self, in_any_case: bool);
    /// Why what they hold now is not in force.
    fn failure(&self) -> Option<String>;
}

/// All such files of a face. Cheap to clone.
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
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub(crate) fn open<E: Display>(
        name: &'static str,
        paths: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let seen = Seen { stamps: stamps(&paths), read: Instant::now(), failure: None };
        let current = ArcSwap::from_pointee(make()?);
        Ok(Self { name, paths, make: Box::new(move || make().map_err(in_words)), current, seen: Mutex::new(seen) })
    }

    /// What is in force.
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
        // taken before the files are read: what changes meanwhile is seen at the next look
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
                tracing::warn!(error = reason, "the {} cannot be read again: what was read before stays in force", self.name);
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

    /// Each sort of files, and why what it holds now is not in force.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        self.0.iter().map(|files| (files.name(), files.failure()))
    }

    /// Looks at them again and again; reads them in any case when `reread` says so. Never ends.
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
                tracing::error!(%error, "looking at the token and certificates panicked");
            }
        }
    }
}

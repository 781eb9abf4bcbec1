//! Following the files: what they say now, and what is wrong with them, told once for each change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinError;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::fault::FileError;
use super::files::read_files;
use super::plan::Plan;
use crate::file_watch::DirectoryWatch;

/// How often the files are looked at without having been told that they changed: as the config directory is.
const GLANCE_INTERVAL: Duration = Duration::from_secs(1);

/// How long files must stay the same to be believed: as the config directory.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// What tells two states of a file apart.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()))
    };
    paths.iter().map(stamp).collect()
}

/// Keeps `plans` at what the files say. Files that are wrong, or that speak of another cluster than before, change nothing.
pub(super) async fn follow(paths: Vec<PathBuf>, plans: watch::Sender<Arc<Plan>>, reread: Arc<Notify>) -> Result<(), JoinError> {
    let paths = Arc::new(paths);
    let _watches: Vec<_> = directories(&paths).iter().filter_map(|directory| watch_directory(directory, &reread)).collect();
    let look = || {
        let paths = Arc::clone(&paths);
        tokio::task::spawn_blocking(move || stamps(&paths))
    };
    let mut ticks = interval(GLANCE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut seen = Vec::new();
    let mut faults = Vec::new();
    loop {
        tokio::select! {
            () = reread.notified() => {}
            _ = ticks.tick() => {}
        }
        let mut now = look().await?;
        if now == seen {
            continue;
        }
        loop {
            sleep(DEBOUNCE).await;
            let again = look().await?;
            if again == now {
                break;
            }
            now = again;
        }
        seen = now;
        let paths = Arc::clone(&paths);
        take_over(tokio::task::spawn_blocking(move || read_files(&paths)).await?, &plans, &mut faults);
    }
}

fn take_over(read: Result<Plan, Vec<FileError>>, plans: &watch::Sender<Arc<Plan>>, known: &mut Vec<FileError>) {
    let now = match read {
        Err(faults) => faults,
        Ok(plan) => {
            let before = Arc::clone(&plans.borrow());
            if plan.cluster != before.cluster || plan.id != before.id || plan.max != before.max {
                tracing::error!(
                    announced = %before.cluster, id = %before.id, found = %plan.cluster, found_id = %plan.id,
                    "the files speak of another cluster: what was announced stays; retire it, then announce the other"
                );
            } else if plan != *before {
                tracing::info!("the files changed");
                plans.send_replace(Arc::new(plan));
            }
            Vec::new()
        }
    };
    for fault in now.iter().filter(|fault| !known.contains(fault)) {
        tracing::error!(%fault, "a file is wrong: what was announced stays");
    }
    if now.is_empty() && !known.is_empty() {
        tracing::info!("the files are right again");
    }
    *known = now;
}

fn directories(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut directories: Vec<_> = paths.iter().map(|path| directory_of(path)).collect();
    directories.sort();
    directories.dedup();
    directories
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn watch_directory(directory: &Path, changed: &Arc<Notify>) -> Option<DirectoryWatch> {
    let watch = DirectoryWatch::begin(directory, Arc::clone(changed));
    if let Err(error) = &watch {
        tracing::warn!(path = %directory.display(), error, "a directory cannot be watched: looking at the files every second instead");
    }
    watch.ok()
}

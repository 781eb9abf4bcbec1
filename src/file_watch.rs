//! Being told that something in a directory may have changed; the only importer of `notify`.
//!
//! No event is worth its word (a link's target, a file system without inotify, a queue that overflowed): the caller must look, and look from time
//! to time without having been told.

use std::path::Path;
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// A watch on the directory that stood at a path when it began, until it is dropped.
pub struct DirectoryWatch {
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches a directory, not what is below the directories in it.
    ///
    /// # Errors
    /// Why it cannot be watched.
    pub fn begin(directory: &Path, changed: Arc<Notify>) -> Result<Self, String> {
        let on_event = move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|event| is_mere_reading(event.kind)) {
                changed.notify_one();
            }
        };
        let begun = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
            Ok(Self { _watcher: watcher })
        });
        begun.map_err(|error| error.to_string())
    }
}

/// Whether somebody only read, as we do ourselves: to answer that with another reading would never end.
fn is_mere_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

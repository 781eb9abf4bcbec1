//! Notifications of changes in a directory. Only this module uses the crate `notify`.
//!
//! Events are hints: they can be missing (a link's target, a file system without inotify, a queue
//! that overflowed) or wrong. The caller has to inspect the directory, also periodically without an
//! event.

use std::path::Path;
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// Watch on a directory, which ends when it is dropped. If another directory replaces this one at
/// the same path, the watch stays on the old one.
pub struct DirectoryWatch {
    _watcher: RecommendedWatcher,
}

impl DirectoryWatch {
    /// Watches a directory, but not its subdirectories, and notifies `changed` of every event that
    /// is not a read.
    ///
    /// # Errors
    /// Returns the reason as text if the directory cannot be watched.
    pub fn begin(directory: &Path, changed: Arc<Notify>) -> Result<Self, String> {
        let on_event = move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|event| is_read_access(event.kind)) {
                changed.notify_one();
            }
        };
        let watch = notify::recommended_watcher(on_event).and_then(|mut watcher| {
            watcher.watch(directory, RecursiveMode::NonRecursive)?;
            Ok(Self { _watcher: watcher })
        });
        watch.map_err(|error| error.to_string())
    }
}

/// Returns `true` if an event is only a read. meshkeep reads the directory itself, and reacting to
/// that would never end.
fn is_read_access(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, ModifyKind, RemoveKind};

    use super::*;

    #[test]
    fn reads_are_not_changes() {
        let access = |kind| EventKind::Access(kind);
        let reads = [AccessKind::Read, AccessKind::Open(AccessMode::Any), AccessKind::Close(AccessMode::Read)].map(access);
        assert!(reads.into_iter().all(is_read_access));
        let written = access(AccessKind::Close(AccessMode::Write));
        let changes = [
            written,
            EventKind::Create(CreateKind::File),
            EventKind::Modify(ModifyKind::Any),
            EventKind::Remove(RemoveKind::File),
            EventKind::Any,
        ];
        assert!(!changes.into_iter().any(is_read_access));
    }
}

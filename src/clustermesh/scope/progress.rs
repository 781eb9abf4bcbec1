//! Progress of one kind over one connection, for its verification.

use tokio::sync::{Notify, watch};

/// State of a kind's watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::clustermesh) struct WatchProgress {
    /// True while the kind is watched; false while it is listed or compared.
    pub(in crate::clustermesh) watching: bool,
    /// Number of watches so far.
    pub(in crate::clustermesh) watch_count: u64,
    /// Number of handled messages of all watches.
    pub(in crate::clustermesh) message_count: u64,
}

/// Link between the task of a kind and its verification.
#[derive(Debug, Default)]
pub(in crate::clustermesh) struct ScopeProgress {
    watch: watch::Sender<WatchProgress>,
    repair: Notify,
}

impl ScopeProgress {
    /// Returns the state of the kind's watch.
    pub(in crate::clustermesh) fn current(&self) -> WatchProgress {
        *self.watch.borrow()
    }

    /// Waits until another message of the watch was handled, or the watch ended.
    pub(in crate::clustermesh) async fn message_after(&self, before: WatchProgress) {
        let is_newer = |now: &WatchProgress| now.message_count > before.message_count || !now.watching;
        // the sender is a field of `self`, so the channel stays open
        let _ = self.watch.subscribe().wait_for(is_newer).await;
    }

    /// Asks the task to list the kind again.
    pub(in crate::clustermesh) fn request_repair(&self) {
        self.repair.notify_one();
    }

    /// Waits for a request to list the kind again.
    pub(super) async fn repair_requested(&self) {
        self.repair.notified().await;
    }

    pub(super) fn start_watch(&self) {
        self.watch.send_modify(|progress| {
            progress.watching = true;
            progress.watch_count += 1;
        });
    }

    pub(super) fn end_watch(&self) {
        self.watch.send_modify(|progress| progress.watching = false);
    }

    pub(super) fn count_message(&self) {
        self.watch.send_modify(|progress| progress.message_count += 1);
    }
}

//! Progress of one kind over one connection, for its verification.

use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::model::Revision;

/// State of a kind's watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::clustermesh) struct WatchProgress {
    /// True while the kind is watched; false while it is listed or compared.
    pub(in crate::clustermesh) watching: bool,
    /// Number of watches so far.
    pub(in crate::clustermesh) watch_count: u64,
    /// Revision of the source up to which the watch has delivered all changes of the kind. Their
    /// commands are in the committer's queue.
    delivered: Revision,
    /// Revision of the kind's cursor once the committer has applied these commands.
    cursor: Revision,
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

    /// Waits until the mirror has all changes of the kind up to a revision. `applied` waits until
    /// the mirror shows a cursor. Returns false if the changes are missing after `limit`, or if the
    /// watch ends.
    ///
    /// Progress of the watch counts as well as changes. A kind that does not change would otherwise
    /// never reach the revision.
    pub(in crate::clustermesh) async fn reaches<F: Future<Output = ()>>(
        &self,
        revision: Revision,
        limit: Duration,
        applied: impl FnOnce(Revision) -> F,
    ) -> bool {
        let mut watch = self.watch.subscribe();
        let reached = async {
            // the sender is a field of `self`, so the channel stays open
            let progress = watch.wait_for(|now| !now.watching || now.delivered >= revision).await.map(|progress| *progress);
            let Some(progress) = progress.ok().filter(|progress| progress.watching) else { return false };
            applied(progress.cursor).await;
            let now = self.current();
            now.watching && now.watch_count == progress.watch_count
        };
        timeout(limit, reached).await.unwrap_or(false)
    }

    /// Asks the task to list the kind again.
    pub(in crate::clustermesh) fn request_repair(&self) {
        self.repair.notify_one();
    }

    /// Waits for a request to list the kind again.
    pub(super) async fn repair_requested(&self) {
        self.repair.notified().await;
    }

    /// Records a watch that starts after the revision of the kind's cursor.
    pub(super) fn start_watch(&self, after: Revision) {
        self.watch.send_modify(|progress| {
            let watch_count = progress.watch_count + 1;
            *progress = WatchProgress { watching: true, watch_count, delivered: after, cursor: after };
        });
    }

    pub(super) fn end_watch(&self) {
        self.watch.send_modify(|progress| progress.watching = false);
    }

    /// Records that the watch has delivered all changes up to a revision. The caller has queued
    /// their commands, which set the kind's cursor to `cursor`.
    pub(super) fn record_delivery(&self, delivered: Revision, cursor: Revision) {
        self.watch.send_modify(|progress| {
            progress.delivered = progress.delivered.max(delivered);
            progress.cursor = cursor;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Returns whether the mirror reaches revision 12. It shows the cursors that `applied` sends.
    async fn reaches(progress: &ScopeProgress, applied: &watch::Sender<Revision>) -> bool {
        let shows = |cursor: Revision| async move {
            applied.subscribe().wait_for(|shown| *shown >= cursor).await.unwrap();
        };
        progress.reaches(Revision(12), LIMIT, shows).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_behind_does_not_reach_the_revision() {
        let (progress, applied) = (ScopeProgress::default(), watch::Sender::new(Revision(10)));
        assert!(!reaches(&progress, &applied).await, "there is no watch");
        progress.start_watch(Revision(10));
        progress.record_delivery(Revision(11), Revision(10));
        assert!(!reaches(&progress, &applied).await, "the message is older");
        progress.record_delivery(Revision(12), Revision(10));
        assert!(reaches(&progress, &applied).await, "the kind did not change, but the watch progressed");
        progress.end_watch();
        assert!(!reaches(&progress, &applied).await, "the watch ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_committer_that_is_behind_does_not_reach_the_revision() {
        let (progress, applied) = (ScopeProgress::default(), watch::Sender::new(Revision(10)));
        progress.start_watch(Revision(10));
        progress.record_delivery(Revision(13), Revision(13));
        assert!(!reaches(&progress, &applied).await, "the commands are still queued");
        let later = async {
            tokio::time::sleep(LIMIT / 2).await;
            applied.send_replace(Revision(13));
        };
        let (reached, ()) = tokio::join!(reaches(&progress, &applied), later);
        assert!(reached);
    }

    #[tokio::test(start_paused = true)]
    async fn another_watch_does_not_count() {
        let (progress, applied) = (ScopeProgress::default(), watch::Sender::new(Revision(10)));
        progress.start_watch(Revision(10));
        progress.record_delivery(Revision(13), Revision(13));
        let later = async {
            progress.end_watch();
            progress.start_watch(Revision(14));
            applied.send_replace(Revision(14));
        };
        let (reached, ()) = tokio::join!(reaches(&progress, &applied), later);
        assert!(!reached, "the kind was listed meanwhile");
    }
}

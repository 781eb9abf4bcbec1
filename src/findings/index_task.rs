//! Keeps the [`FindingIndex`], which has all findings across keys, up to date.
//!
//! One task scans the whole mirror once the store is loaded, and applies changes from then on. It
//! works in slices of some milliseconds on the blocking threads, one at a time, and so uses at most
//! one core.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::handle::{FindingIndex, FindingIndexBuilder, Handle, Reading};

/// Maximum time that a request waits for the first scan: the same time for which requests wait for
/// a store that is loading. One core scans a million keys in about a second.
const FIRST_SCAN_WAIT_MAX: Duration = Duration::from_secs(2);

/// Maximum time that a request waits for the newest changes. The wait is usually some milliseconds,
/// and longer only while thousands of keys change at once.
const CHANGES_WAIT_MAX: Duration = Duration::from_millis(100);

/// Interval between two scans of changes if no request waits. At 5,000 changes/s, a scan applies
/// some 500 changes together, so that they share copied tree nodes.
const SCAN_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum pause after a long scan. While a million keys arrive, other work gets half of the core.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The finding index and the task that updates it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct FindingIndexHandle {
    newest: watch::Receiver<Option<FindingIndex>>,
    /// Signals that a request waits for the newest changes.
    refresh: Arc<Notify>,
    /// The task; ends with the last clone.
    _tasks: Arc<JoinSet<()>>,
}

/// Finding index for one request.
#[derive(Debug)]
pub(crate) struct CurrentFindingIndex {
    /// The newest index; `None` before the first scan is complete.
    pub(crate) index: Option<FindingIndex>,
    /// True if it covers everything that the request's reading has.
    pub(crate) is_complete: bool,
}

impl FindingIndexHandle {
    /// Starts the task, which begins once the store is loaded and ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let (sender, newest) = watch::channel(None);
        let refresh = Arc::<Notify>::default();
        let mut tasks = JoinSet::new();
        let task = FindingIndexTask { handle, newest: sender, refresh: Arc::clone(&refresh) };
        tasks.spawn(async move { stop.run_until_cancelled(task.run()).await.flatten().unwrap_or_default() });
        Self { newest, refresh, _tasks: Arc::new(tasks) }
    }

    /// Returns a handle with the sender that sets its index.
    #[cfg(test)]
    pub(crate) fn with_sender() -> (Self, watch::Sender<Option<FindingIndex>>) {
        let (sender, newest) = watch::channel(None);
        (Self { newest, refresh: Arc::default(), _tasks: Arc::default() }, sender)
    }

    /// Returns the newest index without waiting.
    pub(crate) fn newest(&self) -> Option<FindingIndex> {
        self.newest.borrow().clone()
    }

    /// Waits for an index that covers everything that a reading has. If that takes too long,
    /// returns the newest one.
    pub(crate) async fn wait_for_index(&self, reading: &Reading) -> CurrentFindingIndex {
        let position = reading.position().sequence;
        let mut newest = self.newest.clone();
        let is_current = |index: &Option<FindingIndex>| index.as_ref().is_some_and(|index| index.position() >= position);
        let wait_max = if newest.borrow().is_some() { CHANGES_WAIT_MAX } else { FIRST_SCAN_WAIT_MAX };
        self.refresh.notify_one();
        let wait_result = tokio::time::timeout(wait_max, newest.wait_for(is_current)).await;
        let is_complete = wait_result.is_ok_and(|index| index.is_ok());
        let index = newest.borrow().clone();
        CurrentFindingIndex { index, is_complete }
    }
}

struct FindingIndexTask {
    handle: Handle,
    newest: watch::Sender<Option<FindingIndex>>,
    refresh: Arc<Notify>,
}

impl FindingIndexTask {
    /// Scans and follows changes until the committer has ended.
    async fn run(self) -> Option<()> {
        let mut signal = self.handle.signal_once_loaded().await?;
        let mut builder = FindingIndexBuilder::new(self.handle.try_reading()?);
        loop {
            let started = Instant::now();
            let index = run_scan(builder).await?;
            self.newest.send_replace(Some(index.clone()));
            let pause = started.elapsed().clamp(SCAN_INTERVAL, PAUSE_MAX);
            signal.changed().await.ok()?;
            // changes that arrive during the pause are applied together
            drop(tokio::time::timeout(pause, self.refresh.notified()).await);
            signal.borrow_and_update();
            builder = FindingIndexBuilder::update(index, self.handle.try_reading()?);
        }
    }
}

/// Runs a scan to its end, slice by slice.
async fn run_scan(mut builder: FindingIndexBuilder) -> Option<FindingIndex> {
    loop {
        match spawn_blocking(move || builder.advance()).await.ok()? {
            ControlFlow::Break(index) => return Some(index),
            ControlFlow::Continue(unfinished) => builder = unfinished,
        }
    }
}

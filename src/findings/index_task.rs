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

/// Maximum pause while a first list is being read. Most first lists end earlier, and then a single
/// scan reads all their keys.
const FIRST_LIST_PAUSE_MAX: Duration = Duration::from_secs(5);

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
            self.pause(pause).await?;
            signal.borrow_and_update();
            builder = FindingIndexBuilder::update(index, self.handle.try_reading()?);
        }
    }

    /// Waits until a request needs the newest changes, at most for `pause`. While a first list is
    /// being read, the wait is up to [`FIRST_LIST_PAUSE_MAX`].
    async fn pause(&self, pause: Duration) -> Option<()> {
        let started = tokio::time::Instant::now();
        loop {
            let is_requested = tokio::time::timeout(pause, self.refresh.notified()).await.is_ok();
            let is_first_list = self.handle.try_reading()?.summary().has_first_lists;
            if is_requested || !is_first_list || started.elapsed() >= FIRST_LIST_PAUSE_MAX {
                return Some(());
            }
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::commit::{MirrorSnapshot, SnapshotPublisher, snapshot_channel};
    use crate::feed::{Feed, Retention};
    use crate::handle::ProcessState;
    use crate::model::{ClusterName, Command, Epoch, Kind, Phase, Scope, Sequence};
    use crate::view::View;

    /// A mirror without a committer.
    struct Mirror {
        snapshot: MirrorSnapshot,
        publisher: SnapshotPublisher,
    }

    impl Mirror {
        fn start() -> (Self, Handle) {
            let start = Sequence(1);
            let feed = Feed::starting_at(start, Retention { age_max: Duration::from_secs(60), count_max: 100 });
            let snapshot = MirrorSnapshot { view: View::starting_at(start), feed, epoch: Epoch(7), earlier_runs: Arc::default() };
            let (publisher, receiver) = snapshot_channel(snapshot.clone());
            let handle = Handle::new(ProcessState::without_clusters(watch::channel(Some(receiver)).1));
            (Self { snapshot, publisher }, handle)
        }

        /// Applies commands and publishes the result. Returns its sequence.
        fn apply(&mut self, commands: Vec<Command>) -> Sequence {
            let now = SystemTime::now();
            for announcement in self.snapshot.view.apply_all(commands, now).announcements {
                self.snapshot.feed.announce(announcement, now);
            }
            self.publisher.publish(self.snapshot.clone());
            self.snapshot.feed.head()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_scan_waits_for_the_end_of_a_first_list_but_not_for_ever() {
        let (mut mirror, handle) = Mirror::start();
        let index = FindingIndexHandle::new(handle, CancellationToken::new());
        let mut newest = index.newest.clone();
        newest.wait_for(Option::is_some).await.unwrap();
        let cluster = ClusterName::parse("paris").unwrap();
        let phase = |phase| Command::Phase { cluster: cluster.clone(), phase, cause: 0 };
        let scanned_after = async |newest: &mut watch::Receiver<Option<FindingIndex>>, sequence| {
            let started = tokio::time::Instant::now();
            newest.wait_for(|index| index.as_ref().is_some_and(|index| index.position() >= sequence)).await.unwrap();
            started.elapsed()
        };
        let listing = mirror.apply(vec![Command::BeginList(Scope { cluster: cluster.clone(), kind: Kind::Ip }), phase(Phase::Listing)]);
        let waited = scanned_after(&mut newest, listing).await;
        assert!((FIRST_LIST_PAUSE_MAX..FIRST_LIST_PAUSE_MAX + PAUSE_MAX).contains(&waited), "{waited:?}");
        let confirmed = Kind::ALL.map(|kind| Command::Confirm(Scope { cluster: cluster.clone(), kind }));
        let live = mirror.apply(confirmed.into_iter().chain([phase(Phase::Live)]).collect());
        let waited = scanned_after(&mut newest, live).await;
        assert!(waited < FIRST_LIST_PAUSE_MAX, "{waited:?}");
    }
}

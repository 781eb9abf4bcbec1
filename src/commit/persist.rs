//! The storing half of the committer: syncs the log in groups, and lets the store apply them.
//!
//! Changes that wait to be stored are merged by key, so they are at most the newest state of all
//! changed keys. If the store fails, for example on a full disk, everything is tried again while
//! serving continues. A group is always the state of one moment, so a loss only means that the
//! remotes are read again from an older cursor.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::pending_changes::PendingChanges;
use crate::instruments::{Histogram, LogLimiter, LogPermit, REMINDER_INTERVAL, ReminderSchedule, trace_operation};
use crate::model::readable_error;
use crate::store::{Group, Store, StoreError};

/// Time for which changes gather before they are stored together. docs/develop/measurements.md §1.1
/// uses 25 ms at high rates. At low rates the time is longer, because writing a group has a fixed
/// cost, which exceeds that of the few changes in it.
const GROUP_WINDOW: Duration = Duration::from_millis(25);

/// Time for which changes gather while they are few. A change must be durable within 60 ms, of
/// which storing takes up to 20.
const CALM_GROUP_WINDOW: Duration = Duration::from_millis(40);

/// Number of changes per [`GROUP_WINDOW`] below which changes count as few: 5,000 per second.
const CALM_CHANGES_MAX: usize = 125;

/// Number of waiting changes above which the committer waits for the store, so that a group has at
/// most about 10 MB (300 B per key).
const WAITING_CHANGES_MAX: usize = 32_768;

/// Bytes of waiting changes, including decoded objects, above which the committer waits for the
/// store. About twice the size of [`WAITING_CHANGES_MAX`] usual changes, which have 0.9 KB each.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Maximum number of changed keys that wait while the store fails. Above it storing stops until the
/// next start. All keys of the largest mesh of 255 clusters fit (620,000 keys, among them 50,000
/// nodes, 500,000 pods, 40,000 identities and 10,000 services). At 300 B per key the limit is about
/// 300 MB.
const WAITING_WHILE_FAILING_MAX: usize = 1_000_000;

/// Maximum size of the changes that wait while the store fails, including decoded objects: about
/// 670,000 keys of 0.9 KB. Unpacked objects are shared with the mirror, so they cost no additional
/// memory.
const WAITING_BYTES_WHILE_FAILING_MAX: usize = 576 << 20;

/// Wait after a failure before the store is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time without a change after which the store is tidied. Not measured: long enough that a mesh
/// with a change every few seconds does not write whole chunks for each change.
const TIDY_DELAY: Duration = Duration::from_secs(10);

/// Interval and total time of the calls of [`Persistence::trim_memory`] after the last group or the
/// start. sled continues to empty segments of its log, and keeps the pages that it reads for that
/// in memory. After opening a store with a million keys this took 12 s.
const TRIM_INTERVAL: Duration = Duration::from_secs(1);
const TRIM_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum time by which tidying may delay a new group.
const TIDY_TIME_MAX: Duration = Duration::from_millis(20);

/// Recently logged messages about storing. A disk that alternates between full and not full must
/// not fill the log.
static LOGGED_CAUSES: LogLimiter = LogLimiter::new();

/// A store of groups: [`Store`], or a replacement for it in tests.
pub trait Persistence: Send + 'static {
    /// Stores a group durably, all of it or nothing.
    ///
    /// # Errors
    /// An error of the disk. Nothing of the group is stored then.
    fn persist(&self, group: &Group) -> Result<(), StoreError>;

    /// Does the work that is due after a group was stored, such as folding, until about the given
    /// instant, when the next group may come.
    ///
    /// # Errors
    /// An error of the disk. Nothing that was stored is lost.
    fn maintain(&self, _until: Instant) -> Result<(), StoreError> {
        Ok(())
    }

    /// Releases cached memory. Called every second during the first minute without changes.
    fn trim_memory(&self) {}

    /// Does part of the work that is due after 10 s without changes. Returns whether more is left.
    ///
    /// # Errors
    /// An error of the disk. Nothing that was stored is lost.
    fn tidy(&self) -> Result<bool, StoreError> {
        Ok(false)
    }
}

impl Persistence for Store {
    fn persist(&self, group: &Group) -> Result<(), StoreError> {
        trace_operation("store a group", || ("meshkeep.changes", i64::try_from(group.len()).unwrap_or(i64::MAX)), || self.apply(group))
    }

    fn maintain(&self, until: Instant) -> Result<(), StoreError> {
        self.fold_due(until).inspect_err(log_fold_error)
    }

    fn trim_memory(&self) {
        self.evict_pages();
    }

    fn tidy(&self) -> Result<bool, StoreError> {
        self.fold_within(TIDY_TIME_MAX).map(|is_done| !is_done).inspect_err(log_fold_error)
    }
}

fn log_fold_error(error: &StoreError) {
    if let Some(LogPermit { more }) = LOGGED_CAUSES.permit(&format!("unmoved {error}")) {
        tracing::error!(%error, more, "cannot move changes from the log into the store: reopening the store's database");
    }
}

/// State of storing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistState {
    /// The last group was stored.
    Healthy,
    /// The last attempt failed, or stored changes are only in the log. Storing is tried again.
    Failing {
        /// Error of the store.
        error: String,
    },
    /// Nothing is stored, for one of two reasons. If the log is full, storing continues by itself
    /// once the store's database accepts changes again. If too many changes waited, storing has
    /// stopped until the next start.
    Stopped {
        /// Last error of the store.
        error: String,
    },
}

/// Next work of the storing thread.
enum PersistTask {
    Group {
        group: Box<Group>,
        /// Time of the group's first change.
        since: Option<Instant>,
        /// True if no group follows.
        last: bool,
    },
    /// A second has passed without changes.
    TrimMemory,
    /// [`TIDY_DELAY`] has passed without changes.
    Tidy,
    /// The committer has finished.
    End,
}

#[derive(Debug, Default)]
struct PersistQueue {
    pending: PendingChanges,
    since: Option<Instant>,
    /// Number of changes that the committer is appending to the log.
    writing: usize,
    /// Group that is being stored: number of changes, and the time of the first.
    storing: Option<(usize, Option<Instant>)>,
    failing: bool,
    stopped: bool,
    finished: bool,
}

#[derive(Debug, Default)]
struct SharedQueue {
    waiting: Mutex<PersistQueue>,
    changed: Condvar,
    /// Times from the first change of a group until the group is stored.
    times: Arc<Histogram>,
}

/// The committer's end of the queue. Accepts groups, and blocks while too much is waiting.
#[derive(Debug)]
pub struct Persister {
    shared: Arc<SharedQueue>,
}

/// The storing thread's end of the queue. [`PersistWorker::run`] needs its own thread.
#[derive(Debug)]
pub struct PersistWorker<P> {
    shared: Arc<SharedQueue>,
    persistence: P,
    state: watch::Sender<PersistState>,
    reminders: Mutex<ReminderSchedule<()>>,
}

/// Reports the changes that are not synced, without waiting for the store.
#[derive(Debug, Clone)]
pub struct UnsyncedCounter(Arc<SharedQueue>);

/// Changes that are not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsyncedChanges {
    /// Number of keys, cursors and tombstones that the committer has applied and that are not known
    /// to be synced.
    pub changes: usize,
    /// Time at which the oldest unsynced change began to wait.
    pub since: Option<Instant>,
}

impl UnsyncedCounter {
    /// Returns the current counts.
    #[must_use]
    pub fn counts(&self) -> UnsyncedChanges {
        let waiting = self.0.lock();
        let (storing, storing_since) = waiting.storing.unwrap_or_default();
        UnsyncedChanges { changes: waiting.writing + storing + waiting.pending.len(), since: storing_since.or(waiting.since) }
    }
}

/// Creates both ends of the queue. The worker sends the state of storing to `state`.
pub fn persister<P: Persistence>(persistence: P, state: watch::Sender<PersistState>) -> (Persister, PersistWorker<P>) {
    let shared = Arc::new(SharedQueue::default());
    (
        Persister { shared: Arc::clone(&shared) },
        PersistWorker { shared, persistence, state, reminders: Mutex::new(ReminderSchedule::new(REMINDER_INTERVAL)) },
    )
}

impl PersistQueue {
    /// Moves out the waiting changes in order to store them.
    fn start_storing(&mut self) -> (Group, Option<Instant>) {
        let since = self.since.take();
        self.storing = Some((self.pending.len(), since));
        (self.pending.take_group(), since)
    }

    /// Returns the time left until the waiting changes must be stored, given that the first of them
    /// has waited for `waited`. `None` if they must be stored now.
    fn time_left(&self, waited: Duration) -> Option<Duration> {
        let is_calm = waited >= GROUP_WINDOW && self.pending.len() < CALM_CHANGES_MAX;
        let window = if self.failing {
            RETRY_INTERVAL
        } else if is_calm {
            CALM_GROUP_WINDOW
        } else {
            GROUP_WINDOW
        };
        // above the limit the store is tried at once: either it accepts the changes, or they are
        // dropped
        let is_due = if self.failing { self.exceeds_failing_limit() } else { self.is_full() };
        window.checked_sub(waited).filter(|left| !left.is_zero() && !is_due)
    }

    /// Returns whether a healthy store is too far behind.
    fn is_full(&self) -> bool {
        self.pending.len() > WAITING_CHANGES_MAX || self.pending.bytes() > WAITING_BYTES_MAX
    }

    /// Returns whether a failing store is too far behind.
    fn exceeds_failing_limit(&self) -> bool {
        self.pending.len() > WAITING_WHILE_FAILING_MAX || self.pending.bytes() > WAITING_BYTES_WHILE_FAILING_MAX
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, PersistQueue> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, PersistQueue>, timeout: Option<Duration>) -> MutexGuard<'a, PersistQueue> {
        match timeout {
            None => self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => self.changed.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        }
    }
}

impl Persister {
    /// Records that the committer is appending a group to the log. This may take any time and is
    /// followed by [`Self::push`].
    pub fn set_writing(&self, group: &Group) {
        self.shared.lock().writing = group.len();
    }

    /// Adds a group to the waiting changes. Returns the number of waiting changes and their bytes.
    ///
    /// Blocks while a healthy store is too far behind, but never for a failing one.
    pub fn push(&self, group: Group) -> (usize, usize) {
        let mut waiting = self.shared.lock();
        waiting.writing = 0;
        while waiting.is_full() && !waiting.failing && !waiting.stopped {
            waiting = self.shared.wait(waiting, None);
        }
        if waiting.stopped {
            return (0, 0);
        }
        waiting.pending.add(group);
        // changes that join a window need not wake the storing thread, which waits for the window
        // to end: at some thousand batches per second the calls would cost more than the changes
        if waiting.since.is_none() || waiting.is_full() {
            waiting.since.get_or_insert_with(Instant::now);
            self.shared.changed.notify_all();
        }
        (waiting.pending.len(), waiting.pending.bytes())
    }

    /// Returns the times from the first change of a group until the group is stored.
    pub(super) fn times(&self) -> Arc<Histogram> {
        Arc::clone(&self.shared.times)
    }

    /// Announces that no group will follow.
    pub fn finish(&self) {
        self.shared.lock().finished = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Persister {
    fn drop(&mut self) {
        self.finish();
    }
}

impl<P: Persistence> PersistWorker<P> {
    /// Runs `work` with the store once, now, before any group is stored.
    #[must_use]
    pub fn with_store(self, work: impl FnOnce(&P)) -> Self {
        work(&self.persistence);
        self
    }

    /// Adds changes that could not be stored before. They are tried again like a failed group,
    /// together with newer changes.
    #[must_use]
    pub fn with_unstored(self, unstored: Option<(Group, StoreError)>) -> Self {
        if let Some((group, error)) = unstored {
            self.record_failure(group, &error);
        }
        self
    }

    /// Returns a counter of the changes that are not synced. The shutdown logs its result.
    pub fn unsynced(&self) -> UnsyncedCounter {
        UnsyncedCounter(Arc::clone(&self.shared))
    }

    /// Stores groups until the committer has finished and nothing waits, or the last attempt fails.
    /// Returns the store.
    pub fn run(self) -> P {
        let mut needs_tidying = true;
        let (mut idle_since, mut trimmed_at) = (Instant::now(), Instant::now());
        let mut maintain_from = idle_since;
        loop {
            let trim_at = (trimmed_at < idle_since + TRIM_TIME_MAX).then(|| trimmed_at + TRIM_INTERVAL);
            let tidy_at = needs_tidying.then(|| idle_since + TIDY_DELAY);
            let (group, since, last) = match self.next_group(trim_at, tidy_at) {
                PersistTask::Group { group, since, last } => (*group, since, last),
                PersistTask::TrimMemory => {
                    self.persistence.trim_memory();
                    trimmed_at = Instant::now();
                    continue;
                }
                PersistTask::Tidy => {
                    needs_tidying = self.tidy();
                    // a failed attempt is repeated after the same time
                    idle_since = Instant::now();
                    continue;
                }
                PersistTask::End => break,
            };
            needs_tidying = true;
            // the first change of the next group comes now at the earliest, so its window cannot
            // end before this
            let next_at = Instant::now() + GROUP_WINDOW;
            let outcome = self.persistence.persist(&group);
            self.shared.lock().storing = None;
            match outcome {
                Ok(()) => {
                    self.record_success();
                    if let Some(since) = since {
                        self.shared.times.record(since.elapsed());
                    }
                    if Instant::now() >= maintain_from {
                        let outcome = self.persistence.maintain(next_at);
                        maintain_from = Instant::now() + outcome.as_ref().map_or(RETRY_INTERVAL, |()| Duration::ZERO);
                        self.publish_outcome(outcome);
                    }
                }
                Err(error) => self.record_failure(group, &error),
            }
            idle_since = Instant::now();
            trimmed_at = idle_since;
            if last && self.shared.lock().failing {
                tracing::error!(
                    "could not store the newest changes before the process ended: the next start reads them from the remote clusters again"
                );
                break;
            }
        }
        self.persistence
    }

    /// Tidies the store while no group comes. Returns whether something is left to do.
    fn tidy(&self) -> bool {
        while !self.has_work() {
            let outcome = self.persistence.tidy();
            let (work_remains, stop_now) = (!matches!(outcome, Ok(false)), !matches!(outcome, Ok(true)));
            if stop_now {
                self.publish_outcome(outcome.map(drop));
                return work_remains;
            }
        }
        true
    }

    /// Returns whether a group waits or the committer has finished.
    fn has_work(&self) -> bool {
        let waiting = self.shared.lock();
        waiting.finished || waiting.since.is_some()
    }

    /// Waits for a group whose window is over, or until other work is due.
    fn next_group(&self, trim_at: Option<Instant>, tidy_at: Option<Instant>) -> PersistTask {
        let mut waiting = self.shared.lock();
        loop {
            if waiting.finished {
                let (group, since) = waiting.start_storing();
                return if group.is_empty() { PersistTask::End } else { PersistTask::Group { group: group.into(), since, last: true } };
            }
            let timeout = match waiting.since {
                None if tidy_at.is_some_and(|at| Instant::now() >= at) => return PersistTask::Tidy,
                None if trim_at.is_some_and(|at| Instant::now() >= at) => return PersistTask::TrimMemory,
                None => trim_at.into_iter().chain(tidy_at).min().map(|at| at.saturating_duration_since(Instant::now())),
                Some(since) => match waiting.time_left(since.elapsed()) {
                    Some(left) => Some(left),
                    None => break,
                },
            };
            waiting = self.shared.wait(waiting, timeout);
        }
        let (group, since) = waiting.start_storing();
        self.shared.changed.notify_all();
        PersistTask::Group { group: group.into(), since, last: false }
    }

    fn record_success(&self) {
        if std::mem::take(&mut self.shared.lock().failing) {
            self.remind(false);
            if let Some(LogPermit { more }) = LOGGED_CAUSES.permit("works") {
                tracing::info!(more, "the store can be written again");
            }
        }
    }

    /// Publishes the outcome of maintaining or tidying the store, unless storing has stopped.
    fn publish_outcome(&self, outcome: Result<(), StoreError>) {
        if self.shared.lock().stopped {
            return;
        }
        let state = outcome.map_or_else(|error| PersistState::Failing { error: readable_error(error) }, |()| PersistState::Healthy);
        self.state.send_if_modified(|current| {
            let differs = *current != state;
            *current = state;
            differs
        });
    }

    /// Returns how long storing has been failing, if a reminder is due.
    fn remind(&self, failing: bool) -> Vec<((), Duration)> {
        self.reminders.lock().unwrap_or_else(PoisonError::into_inner).due(failing.then_some(()), Instant::now())
    }

    /// Puts the group back, overridden by newer changes, and publishes the failure.
    fn record_failure(&self, group: Group, error: &StoreError) {
        let mut waiting = self.shared.lock();
        if !waiting.failing
            && let Some(LogPermit { more }) = LOGGED_CAUSES.permit(&error.to_string())
        {
            tracing::error!(%error, more, "cannot write the store: trying again every second, the API is not affected");
        }
        for ((), failing_for) in self.remind(true) {
            tracing::error!(%error, minutes = failing_for.as_secs() / 60, waiting = waiting.pending.len(), "the store still cannot be written: trying again, the API is not affected");
        }
        waiting.failing = true;
        waiting.since = Some(Instant::now());
        waiting.pending.put_back(group);
        if waiting.exceeds_failing_limit() {
            tracing::error!(%error, "too many changes wait for the store: meshkeep stops writing to the store until it is restarted");
            waiting.pending = PendingChanges::default();
            waiting.stopped = true;
            waiting.since = None;
        }
        let is_full = matches!(error, StoreError::LogFull { .. });
        let error = readable_error(error);
        self.state.send_replace(if waiting.stopped || is_full { PersistState::Stopped { error } } else { PersistState::Failing { error } });
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;

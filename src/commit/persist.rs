//! The half of the writer that stores: syncs what is in the log in groups, and lets the store take it in.
//!
//! What waits to be stored is kept merged by key, so it is never more than the newest state of what changed. A store that fails
//! (a full disk) is tried again with everything that waits; serving goes on meanwhile. What is stored is always the state of one
//! moment, so a loss only means that the remotes are read again from an older cursor.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::gathered::Gathered;
use crate::model::{Causes, Due, Histogram, REMINDER_INTERVAL, Reminders, in_words};
use crate::store::{Group, Store, StoreError};

/// How long changes gather before they are stored together: docs/develop/measurements.md §1.1 found 25 ms at high rates, and longer at low ones, where a
/// group costs the disk more than what is in it.
const GROUP_WINDOW: Duration = Duration::from_millis(25);

/// How long changes gather while they are few: a change is to be durable within 60 ms, of which storing takes up to 20.
const CALM_GROUP_WINDOW: Duration = Duration::from_millis(40);

/// The rate above which changes are no longer few, per [`GROUP_WINDOW`]: 5,000 a second.
const CALM_CHANGES_MAX: usize = 125;

/// Above this many changes the writer waits for the store, so that one batch stays within some 10 MB (300 B a key).
const WAITING_CHANGES_MAX: usize = 32_768;

/// The bytes above which the writer waits for the store, decoded objects included: twice what [`WAITING_CHANGES_MAX`] usual changes take, of some 0.9 KB each.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// While the store fails, so many changed keys are kept for it: as many as the largest set of a mesh of 255 clusters has
/// (620k keys: 255 clusters with 50,000 nodes and 500,000 pods), at most some 300 MB. Above that storing stops until the next start.
const WAITING_WHILE_FAILING_MAX: usize = 1_000_000;

/// The bound by bytes while the store fails, decoded objects included: half of the keys of that set if each has 0.9 KB; the mirror shares those that are not
/// packed.
const WAITING_BYTES_WHILE_FAILING_MAX: usize = 512 << 20;

/// How long a failed store is left alone before the next try.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// After so long without a change the store is tidied. Not measured: long enough that a mesh in which something changes every few
/// seconds does not write whole chunks for each change.
const QUIET: Duration = Duration::from_secs(10);

/// How often the store is looked after while nothing comes, and for how long after the last group or the start: sled goes on emptying segments
/// of its log, by itself, and keeps what it reads for that. After an open with a million keys it was done after 12 s.
const REST_INTERVAL: Duration = Duration::from_secs(1);
const REST_TIME_MAX: Duration = Duration::from_secs(60);

/// How long tidying may keep a group waiting that comes meanwhile.
const TIDY_TIME_MAX: Duration = Duration::from_millis(20);

/// What was logged lately about storing: a disk that is full at one moment and not at the next must not fill the log.
static TOLD: Causes = Causes::new();

/// Something that stores groups: the store, or a failing one in tests.
pub trait Persistence: Send + 'static {
    /// Stores a group, all of it or none, durably.
    ///
    /// # Errors
    /// Whatever the disk says; nothing of the group is stored then.
    fn persist(&self, group: &Group) -> Result<(), StoreError>;

    /// Does what is due after a group was stored, before the next one, which may come then.
    ///
    /// # Errors
    /// Whatever the disk says; nothing that was stored is lost.
    fn tend(&self, _until: Instant) -> Result<(), StoreError> {
        Ok(())
    }

    /// Does what is due each second while nothing comes, for a minute.
    fn rest(&self) {}

    /// Does what can be done when nothing has come for 10 s. Returns whether there is more to do.
    ///
    /// # Errors
    /// Whatever the disk says; nothing that was stored is lost.
    fn tidy(&self) -> Result<bool, StoreError> {
        Ok(false)
    }
}

impl Persistence for Store {
    fn persist(&self, group: &Group) -> Result<(), StoreError> {
        self.apply(group)
    }

    fn tend(&self, until: Instant) -> Result<(), StoreError> {
        Self::tend(self, until).inspect_err(tell_unmoved)
    }

    fn rest(&self) {
        self.forget_pages();
    }

    fn tidy(&self) -> Result<bool, StoreError> {
        self.settle(TIDY_TIME_MAX).map(|settled| !settled).inspect_err(tell_unmoved)
    }
}

fn tell_unmoved(error: &StoreError) {
    if let Some(Due { more }) = TOLD.due(&format!("unmoved {error}")) {
        tracing::error!(%error, more, "cannot move changes from the log to where they stay: the engine is opened anew");
    }
}

/// How storing goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PersistState {
    /// The last group was stored.
    Healthy,
    /// The last try failed, or what is stored stays in the log alone; it is tried again.
    Failing {
        /// What the store said.
        error: String,
    },
    /// The log is full, and nothing is stored until the engine takes changes again; or too much waited, and nothing is stored until the next
    /// start, which begins with what was stored before.
    Stopped {
        /// What the store said last.
        error: String,
    },
}

/// What the storing end does next.
enum Next {
    /// Store this.
    Group {
        group: Box<Group>,
        /// When its first change came.
        since: Option<Instant>,
        /// Nothing comes behind it.
        last: bool,
    },
    /// Nothing has come for a second.
    Rest,
    /// Nothing has come for a while.
    Quiet,
    /// Nothing will come.
    End,
}

#[derive(Debug, Default)]
struct Waiting {
    gathered: Gathered,
    since: Option<Instant>,
    /// How many changes the writer is writing to the log.
    writing: usize,
    /// What the store is busy with: how many changes, and since when they wait.
    storing: Option<(usize, Option<Instant>)>,
    failing: bool,
    stopped: bool,
    finished: bool,
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// From when the first change of a group came until all of it is stored.
    times: Arc<Histogram>,
}

/// The writer's end: takes groups, waits while too much is waiting.
#[derive(Debug)]
pub struct Persister {
    shared: Arc<Shared>,
}

/// The storing end: give its [`PersistWorker::run`] a thread.
#[derive(Debug)]
pub struct PersistWorker<P> {
    shared: Arc<Shared>,
    persistence: P,
    state: watch::Sender<PersistState>,
    reminders: Mutex<Reminders<()>>,
}

/// Tells at any time what is not synced, without waiting for the store.
#[derive(Debug, Clone)]
pub struct Unsynced(Arc<Shared>);

/// What is not synced at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnsyncedChanges {
    /// The number of keys, cursors and tombstones that the writer has applied and that are not known to be synced.
    pub changes: usize,
    /// Since when the oldest of them waits.
    pub since: Option<Instant>,
}

impl Unsynced {
    /// What is not synced now.
    #[must_use]
    pub fn now(&self) -> UnsyncedChanges {
        let waiting = self.0.lock();
        let (storing, storing_since) = waiting.storing.unwrap_or_default();
        UnsyncedChanges { changes: waiting.writing + storing + waiting.gathered.len(), since: storing_since.or(waiting.since) }
    }
}

/// Makes both ends; `state` is told how it goes.
pub fn persister<P: Persistence>(persistence: P, state: watch::Sender<PersistState>) -> (Persister, PersistWorker<P>) {
    let shared = Arc::new(Shared::default());
    (
        Persister { shared: Arc::clone(&shared) },
        PersistWorker { shared, persistence, state, reminders: Mutex::new(Reminders::new(REMINDER_INTERVAL)) },
    )
}

impl Waiting {
    /// Takes what waits, to store it.
    fn take(&mut self) -> (Group, Option<Instant>) {
        let since = self.since.take();
        self.storing = Some((self.gathered.len(), since));
        (self.gathered.take(), since)
    }

    /// How long to wait until it is looked at again, if it has waited so long; `None` once it is time.
    fn left(&self, waited: Duration) -> Option<Duration> {
        let is_calm = waited >= GROUP_WINDOW && self.gathered.len() < CALM_CHANGES_MAX;
        let window = if self.failing {
            RETRY_INTERVAL
        } else if is_calm {
            CALM_GROUP_WINDOW
        } else {
            GROUP_WINDOW
        };
        // more than may wait is tried at once: it is stored, or what waits is given up
        let must_go = if self.failing { self.is_too_much() } else { self.is_full() };
        window.checked_sub(waited).filter(|left| !left.is_zero() && !must_go)
    }

    /// Whether a healthy store is too far behind.
    fn is_full(&self) -> bool {
        self.gathered.len() > WAITING_CHANGES_MAX || self.gathered.bytes() > WAITING_BYTES_MAX
    }

    /// Whether a failing store is too far behind.
    fn is_too_much(&self) -> bool {
        self.gathered.len() > WAITING_WHILE_FAILING_MAX || self.gathered.bytes() > WAITING_BYTES_WHILE_FAILING_MAX
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, guard: MutexGuard<'a, Waiting>, timeout: Option<Duration>) -> MutexGuard<'a, Waiting> {
        match timeout {
            None => self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => self.changed.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        }
    }
}

impl Persister {
    /// Notes that the log is being written with a group, which may take any time and is followed by [`Self::push`].
    pub fn note_writing(&self, group: &Group) {
        self.shared.lock().writing = group.len();
    }

    /// Adds a group to what waits, and says how many changes and bytes wait now. Blocks while a healthy store is too far behind; never for a failing one.
    pub fn push(&self, group: Group) -> (usize, usize) {
        let mut waiting = self.shared.lock();
        waiting.writing = 0;
        while waiting.is_full() && !waiting.failing && !waiting.stopped {
            waiting = self.shared.wait(waiting, None);
        }
        if waiting.stopped {
            return (0, 0);
        }
        waiting.gathered.add(group);
        // the thread that waits for the window to end needs no call for what joins it, which at some thousand batches a second would cost
        // more than they do
        if waiting.since.is_none() || waiting.is_full() {
            waiting.since.get_or_insert_with(Instant::now);
            self.shared.changed.notify_all();
        }
        (waiting.gathered.len(), waiting.gathered.bytes())
    }

    /// From when the first change of a group came until all of it is stored.
    pub(super) fn times(&self) -> Arc<Histogram> {
        Arc::clone(&self.shared.times)
    }

    /// Says that nothing more will come.
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
    /// Does something else with what stores, before all groups.
    #[must_use]
    pub fn after(self, work: impl FnOnce(&P)) -> Self {
        work(&self.persistence);
        self
    }

    /// Tries what could not be stored before again, before and with all that comes.
    #[must_use]
    pub fn owing(self, owed: Option<(Group, StoreError)>) -> Self {
        if let Some((group, error)) = owed {
            self.failed(group, &error);
        }
        self
    }

    /// Changes that are not synced yet; the end of the process logs them.
    pub fn unsynced(&self) -> Unsynced {
        Unsynced(Arc::clone(&self.shared))
    }

    /// Stores groups until the writer has finished and nothing waits, or the last try fails. Gives the store back.
    pub fn run(self) -> P {
        let mut untidy = true;
        let (mut calm_since, mut rested) = (Instant::now(), Instant::now());
        let mut tend_from = calm_since;
        loop {
            let rest_at = (rested < calm_since + REST_TIME_MAX).then(|| rested + REST_INTERVAL);
            let quiet_at = untidy.then(|| calm_since + QUIET);
            let (group, since, last) = match self.next_group(rest_at, quiet_at) {
                Next::Group { group, since, last } => (*group, since, last),
                Next::Rest => {
                    self.persistence.rest();
                    rested = Instant::now();
                    continue;
                }
                Next::Quiet => {
                    untidy = self.tidy();
                    // what failed is tried again after as long
                    calm_since = Instant::now();
                    continue;
                }
                Next::End => break,
            };
            untidy = true;
            // the window of the next group begins with its first change, no earlier than now
            let next_at = Instant::now() + GROUP_WINDOW;
            let outcome = self.persistence.persist(&group);
            self.shared.lock().storing = None;
            match outcome {
                Ok(()) => {
                    self.succeeded();
                    if let Some(since) = since {
                        self.shared.times.note(since.elapsed());
                    }
                    if Instant::now() >= tend_from {
                        let outcome = self.persistence.tend(next_at);
                        tend_from = Instant::now() + outcome.as_ref().map_or(RETRY_INTERVAL, |()| Duration::ZERO);
                        self.tended(outcome);
                    }
                }
                Err(error) => self.failed(group, &error),
            }
            calm_since = Instant::now();
            rested = calm_since;
            if last && self.shared.lock().failing {
                tracing::error!("the newest changes could not be stored before the end: they are read again at the next start");
                break;
            }
        }
        self.persistence
    }

    /// Does what can be done while nothing comes; returns whether something is left to do.
    fn tidy(&self) -> bool {
        while !self.is_wanted() {
            let outcome = self.persistence.tidy();
            let (is_left, is_over) = (!matches!(outcome, Ok(false)), !matches!(outcome, Ok(true)));
            if is_over {
                self.tended(outcome.map(drop));
                return is_left;
            }
        }
        true
    }

    /// Whether a group waits, or the end.
    fn is_wanted(&self) -> bool {
        let waiting = self.shared.lock();
        waiting.finished || waiting.since.is_some()
    }

    /// Waits for a group whose window is over, or until it is time for something else.
    fn next_group(&self, rest_at: Option<Instant>, quiet_at: Option<Instant>) -> Next {
        let mut waiting = self.shared.lock();
        loop {
            if waiting.finished {
                let (group, since) = waiting.take();
                return if group.is_empty() { Next::End } else { Next::Group { group: group.into(), since, last: true } };
            }
            let timeout = match waiting.since {
                None if quiet_at.is_some_and(|at| Instant::now() >= at) => return Next::Quiet,
                None if rest_at.is_some_and(|at| Instant::now() >= at) => return Next::Rest,
                None => rest_at.into_iter().chain(quiet_at).min().map(|at| at.saturating_duration_since(Instant::now())),
                Some(since) => match waiting.left(since.elapsed()) {
                    Some(left) => Some(left),
                    None => break,
                },
            };
            waiting = self.shared.wait(waiting, timeout);
        }
        let (group, since) = waiting.take();
        self.shared.changed.notify_all();
        Next::Group { group: group.into(), since, last: false }
    }

    fn succeeded(&self) {
        if std::mem::take(&mut self.shared.lock().failing) {
            self.remind(false);
            if let Some(Due { more }) = TOLD.due("works") {
                tracing::info!(more, "storing works again");
            }
        }
    }

    /// Says how it goes, where nothing waits to be stored and that is how the store was tended.
    fn tended(&self, outcome: Result<(), StoreError>) {
        if self.shared.lock().stopped {
            return;
        }
        let state = outcome.map_or_else(|error| PersistState::Failing { error: in_words(error) }, |()| PersistState::Healthy);
        self.state.send_if_modified(|current| {
            let differs = *current != state;
            *current = state;
            differs
        });
    }

    /// For how long it is failing, where somebody should be reminded of it.
    fn remind(&self, failing: bool) -> Vec<((), Duration)> {
        self.reminders.lock().unwrap_or_else(PoisonError::into_inner).due(failing.then_some(()), Instant::now())
    }

    /// Puts the group back below what came meanwhile.
    fn failed(&self, group: Group, error: &StoreError) {
        let mut waiting = self.shared.lock();
        if !waiting.failing
            && let Some(Due { more }) = TOLD.due(&error.to_string())
        {
            tracing::error!(%error, more, "cannot store changes: serving goes on, storing is tried again every second");
        }
        for ((), failing_for) in self.remind(true) {
            tracing::error!(%error, minutes = failing_for.as_secs() / 60, waiting = waiting.gathered.len(), "changes still cannot be stored: serving goes on");
        }
        waiting.failing = true;
        waiting.since = Some(Instant::now());
        waiting.gathered.put_back(group);
        if waiting.is_too_much() {
            tracing::error!(%error, "too many changes wait for the store: storing stops until the next start");
            waiting.gathered = Gathered::default();
            waiting.stopped = true;
            waiting.since = None;
        }
        let is_full = matches!(error, StoreError::LogFull { .. });
        let error = in_words(error);
        self.state.send_replace(if waiting.stopped || is_full { PersistState::Stopped { error } } else { PersistState::Failing { error } });
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;

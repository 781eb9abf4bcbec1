//! Keeps a [`Survey`] up to date for requests that ask what is wrong across keys.
//!
//! One task: it looks at everything once the store is loaded, and takes in what changes from then on. It works in pieces of some milliseconds
//! on the threads for what blocks, one at a time, so at most on one core. Deliberately lacks: what a survey finds.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::handle::{Handle, Look, Reading, Survey};

/// How long a question waits for the first look at everything: as long as others wait for the store. A million keys take a core about a
/// second.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a question waits for what changed just before it: as a rule some milliseconds, more only while thousands of keys change at once.
const CHANGES_WAIT_MAX: Duration = Duration::from_millis(100);

/// Between two looks at what changed, unless somebody asks: at 5,000 changes/s some 500, which share the copies of what they touch.
const SPACING: Duration = Duration::from_millis(100);

/// How long to rest at most after a look that took longer than that: while a million keys come at once, others have half of the core.
const REST_MAX: Duration = Duration::from_millis(500);

/// The survey and the thread that keeps it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Surveyor {
    newest: watch::Receiver<Option<Survey>>,
    /// Somebody wants what changed just now.
    asked: Arc<Notify>,
    /// The task; ends with the last clone.
    _task: Arc<JoinSet<()>>,
}

/// What is known when somebody asks.
#[derive(Debug)]
pub(crate) struct Surveyed {
    /// The newest survey; `None` before the first look is over.
    pub(crate) survey: Option<Survey>,
    /// Whether it has everything that was there when it was asked for.
    pub(crate) is_complete: bool,
}

impl Surveyor {
    /// One that begins as soon as the store is loaded. Ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        let (sender, newest) = watch::channel(None);
        let asked = Arc::<Notify>::default();
        let mut task = JoinSet::new();
        let keeper = Keeper { handle, newest: sender, asked: Arc::clone(&asked) };
        task.spawn(async move { stop.run_until_cancelled(keeper.keep()).await.flatten().unwrap_or_default() });
        Self { newest, asked, _task: Arc::new(task) }
    }

    /// One that is told what to know.
    #[cfg(test)]
    pub(crate) fn told() -> (Self, watch::Sender<Option<Survey>>) {
        let (sender, newest) = watch::channel(None);
        (Self { newest, asked: Arc::default(), _task: Arc::default() }, sender)
    }

    /// What is known by now.
    pub(crate) fn newest(&self) -> Option<Survey> {
        self.newest.borrow().clone()
    }

    /// What is found in all that a reading has, and perhaps in what came since; what was known before, where that takes too long.
    pub(crate) async fn survey(&self, reading: &Reading) -> Surveyed {
        let wanted = reading.position().sequence;
        let mut newest = self.newest.clone();
        let has_it = |survey: &Option<Survey>| survey.as_ref().is_some_and(|survey| survey.position() >= wanted);
        let wait_max = if newest.borrow().is_some() { CHANGES_WAIT_MAX } else { FIRST_WAIT_MAX };
        self.asked.notify_one();
        let waited = tokio::time::timeout(wait_max, newest.wait_for(has_it)).await;
        let is_complete = waited.is_ok_and(|found| found.is_ok());
        let survey = newest.borrow().clone();
        Surveyed { survey, is_complete }
    }
}

/// What the task needs.
struct Keeper {
    handle: Handle,
    newest: watch::Sender<Option<Survey>>,
    asked: Arc<Notify>,
}

impl Keeper {
    /// Looks and follows until the writer is gone.
    async fn keep(self) -> Option<()> {
        let mut signal = self.handle.signal_once_loaded().await?;
        let mut look = Look::at(self.handle.try_reading()?);
        loop {
            let begun = Instant::now();
            let survey = finish(look).await?;
            self.newest.send_replace(Some(survey.clone()));
            let rest = begun.elapsed().clamp(SPACING, REST_MAX);
            signal.changed().await.ok()?;
            // what comes meanwhile is taken in together
            drop(tokio::time::timeout(rest, self.asked.notified()).await);
            signal.borrow_and_update();
            look = Look::after(survey, self.handle.try_reading()?);
        }
    }
}

/// Looks to the end, piece by piece.
async fn finish(mut look: Look) -> Option<Survey> {
    loop {
        match spawn_blocking(move || look.advance()).await.ok()? {
            ControlFlow::Break(survey) => return Some(survey),
            ControlFlow::Continue(unfinished) => look = unfinished,
        }
    }
}

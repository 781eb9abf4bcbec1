//! Keeps a [`Survey`] up to date for those who ask what is wrong across keys.
//!
//! One task, which begins with the first question (nothing is decoded that nobody asked for), looks at everything once and follows the
//! changes from then on. Deliberately lacks: what a survey finds.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::problem::{Code, Problem};
use crate::handle::{FirstLook, Handle, Reading, Survey};

/// How long a question waits for the survey to have everything that was there when it was asked (api.md: 2 s, then 503).
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Between two looks at what changed: at 20,000 changes/s some 400 changes, a millisecond or two of work.
const FOLLOW_SPACING: Duration = Duration::from_millis(20);

/// The survey and who keeps it. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Surveyor {
    handle: Handle,
    stop: CancellationToken,
    newest: watch::Sender<Option<Survey>>,
    /// The task; ends with the last clone.
    task: Arc<Mutex<JoinSet<()>>>,
}

impl Surveyor {
    /// One that has not begun. Ends when `stop` is cancelled.
    pub(crate) fn new(handle: Handle, stop: CancellationToken) -> Self {
        Self { handle, stop, newest: watch::channel(None).0, task: Arc::default() }
    }

    /// What is found in all that a reading has, and perhaps in what came since.
    pub(crate) async fn survey(&self, reading: &Reading) -> Result<Survey, Problem> {
        self.begin();
        let wanted = reading.position().sequence;
        let mut newest = self.newest.subscribe();
        let is_enough = |survey: &Option<Survey>| survey.as_ref().is_some_and(|survey| survey.position() >= wanted);
        let waited = tokio::time::timeout(WAIT_MAX, newest.wait_for(is_enough)).await;
        let found = waited.ok().and_then(Result::ok).and_then(|survey| survey.clone());
        found.ok_or_else(|| Problem::new(Code::Loading, "everything that is mirrored is being looked at: ask again in a moment"))
    }

    fn begin(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        while task.try_join_next().is_some() {}
        if task.is_empty() {
            let (handle, stop, newest) = (self.handle.clone(), self.stop.clone(), self.newest.clone());
            task.spawn(async move {
                stop.run_until_cancelled(follow(handle, newest)).await;
            });
        }
    }
}

/// Looks and follows until the writer is gone.
async fn follow(handle: Handle, newest: watch::Sender<Option<Survey>>) {
    let Ok(mut signal) = handle.signal().await else { return };
    while let Some(mut survey) = look(&handle).await {
        loop {
            signal.borrow_and_update();
            let Some(reading) = handle.try_reading() else { return };
            if !survey.follow(&reading) {
                // more changed meanwhile than the ring holds
                break;
            }
            newest.send_replace(Some(survey.clone()));
            if signal.changed().await.is_err() {
                return;
            }
            tokio::time::sleep(FOLLOW_SPACING).await;
        }
    }
}

/// Looks at everything, letting others run in between.
async fn look(handle: &Handle) -> Option<Survey> {
    let mut look = FirstLook::new(handle.try_reading()?);
    loop {
        match look.advance() {
            ControlFlow::Break(survey) => return Some(survey),
            ControlFlow::Continue(unfinished) => look = unfinished,
        }
        tokio::task::yield_now().await;
    }
}

//! Where requests and streams do what takes longer than a millisecond: on few blocking threads, in slices, by turns of the clients.
//!
//! Owns: which work runs when. A piece of work is called once for each slice and holds a [`turn`](super::turns) meanwhile, of which there are as many as
//! threads; between two slices it waits behind the slices of others. So a small question waits for a slice of each client, however much one of
//! them asks for, and a request whose client goes gets no further turn: its future is dropped, and the slice that runs is its last. Deliberately
//! lacks: what the work is.

use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::budget::{Budget, Held, Share};
use super::client::Client;
use super::turns::{Admission, NoTurn, Turns};
use crate::handle::{Allowance, Slice, Spent};

/// How long a slice is. What is quick waits for the end of one where the kernel has put its thread on the same core: with 4 ms `/livez` beside twenty
/// scans took 3.6 ms (p99), with 1 ms 1.9 (`just bench guard`). Passing a turn on takes some 30 µs (two wake-ups of threads), a thirtieth of it; and
/// twenty clients that all scan hold up a small question by 20 × 1 ms on one thread.
const SLICE: Allowance = Allowance::Time(Duration::from_millis(1));

/// How long a page looks for items where no index serves its filter (docs/use/api/paging.md), waiting for its turns left out.
const PAGE: Allowance = Allowance::Time(Duration::from_secs(5));

/// How many bytes all answers over HTTP may take together: 64 of the largest pages (docs/use/api/paging.md).
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// How long a request waits for room: longer than readers take that read at all, 4 MiB at 10 Mbit/s being 3.4 s.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long slices and pages are.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// A slice.
    pub slice: Allowance,
    /// A page.
    pub page: Allowance,
}

impl Default for Pace {
    fn default() -> Self {
        Self { slice: SLICE, page: PAGE }
    }
}

/// The threads for long work, and the queue for them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Scans {
    pace: Pace,
    turns: Arc<Turns>,
    answers: Arc<Budget>,
}

/// One request among those that do long work; its place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Scanner {
    scans: Scans,
    client: Client,
    place: Admission,
}

impl Default for Scans {
    fn default() -> Self {
        Self::new(Pace::default())
    }
}

impl Scans {
    /// Scans at this pace, none of which runs.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        // half of the cores, so that the other half answers what is quick
        let threads = thread::available_parallelism().map_or(1, NonZero::get) / 2;
        Self { pace, turns: Turns::new(threads.max(1)), answers: Budget::new(ANSWER_BYTES_MAX, Share::TimesFree(1)) }
    }

    /// Scans on this many threads.
    #[cfg(test)]
    pub fn on_threads(pace: Pace, threads: usize) -> Self {
        Self { pace, turns: Turns::new(threads), answers: Budget::new(ANSWER_BYTES_MAX, Share::TimesFree(1)) }
    }

    /// A place among those that do long work.
    ///
    /// # Errors
    /// [`NoTurn`] where there is none.
    pub(crate) fn enter(&self, client: Client) -> Result<Scanner, NoTurn> {
        let place = Turns::enter(&self.turns, client)?;
        Ok(Scanner { scans: self.clone(), client, place })
    }

    /// A place for a stream, which has one among the streams already.
    #[must_use]
    pub(crate) fn enter_stream(&self, client: Client) -> Scanner {
        Scanner { scans: self.clone(), client, place: Turns::enter_stream(&self.turns, client) }
    }

    /// How long slices and pages are.
    #[must_use]
    pub const fn pace(&self) -> Pace {
        self.pace
    }

    /// What all slices took that ended by now.
    #[must_use]
    pub fn spent(&self) -> Spent {
        self.turns.spent()
    }

    /// How many requests have a place.
    #[must_use]
    pub fn count(&self) -> usize {
        self.turns.count()
    }
}

impl Scanner {
    /// How long slices and pages are.
    pub(crate) const fn pace(&self) -> Pace {
        self.scans.pace
    }

    /// Waits for room for an answer that is made and sent; `None` where there is none for too long.
    pub(crate) async fn hold(&self, bytes: usize) -> Option<Held> {
        tokio::time::timeout(ROOM_WAIT_MAX, Budget::wait(&self.scans.answers, self.client, bytes)).await.ok()
    }

    /// Calls some work once for each slice until it breaks.
    pub(crate) async fn run<T, W>(&self, mut work: W) -> T
    where
        T: Send + 'static,
        W: FnMut(&mut Slice) -> ControlFlow<T> + Send + 'static,
    {
        loop {
            let outcome;
            (outcome, work) = self.slice(work, |work, slice| work(slice)).await;
            if let ControlFlow::Break(done) = outcome {
                return done;
            }
        }
    }

    /// Does some work in one slice, whatever it takes.
    pub(crate) async fn once<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let work = |(): &mut (), slice: &mut Slice| {
            slice.look();
            work()
        };
        self.slice((), work).await.0
    }

    /// Does some work in one slice on this thread, for work that is at most as long as a slice and usually much shorter: waking another thread would take longer.
    pub(crate) async fn here<T>(&self, work: impl FnOnce(&mut Slice) -> T) -> T {
        let turn = self.place.turn().await;
        let mut slice = Slice::begin(self.scans.pace.slice);
        let outcome = work(&mut slice);
        turn.end(slice.spent());
        outcome
    }

    /// Lets a state get on for one slice, and gives it back.
    pub(crate) async fn slice<S, T, W>(&self, mut state: S, work: W) -> (T, S)
    where
        S: Send + 'static,
        T: Send + 'static,
        W: FnOnce(&mut S, &mut Slice) -> T + Send + 'static,
    {
        let turn = self.place.turn().await;
        let mut slice = Slice::begin(self.scans.pace.slice);
        // the turn goes with the slice: the thread is busy until its end, even if the client goes meanwhile
        let working = tokio::task::spawn_blocking(move || {
            let outcome = work(&mut state, &mut slice);
            turn.end(slice.spent());
            (outcome, state)
        });
        match working.await {
            Ok(done) => done,
            Err(failed) if failed.is_panic() => resume_unwind(failed.into_panic()),
            // blocking tasks are cancelled with the runtime alone, and so is this future
            Err(_) => std::future::pending().await,
        }
    }
}

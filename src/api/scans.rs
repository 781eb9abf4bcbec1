//! Where requests and streams do what takes longer than a millisecond: on few blocking threads, in slices, by turns of the clients.
//!
//! Owns: which work runs when. A piece of work is called once for each slice and holds a [`turn`](turns) meanwhile, of which there are as many as
//! threads; between two slices it waits behind the slices of others. So a small question waits for a slice of each client, however much one of
//! them asks for, and a request whose client goes gets no further turn: its future is dropped, and the slice that runs is its last. Deliberately
//! lacks: what the work is.

mod held;
mod turns;

use std::num::NonZero;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;

use super::client::Client;
use super::problem::{Code, Problem};
use crate::handle::{Allowance, Slice, Spent};

use held::Answers;
pub(super) use held::Held;
use turns::{Admission, NoTurn, Turns};

/// How long a slice is. What is quick waits for the end of one where the kernel has put its thread on the same core: with 4 ms `/livez` beside twenty
/// scans took 3.6 ms (p99), with 1 ms 1.9 (`just bench guard`). Passing a turn on takes some 30 µs (two wake-ups of threads), a thirtieth of it; and
/// twenty clients that all scan hold up a small question by 20 × 1 ms on one thread.
const SLICE: Allowance = Allowance::Time(Duration::from_millis(1));

/// How long a page looks for items where no index serves its filter (docs/api.md), waiting for its turns left out.
const PAGE: Allowance = Allowance::Time(Duration::from_secs(5));

/// How long slices and pages are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) slice: Allowance,
    pub(crate) page: Allowance,
}

impl Default for Pace {
    fn default() -> Self {
        Self { slice: SLICE, page: PAGE }
    }
}

/// The threads for long work, and the queue for them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Scans {
    pace: Pace,
    turns: Arc<Turns>,
    answers: Arc<Answers>,
}

/// One request among those that do long work; its place is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Scanner {
    scans: Scans,
    client: Client,
    place: Admission,
}

impl Scans {
    pub(crate) fn new(pace: Pace) -> Self {
        // half of the cores, so that the other half answers what is quick
        let threads = thread::available_parallelism().map_or(1, NonZero::get) / 2;
        Self { pace, turns: Turns::new(threads.max(1)), answers: Arc::default() }
    }

    /// Scans on this many threads.
    #[cfg(test)]
    pub(crate) fn on_threads(pace: Pace, threads: usize) -> Self {
        Self { pace, turns: Turns::new(threads), answers: Arc::default() }
    }

    /// A place among those that do long work.
    pub(crate) fn enter(&self, client: Client) -> Result<Scanner, Problem> {
        let place = Turns::enter(&self.turns, client).map_err(refused)?;
        Ok(Scanner { scans: self.clone(), client, place })
    }

    /// A place for a stream, which has one among the streams already.
    pub(crate) fn enter_stream(&self, client: Client) -> Scanner {
        Scanner { scans: self.clone(), client, place: Turns::enter_stream(&self.turns, client) }
    }

    /// What all slices took that ended by now.
    pub(crate) fn spent(&self) -> Spent {
        self.turns.spent()
    }

    /// How many requests have a place.
    pub(crate) fn count(&self) -> usize {
        self.turns.count()
    }
}

impl<S: Sync> FromRequestParts<S> for Scanner
where
    Scans: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Scans::from_ref(state).enter(parts.extensions.get().copied().unwrap_or(Client::Local))
    }
}

impl Scanner {
    /// How long slices and pages are.
    pub(crate) const fn pace(&self) -> Pace {
        self.scans.pace
    }

    /// Waits for room for an answer that is made and sent.
    pub(crate) async fn hold(&self) -> Result<Held, Problem> {
        Answers::hold(&self.scans.answers, self.client).await.ok_or_else(|| {
            Problem::new(
                Code::TooBusy,
                "too many answers are being made or wait to be read: read those that you asked for, or ask again in a moment",
            )
        })
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

fn refused(none: NoTurn) -> Problem {
    Problem::new(Code::TooBusy, none.to_string())
}

#[cfg(test)]
mod tests;

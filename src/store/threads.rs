//! Work that a start waits for, shared by threads.
//!
//! Owns: how many there are. Deliberately lacks: the work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::error::EngineError;

/// More threads do not make a start quicker: the engine reads with little more than one.
const THREADS_MAX: usize = 4;

/// Below so many items for each, a thread costs more than it brings: one takes some 30 µs to begin, and an item some 100.
const ITEMS_MIN: usize = 8;

/// Does some work for each item. Returns what came of it, in order.
///
/// # Errors
/// [`EngineError::Damaged`] where the work panicked.
pub(super) fn in_threads<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Result<Vec<R>, EngineError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX).min(items.len() / ITEMS_MIN);
    if threads < 2 {
        return Ok(items.iter().map(work).collect());
    }
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::with_capacity(items.len() / threads + 1);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let mut done = Vec::with_capacity(items.len());
        for worker in workers {
            done.extend(worker.join().map_err(|_| EngineError::Damaged("reading it panicked".to_owned()))?);
        }
        done.sort_unstable_by_key(|(at, _)| *at);
        Ok(done.into_iter().map(|(_, outcome)| outcome).collect())
    })
}

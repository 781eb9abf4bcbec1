//! Parallel work during a start.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::error::EngineError;

/// Maximum number of threads. More do not make a start faster, because the engine reads with little
/// more than one.
const THREADS_MAX: usize = 4;

/// Minimum number of items per thread. Starting a thread takes about 30 µs, and an item about 100
/// µs.
const ITEMS_MIN: usize = 8;

/// Calls `work` for each item on several threads. Returns the results in the order of the items.
///
/// # Errors
/// [`EngineError::Damaged`] if `work` panicked.
pub(super) fn map_in_threads<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Result<Vec<R>, EngineError> {
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

//! Parallel work during a start.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::error::EngineError;

/// Maximum number of threads. More threads do not make a start faster, because the engine's reads
/// use little more than one core.
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
        let mut results = Vec::with_capacity(items.len() / threads + 1);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return results };
            results.push((index, work(item)));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let mut results = Vec::with_capacity(items.len());
        for worker in workers {
            results.extend(worker.join().map_err(|_| EngineError::Damaged("a thread that read the store panicked".to_owned()))?);
        }
        results.sort_unstable_by_key(|(index, _)| *index);
        Ok(results.into_iter().map(|(_, outcome)| outcome).collect())
    })
}

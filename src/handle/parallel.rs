//! Parallel work on many items for one subscriber.
//!
//! Only one caller at a time gets the additional threads. Any other caller meanwhile works on its
//! own thread, so that many subscribers that catch up at the same time use no more additional
//! threads than a single one.

use std::panic::resume_unwind;
use std::sync::{LazyLock, Mutex, TryLockError};
use std::thread;

/// Maximum number of threads per caller, so that other cores stay free.
const THREADS_MAX: usize = 4;

/// Minimum number of items per thread. Starting a thread takes about 30 µs, and an item 1 to 5 µs.
const ITEMS_MIN: usize = 512;

/// Number of threads to use. Computed once, because the answer is read from files (cgroups).
static THREADS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX));

/// Lock of the caller that uses the threads.
static THREADS_LOCK: Mutex<()> = Mutex::new(());

/// Calls `work` on pieces of `items`, in parallel if that is worth it. Returns the results in
/// order.
///
/// # Panics
/// If `work` panics.
pub(super) fn map_pieces<T: Sync, R: Send>(items: &[T], work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    map_pieces_with(&THREADS_LOCK, *THREADS, items, work)
}

fn map_pieces_with<T: Sync, R: Send>(lock: &Mutex<()>, threads: usize, items: &[T], work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len() / ITEMS_MIN);
    let guard = match lock.try_lock() {
        Ok(lock) => Some(lock),
        // work that panicked leaves no inconsistent state behind
        Err(TryLockError::Poisoned(lock)) => Some(lock.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    let Some(_guard) = guard.filter(|_| threads > 1) else {
        return vec![work(items)];
    };
    thread::scope(|scope| {
        let mut pieces = items.chunks(items.len().div_ceil(threads));
        let own = pieces.next().unwrap_or_default();
        let others: Vec<_> = pieces.map(|piece| scope.spawn(|| work(piece))).collect();
        let own = work(own);
        let others = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        std::iter::once(own).chain(others).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn pieces_keep_the_order_and_concurrent_callers_use_one_thread() {
        let lock = Mutex::new(());
        for (length, pieces) in [(0, 1), (511, 1), (1_024, 2), (4_097, 3)] {
            let items: Vec<usize> = (0..length).collect();
            let outcome = map_pieces_with(&lock, 3, &items, |piece| {
                if pieces > 1 {
                    assert_eq!(map_pieces_with(&lock, 3, &items, <[usize]>::len), [length]);
                }
                piece.to_vec()
            });
            assert_eq!((outcome.len(), outcome.concat()), (pieces, items));
        }
    }

    #[test]
    fn a_panic_is_propagated_and_releases_the_threads() {
        let (lock, items) = (Mutex::new(()), [0; 2_048]);
        let panicked = catch_unwind(AssertUnwindSafe(|| map_pieces_with(&lock, 2, &items, |_| panic!("the work fails"))));
        assert!(panicked.is_err());
        assert_eq!(map_pieces_with(&lock, 2, &items, <[usize]>::len), [1_024, 1_024]);
    }
}

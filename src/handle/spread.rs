//! Work on many items that one reader waits for, spread over the processor's cores.
//!
//! Owns: how many threads there are, and that one caller at a time has them: a caller that comes meanwhile does its work alone, so that many readers
//! that catch up at once cost no more threads than one. Deliberately lacks: the work.

use std::panic::resume_unwind;
use std::sync::{LazyLock, Mutex, TryLockError};
use std::thread;

/// More cores are left to others.
const THREADS_MAX: usize = 4;

/// Below so many items for each, a thread costs more than it brings: one takes some 30 µs to begin, and an item 1 to 5.
const ITEMS_MIN: usize = 512;

/// How many there may be. Asked once, since the answer is read from files (cgroups).
static THREADS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX));

/// Held by the caller that has the threads.
static TURN: Mutex<()> = Mutex::new(());

/// Does some work for pieces of what there is, several at once where that pays. Returns what came of each piece, in order.
///
/// # Panics
/// Where the work does.
pub(super) fn over_pieces<T: Sync, R: Send>(items: &[T], work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    in_turn(&TURN, *THREADS, items, work)
}

fn in_turn<T: Sync, R: Send>(turn: &Mutex<()>, threads: usize, items: &[T], work: impl Fn(&[T]) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len() / ITEMS_MIN);
    let free = match turn.try_lock() {
        Ok(turn) => Some(turn),
        // work that panicked left nothing behind
        Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    let Some(_turn) = free.filter(|_| threads > 1) else {
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
    fn pieces_are_all_items_in_order_and_who_comes_meanwhile_works_alone() {
        let turn = Mutex::new(());
        for (length, pieces) in [(0, 1), (511, 1), (1_024, 2), (4_097, 3)] {
            let items: Vec<usize> = (0..length).collect();
            let outcome = in_turn(&turn, 3, &items, |piece| {
                if pieces > 1 {
                    assert_eq!(in_turn(&turn, 3, &items, <[usize]>::len), [length]);
                }
                piece.to_vec()
            });
            assert_eq!((outcome.len(), outcome.concat()), (pieces, items));
        }
    }

    #[test]
    fn a_panic_is_passed_on_and_the_next_one_has_threads_again() {
        let (turn, items) = (Mutex::new(()), [0; 2_048]);
        let panicked = catch_unwind(AssertUnwindSafe(|| in_turn(&turn, 2, &items, |_| panic!("of the work"))));
        assert!(panicked.is_err());
        assert_eq!(in_turn(&turn, 2, &items, <[usize]>::len), [1_024, 1_024]);
    }
}

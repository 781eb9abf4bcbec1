//! The rate of folding. It follows the rate of new changes, and rises with the fill level of the
//! log.
//!
//! The rate is in folds per committed byte, not per second, so every machine writes the same
//! amount. The time by which folding may delay a group is limited. Without this limit, a slow group
//! caused many folds, which delayed the next group and made it larger: a delay of 20 ms grew to 400
//! ms.

use std::time::Duration;

/// Size of a full log, in bytes of keys and values before compression (docs/develop/measurements.md
/// §1.1). A start needs longer to read a larger log, but more changes share a fold. With 24 MiB, a
/// start after a kill ends a fifth earlier, its first answer comes no earlier, and each changed
/// byte costs a third more writes.
pub(in crate::store) const LOG_FULL_BYTES: u64 = 32 << 20;

/// `FOLD_FROM_PERMILLE` is the fill level of the log at which folding begins, in thousandths of
/// [`LOG_FULL_BYTES`]. `FOLD_SPEED` is the factor by which the rate grows with the fill level above
/// that: if the log is larger by another [`LOG_FULL_BYTES`], committing [`LOG_FULL_BYTES`] folds
/// every chunk with pending changes `FOLD_SPEED` times. A smaller excess causes proportionally
/// fewer folds.
///
/// With these two values the first round ends about when the log is full, at most a quarter later.
/// Later rounds keep the log three quarters full.
const FOLD_FROM_PERMILLE: u32 = 700;
const FOLD_SPEED: u32 = 22;

/// One fold, in the unit of [`FoldRate`].
const WHOLE_FOLD: u64 = 1_000;

/// Maximum number of due folds: twice the number that 20,000 changes per second require between two
/// groups with a full log. Further folds are dropped. They become due again later, if the fill
/// level still requires them.
const DUE_MAX: u64 = 64 * WHOLE_FOLD;

/// Maximum time that folding may delay the next group when the log is full; proportionally less
/// when it is not.
///
/// A change must be durable within 60 ms. In the worst case it waits until the previous group is
/// stored (20 ms, see `commit::persist`), for this time, and until its own group is stored.
const FOLD_TIME_MAX: Duration = Duration::from_millis(20);

/// Due folds, in thousandths of a fold.
#[derive(Debug, Default)]
pub(in crate::store) struct FoldRate {
    due_permille: u64,
}

impl FoldRate {
    /// Adds committed bytes. `log_bytes` is the size of the unfolded groups, `dirty_count` the
    /// number of chunks with pending changes.
    pub(super) fn add_committed(&mut self, committed_bytes: u64, log_bytes: u64, dirty_count: usize) {
        let speed = u64::from(excess_permille(log_bytes) * FOLD_SPEED);
        let added = committed_bytes * dirty_count as u64 / 1024 * speed / (LOG_FULL_BYTES / 1024);
        self.due_permille = if speed == 0 { 0 } else { (self.due_permille + added).min(DUE_MAX) };
    }

    pub(super) fn is_due(&self) -> bool {
        self.due_permille >= WHOLE_FOLD
    }

    /// Subtracts one fold.
    pub(in crate::store) fn count_fold(&mut self) {
        self.due_permille = self.due_permille.saturating_sub(WHOLE_FOLD);
    }
}

/// Returns the time that folding may delay the next group, for a log of this size.
pub(super) fn fold_time_max(log_bytes: u64) -> Duration {
    let whole = 1_000 - FOLD_FROM_PERMILLE;
    FOLD_TIME_MAX * excess_permille(log_bytes).min(whole) / whole
}

/// Returns the fill level above [`FOLD_FROM_PERMILLE`], in thousandths.
fn excess_permille(log_bytes: u64) -> u32 {
    u32::try_from(log_bytes * 1_000 / LOG_FULL_BYTES).unwrap_or(u32::MAX).saturating_sub(FOLD_FROM_PERMILLE).min(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of due folds after 512 KB, for 1,000 chunks and this fill level of the
    /// log.
    fn due(mut rate: FoldRate, used_permille: u64) -> u64 {
        rate.add_committed(512 << 10, LOG_FULL_BYTES * used_permille / 1_000, 1_000);
        let mut count = 0;
        while rate.is_due() {
            rate.count_fold();
            count += 1;
        }
        count
    }

    #[test]
    fn folding_speeds_up_with_the_log_up_to_a_limit() {
        let fresh = [0, 700, 750, 800, 1_000].map(|used_permille| due(FoldRate::default(), used_permille));
        assert_eq!(fresh, [0, 0, 17, 34, 64]);
        assert_eq!(due(FoldRate { due_permille: DUE_MAX }, 750), 64);
        assert_eq!(due(FoldRate { due_permille: DUE_MAX }, 700), 0, "the log is small again: nothing is due");
        let little = || {
            let mut rate = FoldRate::default();
            (0..100).for_each(|_| rate.add_committed(1 << 10, LOG_FULL_BYTES * 8 / 10, 1_000));
            rate.due_permille
        };
        assert_eq!(little(), 100 * 66, "small groups add up");
    }

    #[test]
    fn fold_time_grows_with_the_fill_level() {
        let micros = [0, 700, 850, 1_000, 5_000].map(|permille| fold_time_max(LOG_FULL_BYTES / 1_000 * permille + 1_000).as_micros());
        assert_eq!(micros, [0, 0, 10_000, 20_000, 20_000]);
    }
}

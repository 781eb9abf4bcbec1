//! How fast changes move from the log to their chunks: as fast as new ones come, faster the fuller the log is.
//!
//! It is paced by bytes, not by time, so that it writes the same on every machine; but what it may take of the time of groups has an end. Without
//! one a slow group was followed by the many folds that it had earned, the next group was larger for that, and earned more: one that
//! came 20 ms late was followed by others up to 400 ms late.

use std::time::Duration;

/// The log is full with so many bytes of keys and values, uncompressed (docs/develop/measurements.md §1.1): the more it has, the longer a start takes to read
/// it, and the more folds can gather. With 24 MiB a start after a kill has everything a fifth earlier, its first answer no earlier, and a byte of
/// change costs a third more writing.
pub(in crate::store) const LOG_FULL_BYTES: u64 = 32 << 20;

/// From this much on, folding begins, in thousandths of [`LOG_FULL_BYTES`]; its speed grows with what the log has above it, by this many times
/// one round of all chunks for each [`LOG_FULL_BYTES`] that is committed. With these two, the first round ends about as the
/// log is full (up to a quarter later where time is short), and later ones settle where it is three quarters full.
const FOLD_FROM_PERMILLE: u32 = 700;
const FOLD_SPEED: u32 = 22;

/// A whole fold, in what is owed.
const FOLD: u64 = 1_000;

/// No more is owed than so many folds, twice what 20,000 changes/s earn in a window where the log is full. What is put off beyond is due anew by
/// what the log has then.
const OWED_MAX: u64 = 64 * FOLD;

/// How long folding may take behind any group where the log is full, in proportion where it is less, whether or not the next group is due: a
/// change is to be durable within 60 ms, and one that came as a group was taken waits for that to be stored (20 ms, as `commit::persist`
/// has it), for this, and for its own group to be stored.
const OVERTIME_MAX: Duration = Duration::from_millis(20);

/// What is due, in thousandths of a fold.
#[derive(Debug, Default)]
pub(in crate::store) struct FoldRate {
    owed: u64,
}

impl FoldRate {
    /// Counts what was committed, with so much in the log for so many chunks.
    pub(super) fn earn(&mut self, committed_bytes: u64, log_bytes: u64, dirty_count: usize) {
        let speed = u64::from(above(log_bytes) * FOLD_SPEED);
        let earned = committed_bytes * dirty_count as u64 / 1024 * speed / (LOG_FULL_BYTES / 1024);
        self.owed = if speed == 0 { 0 } else { (self.owed + earned).min(OWED_MAX) };
    }

    /// Whether a fold is due.
    pub(super) fn is_due(&self) -> bool {
        self.owed >= FOLD
    }

    /// Counts a fold off.
    pub(in crate::store) fn folded(&mut self) {
        self.owed = self.owed.saturating_sub(FOLD);
    }
}

/// How long folding may take though a group waits, with so much in the log.
pub(super) fn overtime(log_bytes: u64) -> Duration {
    let whole = 1_000 - FOLD_FROM_PERMILLE;
    OVERTIME_MAX * above(log_bytes).min(whole) / whole
}

/// What the log has above where folding begins, in thousandths.
fn above(log_bytes: u64) -> u32 {
    u32::try_from(log_bytes * 1_000 / LOG_FULL_BYTES).unwrap_or(u32::MAX).saturating_sub(FOLD_FROM_PERMILLE).min(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many folds are due after 512 KB, with so many thousandths of the log used for 1,000 chunks.
    fn due(mut rate: FoldRate, used_permille: u64) -> u64 {
        rate.earn(512 << 10, LOG_FULL_BYTES * used_permille / 1_000, 1_000);
        let mut count = 0;
        while rate.is_due() {
            rate.folded();
            count += 1;
        }
        count
    }

    #[test]
    fn folding_speeds_up_with_the_log_and_owes_no_more_than_it_can_do() {
        let fresh = [0, 700, 750, 800, 1_000].map(|used_permille| due(FoldRate::default(), used_permille));
        assert_eq!(fresh, [0, 0, 17, 34, 64]);
        assert_eq!(due(FoldRate { owed: OWED_MAX }, 750), 64);
        assert_eq!(due(FoldRate { owed: OWED_MAX }, 700), 0, "the log is small again: nothing is due");
        let little = || {
            let mut rate = FoldRate::default();
            (0..100).for_each(|_| rate.earn(1 << 10, LOG_FULL_BYTES * 8 / 10, 1_000));
            rate.owed
        };
        assert_eq!(little(), 100 * 66, "small groups add up");
    }

    #[test]
    fn a_group_waits_longer_the_fuller_the_log_is() {
        let micros = [0, 700, 850, 1_000, 5_000].map(|permille| overtime(LOG_FULL_BYTES / 1_000 * permille + 1_000).as_micros());
        assert_eq!(micros, [0, 0, 10_000, 20_000, 20_000]);
    }
}

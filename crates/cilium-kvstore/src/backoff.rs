//! Exponential backoff: the waits between failed attempts.

use std::time::Duration;

/// Backoff whose wait doubles with each consecutive failure, from a minimum to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Returns a backoff without a failure.
    #[must_use]
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, failures: 0 }
    }

    /// Returns the number of consecutive failures.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Counts a failure. Returns the wait before the next attempt.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.min.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.max);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Counts a failure. Returns 50 to 100 % of the wait, so that many clients do not retry at the
    /// same moment. `chance` is a random number from 0 to 1.
    pub fn next_wait_with_jitter(&mut self, chance: f64) -> Duration {
        self.next_wait().mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// Resets the backoff after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(800);
    const MAX: Duration = Duration::from_secs(30);

    #[test]
    fn waits_double_up_to_the_maximum_and_restart_after_a_reset() {
        let mut backoff = Backoff::new(MIN, MAX);
        let waits: Vec<u128> = (0..8).map(|_| backoff.next_wait().as_millis()).collect();
        assert_eq!(waits, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        assert_eq!(backoff.failures(), 8);
        backoff.reset();
        assert_eq!(backoff, Backoff::new(MIN, MAX));
        backoff.failures = u32::MAX;
        assert_eq!(backoff.next_wait(), MAX);
    }

    #[test]
    fn jitter_shortens_a_wait_by_at_most_half() {
        for (chance, expected) in [(0.0, 400), (0.5, 600), (1.0, 800), (7.0, 800)] {
            assert_eq!(Backoff::new(MIN, MAX).next_wait_with_jitter(chance).as_millis(), expected);
        }
    }
}

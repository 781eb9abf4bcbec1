//! Limits how often a kind is listed again because it differs from its source. Pure.

use std::time::{Duration, Instant};

use crate::model::Backoff;

/// Longest wait between two repairs, as a multiple of the first wait: an hour by default.
const WAITS_MAX: u32 = 60;

/// Limit for the repairs of one kind. The first one is permitted at once. The waits between the
/// others double, because a list did not help.
#[derive(Debug)]
pub(super) struct RepairLimiter {
    backoff: Backoff,
    wait_max: Duration,
    /// Time before which no other repair is permitted; `None` before the first repair.
    next: Option<Instant>,
}

impl RepairLimiter {
    /// Creates the limit with the first wait.
    pub(super) fn new(wait_min: Duration) -> Self {
        let wait_max = wait_min * WAITS_MAX;
        Self { backoff: Backoff::new(wait_min, wait_max), wait_max, next: None }
    }

    /// Returns whether the kind waits for its next repair.
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now < next)
    }

    /// Returns whether the kind may be listed again now, and counts the repair.
    pub(super) fn permit(&mut self, now: Instant) -> bool {
        if self.is_waiting(now) {
            return false;
        }
        if self.next.is_some_and(|next| now > next + self.wait_max) {
            // the last repair lasted
            self.backoff.reset();
        }
        self.next = Some(now + self.backoff.next_wait());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the minutes of the repairs of a kind that is found to differ every minute.
    fn repairs(limiter: &mut RepairLimiter, start: Instant, minutes: std::ops::Range<u32>) -> Vec<u32> {
        minutes.filter(|minute| limiter.permit(start + MINUTE * *minute)).collect()
    }

    #[test]
    fn a_kind_that_keeps_differing_is_listed_at_growing_intervals() {
        let start = Instant::now();
        let mut limiter = RepairLimiter::new(MINUTE);
        assert_eq!(repairs(&mut limiter, start, 0..250), [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert!(limiter.is_waiting(start + 302 * MINUTE) && !limiter.is_waiting(start + 303 * MINUTE));
        // equal for more than an hour
        assert_eq!(repairs(&mut limiter, start, 400..404), [400, 401, 403]);
    }
}

//! Rate limit of the log: one line per cause and minute, so that a remote or a client that repeats
//! an error cannot flood the log.
//!
//! The number of remembered causes is limited. The caller writes the log and chooses the text of a
//! cause.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two lines of one cause. Without it, 2,000 puts of a bad key wrote 2,000
/// lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of remembered causes: two for each cluster of the largest mesh (511). Further
/// causes share one limit.
const CAUSES_MAX: usize = 1_024;

/// Cause under which all causes beyond [`CAUSES_MAX`] are counted.
const OTHERS: &str = "";

/// Causes of recent log lines.
#[derive(Debug, Default)]
pub struct LogLimiter {
    logged: Mutex<BTreeMap<String, LoggedCause>>,
}

#[derive(Debug)]
struct LoggedCause {
    logged_at: Instant,
    suppressed: u64,
}

/// Permission to log a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPermit {
    /// Number of lines about the cause that were suppressed since the last one; `None` if there
    /// were none.
    pub more: Option<u64>,
}

impl LogLimiter {
    /// Creates a limiter that remembers no cause.
    #[must_use]
    pub const fn new() -> Self {
        Self { logged: Mutex::new(BTreeMap::new()) }
    }

    /// Returns a [`LogPermit`] if a line about a cause may be logged now. Otherwise counts the line
    /// as suppressed.
    pub fn permit(&self, cause: &str) -> Option<LogPermit> {
        self.permit_at(cause, Instant::now())
    }

    fn permit_at(&self, cause: &str, now: Instant) -> Option<LogPermit> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |logged: &LoggedCause| now.saturating_duration_since(logged.logged_at) < INTERVAL;
        if logged.len() >= CAUSES_MAX && !logged.contains_key(cause) {
            logged.retain(|_, logged| is_recent(logged));
        }
        let cause = if logged.len() >= CAUSES_MAX && !logged.contains_key(cause) { OTHERS } else { cause };
        match logged.get_mut(cause) {
            Some(logged) if is_recent(logged) => {
                logged.suppressed += 1;
                None
            }
            Some(logged) => {
                logged.logged_at = now;
                Some(LogPermit { more: Some(std::mem::take(&mut logged.suppressed)).filter(|more| *more > 0) })
            }
            None => {
                logged.insert(cause.to_owned(), LoggedCause { logged_at: now, suppressed: 0 });
                Some(LogPermit { more: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_permitted_once_a_minute_with_the_number_of_suppressed_lines() {
        let (limiter, start) = (LogLimiter::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let more = |more| Some(LogPermit { more });
        assert_eq!(limiter.permit_at("a", at(0)), more(None));
        assert_eq!(limiter.permit_at("b", at(1)), more(None));
        for _ in 0..2_000 {
            assert_eq!(limiter.permit_at("a", at(59)), None);
        }
        assert_eq!(limiter.permit_at("a", at(60)), more(Some(2_000)));
        assert_eq!(limiter.permit_at("a", at(61)), None);
        assert_eq!(limiter.permit_at("b", at(61)), more(None));
    }

    #[test]
    fn causes_above_the_maximum_share_one_limit() {
        let (limiter, start) = (LogLimiter::new(), Instant::now());
        let logged = (0..10_000).filter(|number| limiter.permit_at(&format!("cause {number}"), start).is_some()).count();
        assert_eq!(logged, CAUSES_MAX + 1);
        assert!(limiter.logged.lock().unwrap().len() <= CAUSES_MAX + 1);
        // causes of a minute ago are evicted
        assert!(limiter.permit_at("another", start + INTERVAL).is_some());
        assert_eq!(limiter.logged.lock().unwrap().len(), 1);
    }
}

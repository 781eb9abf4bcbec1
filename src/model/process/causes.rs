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

/// Common cause of everything beyond [`CAUSES_MAX`].
const OTHERS: &str = "";

/// Causes that were logged recently.
#[derive(Debug, Default)]
pub struct Causes {
    told: Mutex<BTreeMap<String, Told>>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    left_out: u64,
}

/// Permission to log a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Number of lines about the cause that were suppressed since the last one; `None` if there
    /// were none.
    pub more: Option<u64>,
}

impl Causes {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { told: Mutex::new(BTreeMap::new()) }
    }

    /// Returns a [`Due`] if a line about a cause may be logged now. Otherwise counts the line as
    /// suppressed.
    pub fn due(&self, cause: &str) -> Option<Due> {
        self.due_at(cause, Instant::now())
    }

    fn due_at(&self, cause: &str, now: Instant) -> Option<Due> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |told: &Told| now.saturating_duration_since(told.at) < INTERVAL;
        if told.len() >= CAUSES_MAX && !told.contains_key(cause) {
            told.retain(|_, told| is_recent(told));
        }
        let cause = if told.len() >= CAUSES_MAX && !told.contains_key(cause) { OTHERS } else { cause };
        match told.get_mut(cause) {
            Some(told) if is_recent(told) => {
                told.left_out += 1;
                None
            }
            Some(told) => {
                told.at = now;
                Some(Due { more: Some(std::mem::take(&mut told.left_out)).filter(|more| *more > 0) })
            }
            None => {
                told.insert(cause.to_owned(), Told { at: now, left_out: 0 });
                Some(Due { more: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once_in_a_minute_with_what_was_left_out() {
        let (causes, start) = (Causes::new(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let more = |more| Some(Due { more });
        assert_eq!(causes.due_at("a", at(0)), more(None));
        assert_eq!(causes.due_at("b", at(1)), more(None));
        for _ in 0..2_000 {
            assert_eq!(causes.due_at("a", at(59)), None);
        }
        assert_eq!(causes.due_at("a", at(60)), more(Some(2_000)));
        assert_eq!(causes.due_at("a", at(61)), None);
        assert_eq!(causes.due_at("b", at(61)), more(None));
    }

    #[test]
    fn causes_without_number_are_told_as_one_and_take_no_room() {
        let (causes, start) = (Causes::new(), Instant::now());
        let told = (0..10_000).filter(|number| causes.due_at(&format!("cause {number}"), start).is_some()).count();
        assert_eq!(told, CAUSES_MAX + 1);
        assert!(causes.told.lock().unwrap().len() <= CAUSES_MAX + 1);
        // causes of a minute ago are evicted
        assert!(causes.due_at("another", start + INTERVAL).is_some());
        assert_eq!(causes.told.lock().unwrap().len(), 1);
    }
}

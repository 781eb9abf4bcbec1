//! Reminders of problems that persist, so that a log that is read an hour later still shows them.
//!
//! A [`ReminderSchedule`] records when each problem began and when it was last logged. The caller
//! writes the log.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Interval between reminders: often enough for a person who opens the log at night, and only six
/// lines an hour.
pub const REMINDER_INTERVAL: Duration = Duration::from_secs(600);

/// Current problems by name. Holds exactly the names of the last call of [`ReminderSchedule::due`].
#[derive(Debug)]
pub struct ReminderSchedule<K> {
    interval: Duration,
    problems: BTreeMap<K, PersistentProblem>,
}

#[derive(Debug)]
struct PersistentProblem {
    since: Instant,
    last_reminder: Instant,
}

impl<K: Ord + Clone> ReminderSchedule<K> {
    /// Creates a schedule without problems.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self { interval, problems: BTreeMap::new() }
    }

    /// Replaces the set of current problems. Returns those that need a reminder, with the time
    /// since they began. A new problem is not returned: the caller logged it when it began.
    pub fn due(&mut self, problems: impl IntoIterator<Item = K>, now: Instant) -> Vec<(K, Duration)> {
        let mut before = std::mem::take(&mut self.problems);
        let mut due = Vec::new();
        for name in problems {
            let mut state = before.remove(&name).unwrap_or(PersistentProblem { since: now, last_reminder: now });
            if now.saturating_duration_since(state.last_reminder) >= self.interval {
                due.push((name.clone(), now.saturating_duration_since(state.since)));
                state.last_reminder = now;
            }
            self.problems.insert(name, state);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_that_persist_are_due_every_ten_minutes() {
        let (mut reminders, start) = (ReminderSchedule::new(REMINDER_INTERVAL), Instant::now());
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let mut at = |minute, problems: &[&'static str]| reminders.due(problems.iter().copied(), start + minutes(minute));
        assert_eq!(at(0, &["a", "b"]), []);
        assert_eq!(at(9, &["a", "b"]), []);
        assert_eq!(at(10, &["a", "b", "c"]), [("a", minutes(10)), ("b", minutes(10))]);
        assert_eq!(at(11, &["a", "c"]), [], "b has ended");
        assert_eq!(at(19, &["a", "b", "c"]), [], "b has begun again");
        assert_eq!(at(20, &["a", "b", "c"]), [("a", minutes(20)), ("c", minutes(10))]);
        assert_eq!(at(29, &["b"]), [("b", minutes(10))]);
    }
}

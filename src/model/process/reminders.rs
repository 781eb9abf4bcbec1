//! What stays broken is told again: a log that is read an hour later shall still say so.
//!
//! Owns: since when each thing is broken, and when it was told last. Deliberately lacks: the log itself.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often what stays broken is told again: often enough for whoever opens the log in the night, and six lines an hour.
pub const REMINDER_INTERVAL: Duration = Duration::from_secs(600);

/// Things that are broken, by name. Bounded by how many there are to be broken.
#[derive(Debug)]
pub struct Reminders<K> {
    interval: Duration,
    broken: BTreeMap<K, Broken>,
}

#[derive(Debug)]
struct Broken {
    since: Instant,
    told: Instant,
}

impl<K: Ord + Clone> Reminders<K> {
    /// Nothing broken yet.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        Self { interval, broken: BTreeMap::new() }
    }

    /// Takes the set of what is broken now. Returns those of which somebody should be reminded, and for how long they have been broken: whatever breaks
    /// was told when it did.
    pub fn due(&mut self, broken: impl IntoIterator<Item = K>, now: Instant) -> Vec<(K, Duration)> {
        let mut before = std::mem::take(&mut self.broken);
        let mut due = Vec::new();
        for name in broken {
            let mut state = before.remove(&name).unwrap_or(Broken { since: now, told: now });
            if now.saturating_duration_since(state.told) >= self.interval {
                due.push((name.clone(), now.saturating_duration_since(state.since)));
                state.told = now;
            }
            self.broken.insert(name, state);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_broken_is_told_each_ten_minutes_and_what_was_whole_meanwhile_is_not() {
        let (mut reminders, start) = (Reminders::new(REMINDER_INTERVAL), Instant::now());
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let mut at = |minute, broken: &[&'static str]| reminders.due(broken.iter().copied(), start + minutes(minute));
        assert_eq!(at(0, &["a", "b"]), []);
        assert_eq!(at(9, &["a", "b"]), []);
        assert_eq!(at(10, &["a", "b", "c"]), [("a", minutes(10)), ("b", minutes(10))]);
        assert_eq!(at(11, &["a", "c"]), [], "b is whole");
        assert_eq!(at(19, &["a", "b", "c"]), [], "and breaks anew");
        assert_eq!(at(20, &["a", "b", "c"]), [("a", minutes(20)), ("c", minutes(10))]);
        assert_eq!(at(29, &["b"]), [("b", minutes(10))]);
    }
}

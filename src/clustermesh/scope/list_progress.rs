//! Log messages about a list that takes long.

use std::time::{Duration, Instant};

use crate::model::Scope;

/// Interval between two messages. Most lists end long before the first one.
const INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one list.
#[derive(Debug)]
pub(super) struct ListProgress {
    started: Instant,
    last_logged: Instant,
    read: u64,
}

impl ListProgress {
    pub(super) fn new(now: Instant) -> Self {
        Self { started: now, last_logged: now, read: 0 }
    }

    /// Counts a page of keys, and logs the progress if a message is due.
    pub(super) fn add_page(&mut self, scope: &Scope, read: usize, total: u64, now: Instant) {
        if self.advance(read, now) {
            let Scope { cluster, kind } = scope;
            let seconds = now.saturating_duration_since(self.started).as_secs();
            tracing::info!(%cluster, %kind, read = self.read, total, seconds, "listing {kind} of cluster {cluster}: {} of {total} keys", self.read);
        }
    }

    /// Logs the end of the list if its progress was logged before.
    pub(super) fn log_end(&self, scope: &Scope, now: Instant) {
        if self.last_logged > self.started {
            let Scope { cluster, kind } = scope;
            let seconds = now.saturating_duration_since(self.started).as_secs();
            tracing::info!(%cluster, %kind, read = self.read, seconds, "listed {kind} of cluster {cluster}: {} keys in {seconds} s", self.read);
        }
    }

    /// Counts keys. Returns whether a message is due.
    fn advance(&mut self, read: usize, now: Instant) -> bool {
        self.read += read as u64;
        let is_due = now.saturating_duration_since(self.last_logged) >= INTERVAL;
        if is_due {
            self.last_logged = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_logged_every_ten_seconds() {
        let start = Instant::now();
        let mut progress = ListProgress::new(start);
        let due: Vec<u64> = (1..=35).filter(|second| progress.advance(256, start + Duration::from_secs(*second))).collect();
        assert_eq!((due, progress.read), (vec![10, 20, 30], 35 * 256));
    }
}

//! Slices of work, which limit how much a scan does before it yields to other requests.
//!
//! `admission` decides which request runs next. Scans check [`WorkSlice::is_over`] after each row.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Maximum work of a slice or of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceLimit {
    /// Running time, without waits.
    Time(Duration),
    /// Number of rows, so that tests do not depend on a clock.
    #[cfg(test)]
    Rows(u64),
}

/// Work that scans have done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanUsage {
    /// Running time.
    pub time: Duration,
    /// Rows that were read, whether they matched or not.
    pub rows: u64,
}

/// Part of a scan between two pauses.
#[derive(Debug)]
pub struct WorkSlice {
    limit: SliceLimit,
    started: Instant,
    rows: u64,
}

impl SliceLimit {
    /// Returns whether `usage` uses up the limit.
    #[must_use]
    pub fn is_reached(self, usage: ScanUsage) -> bool {
        match self {
            Self::Time(time) => usage.time >= time,
            #[cfg(test)]
            Self::Rows(rows) => usage.rows >= rows,
        }
    }
}

impl AddAssign for ScanUsage {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.rows += other.rows;
    }
}

impl WorkSlice {
    /// Starts a slice now.
    #[must_use]
    pub fn begin(limit: SliceLimit) -> Self {
        Self { limit, started: Instant::now(), rows: 0 }
    }

    /// Counts a row that is read, or work that takes as long.
    pub fn count_row(&mut self) {
        self.rows += 1;
    }

    /// Returns whether it is time to pause. Never true before the first row, so that every slice
    /// makes progress.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.rows > 0 && self.limit.is_reached(self.usage())
    }

    /// Returns the work that was done so far.
    #[must_use]
    pub fn usage(&self) -> ScanUsage {
        ScanUsage { time: self.started.elapsed(), rows: self.rows }
    }
}

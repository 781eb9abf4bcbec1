//! Slices of work: how much a scan may do before others get their turn.
//!
//! `admission` decides whose turn it is, and scans ask [`Slice::is_over`] after each row.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// Limit of a slice or a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Running time, without waits.
    Time(Duration),
    /// Number of rows, so that tests do not depend on a clock.
    #[cfg(test)]
    Rows(u64),
}

/// Work that was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Running time.
    pub time: Duration,
    /// Rows that were read, whether they matched or not.
    pub rows: u64,
}

/// Work between two pauses.
#[derive(Debug)]
pub struct Slice {
    allowance: Allowance,
    began: Instant,
    rows: u64,
}

impl Allowance {
    /// Returns whether `spent` uses up the limit.
    #[must_use]
    pub fn is_spent(self, spent: Spent) -> bool {
        match self {
            Self::Time(time) => spent.time >= time,
            #[cfg(test)]
            Self::Rows(rows) => spent.rows >= rows,
        }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.rows += other.rows;
    }
}

impl Slice {
    /// Starts a slice now.
    #[must_use]
    pub fn begin(allowance: Allowance) -> Self {
        Self { allowance, began: Instant::now(), rows: 0 }
    }

    /// Counts a row that is read, or work that takes as long.
    pub fn look(&mut self) {
        self.rows += 1;
    }

    /// Returns whether it is time to pause. Never true before the first row, so that every slice
    /// makes progress.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.rows > 0 && self.allowance.is_spent(self.spent())
    }

    /// Returns the work that was done so far.
    #[must_use]
    pub fn spent(&self) -> Spent {
        Spent { time: self.began.elapsed(), rows: self.rows }
    }
}

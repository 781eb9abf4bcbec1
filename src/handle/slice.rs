//! How long a look at many rows goes on before others get their turn.
//!
//! Owns: what may be spent and what was. Deliberately lacks: whose turn it is.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

/// What may be spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// Running time, waiting left out.
    Time(Duration),
    /// Rows that are looked at, so that a test depends on no clock.
    #[cfg(test)]
    Rows(u64),
}

/// What was spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Running time.
    pub time: Duration,
    /// Rows that were looked at, whether they matched or not.
    pub rows: u64,
}

/// A piece of work between two pauses.
#[derive(Debug)]
pub struct Slice {
    allowance: Allowance,
    began: Instant,
    rows: u64,
}

impl Allowance {
    /// Whether so much is all of it.
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
    /// A slice that begins now.
    #[must_use]
    pub fn begin(allowance: Allowance) -> Self {
        Self { allowance, began: Instant::now(), rows: 0 }
    }

    /// Counts a row that is looked at, or something that takes as long.
    pub fn look(&mut self) {
        self.rows += 1;
    }

    /// Whether it is time to pause: never before the first row, so that every slice gets on.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.rows > 0 && self.allowance.is_spent(self.spent())
    }

    /// What it took by now.
    #[must_use]
    pub fn spent(&self) -> Spent {
        Spent { time: self.began.elapsed(), rows: self.rows }
    }
}

//! Times of changes as meshkeep observed them.
//!
//! The time of a change is the time at which meshkeep learned of it. After an interruption, a list
//! or the backlog of a watch contains changes that happened at an unknown moment during the
//! interruption. An [`ObservationGap`] records the interruption and the sequences of these changes.

use std::time::SystemTime;

use crate::model::Sequence;

/// Period in which meshkeep did not see the changes of a scope when they happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservationGap {
    /// Start of the period: the last contact before it. `None` if the scope was never complete
    /// before.
    pub from: Option<SystemTime>,
    /// Sequence of the first change that may have happened in the period.
    pub first: Sequence,
    /// End of the period. `None` until meshkeep has read all changes that it missed.
    pub end: Option<GapEnd>,
}

/// End of an [`ObservationGap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GapEnd {
    /// Time from which changes were seen when they happened.
    pub time: SystemTime,
    /// Sequence of the last change that may have happened in the period.
    pub last: Sequence,
}

impl ObservationGap {
    /// Returns whether the change with a sequence may have happened in the period.
    #[must_use]
    pub fn contains(&self, sequence: Sequence) -> bool {
        self.first <= sequence && self.end.is_none_or(|end| sequence <= end.last)
    }

    /// Returns the gap that covers this one and a later one, with everything between them.
    #[must_use]
    pub const fn join(self, later: Self) -> Self {
        Self { end: later.end, ..self }
    }
}

/// Sequences that were used within a short time, from `first` up to the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequenceRun {
    /// First sequence.
    pub first: Sequence,
    /// Time of the first sequence.
    pub from: SystemTime,
    /// Upper bound on the time of the last sequence.
    pub to: SystemTime,
}

/// Time of an object's last change, with the precision that meshkeep knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeTime {
    /// The change was seen within a second after this time.
    At(SystemTime),
    /// The change happened between these times.
    Between(SystemTime, SystemTime),
    /// The first list of the scope contained the object at this time. It may be older.
    FirstSeen(SystemTime),
}

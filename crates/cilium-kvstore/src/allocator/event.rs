//! What an allocator tells of the numbers that come and go.

use super::backend::Id;
use super::key::AllocatorKey;

/// What came or went (`AllocatorEvent`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Which of the two.
    pub kind: EventKind,
    /// The number.
    pub id: Id,
    /// Its key.
    pub key: AllocatorKey,
}

/// What became of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// It is new.
    Create,
    /// It was written again, perhaps with another key.
    Modify,
    /// It has gone.
    Delete,
    /// It was used here and cannot be had any more: its references expired, and it was given away before they could be written again. Who
    /// uses its key must allocate that anew.
    Lost,
}

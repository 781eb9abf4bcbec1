//! Events about numbers that an allocator sends to its caller.

use super::backend::Id;
use super::key::AllocatorKey;

/// Change of a number (`AllocatorEvent`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatorEvent {
    /// Kind of the change.
    pub kind: AllocatorEventKind,
    /// Number that changed.
    pub id: Id,
    /// Key of the number.
    pub key: AllocatorKey,
}

/// Kind of a change of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocatorEventKind {
    /// The number is new.
    Create,
    /// The number was written again, possibly with another key.
    Modify,
    /// The number was deleted.
    Delete,
    /// A number in use on this node was lost: its references expired, and the number was assigned
    /// to another key before the references could be written again. Users of the key must allocate
    /// again.
    Lost,
}

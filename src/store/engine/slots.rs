//! Slots, each with one value, and the trait [`SlotStorage`] of an engine that stores them.
//!
//! The layout uses nothing else of an engine, so sled can be replaced.

use std::fmt;

use crate::store::error::EngineError;

/// Maximum length of a value, in bytes. sled writes a page above 131,052 bytes to a file that it
/// never syncs (docs/develop/measurements.md §1.3, trap 2). The difference is for sled's page
/// header and the priming of the tree.
pub(in crate::store) const VALUE_BYTES_MAX: usize = 130_000;

/// Type of the object in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) enum SlotKind {
    /// State of a range of keys, up to a group.
    Chunk,
    /// The group up to which all chunks contain everything, and the id of the log.
    Checkpoint,
    /// List of the chunks.
    Manifest,
}

impl SlotKind {
    pub(in crate::store) const ALL: [Self; 3] = [Self::Chunk, Self::Checkpoint, Self::Manifest];

    /// Returns the first letter of the names of slots.
    const fn letter(self) -> char {
        match self {
            Self::Chunk => 'c',
            Self::Checkpoint => 'm',
            Self::Manifest => 'x',
        }
    }
}

/// Name of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) struct Slot {
    pub(in crate::store) kind: SlotKind,
    /// Number among the slots of its kind.
    pub(in crate::store) number: u32,
}

impl Slot {
    /// Parses a name. Returns `None` for any other text.
    pub(in crate::store) fn parse(name: &str) -> Option<Self> {
        let kind = SlotKind::ALL.into_iter().find(|kind| name.starts_with(kind.letter()))?;
        let slot = Self { kind, number: name.get(1..)?.parse().ok()? };
        // rejects another spelling, such as c01
        (slot.to_string() == name).then_some(slot)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.letter(), self.number)
    }
}

/// An engine that stores one value for each slot.
///
/// The layout relies on three properties: a write of a slot is complete or absent; a write of a
/// slot is never present without earlier writes of the same slot; everything that was written
/// before a successful [`SlotStorage::sync`] survives a power cut. The order of writes of different
/// slots does not matter. After an error the engine must be reopened.
pub(in crate::store) trait SlotStorage: Send + Sync {
    /// Returns every slot that was ever written, in any order.
    fn list_slots(&self) -> Result<Vec<Slot>, EngineError>;

    /// Returns the value of a slot.
    fn get(&self, slot: Slot) -> Result<Option<Vec<u8>>, EngineError>;

    /// Replaces the value of a slot. It has at most [`VALUE_BYTES_MAX`] bytes.
    fn put(&self, slot: Slot, value: &[u8]) -> Result<(), EngineError>;

    /// Deletes the value of a slot.
    fn delete(&self, slot: Slot) -> Result<(), EngineError>;

    /// Makes all writes survive a power cut.
    fn sync(&self) -> Result<(), EngineError>;
}

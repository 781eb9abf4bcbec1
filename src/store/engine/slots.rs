//! Slots: the few places that the store writes to, each holding one value or nothing, and all that it asks of an engine.
//!
//! Owns: the names of slots, the trait [`Slots`] that stands between the layout and the engine, so that another engine can take sled's
//! place, and the size that a value may have. Deliberately lacks: what the values mean (`object`).

use std::fmt;
use std::sync::Arc;

use crate::store::error::EngineError;

/// No value is longer. sled writes a page above 131,052 bytes to a file that it never syncs (docs/develop/measurements.md §1.3, trap 2); the rest is
/// for what sled's page and the priming of the slot add.
pub(in crate::store) const VALUE_BYTES_MAX: usize = 130_000;

/// What a slot is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) enum SlotKind {
    /// Part of the state: all that was stored in a range of keys, up to a group.
    Chunk,
    /// Notes about the log.
    Mark,
    /// Part of the manifest: where the state is.
    Manifest,
}

impl SlotKind {
    /// Every kind.
    pub(in crate::store) const ALL: [Self; 3] = [Self::Chunk, Self::Mark, Self::Manifest];

    /// The first letter of the slots' names.
    const fn letter(self) -> char {
        match self {
            Self::Chunk => 'c',
            Self::Mark => 'm',
            Self::Manifest => 'x',
        }
    }
}

/// The name of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store) struct Slot {
    /// What it is for.
    pub(in crate::store) kind: SlotKind,
    /// Its number among those of its kind.
    pub(in crate::store) number: u32,
}

impl Slot {
    /// Reads the written form back; `None` for anything else.
    pub(in crate::store) fn parse(name: &str) -> Option<Self> {
        let kind = SlotKind::ALL.into_iter().find(|kind| name.starts_with(kind.letter()))?;
        let slot = Self { kind, number: name.get(1..)?.parse().ok()? };
        // nothing else has the same meaning, such as c01
        (slot.to_string() == name).then_some(slot)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.letter(), self.number)
    }
}

/// An engine that keeps one value for each slot. All that the layout relies on: a write of a slot is there as a whole or not at all, writes of one slot
/// are never there without those before them, and what was written before a [`Slots::sync`] that succeeded is there after a power
/// cut. Nothing is relied on for the order of writes to different slots. After an error the engine must be opened anew.
pub(in crate::store) trait Slots: Sync {
    /// Every slot that was ever written, in any order.
    fn slots(&self) -> Result<Vec<Slot>, EngineError>;

    /// A slot's value.
    fn get(&self, slot: Slot) -> Result<Option<Vec<u8>>, EngineError>;

    /// Replaces a slot's value, which is at most [`VALUE_BYTES_MAX`] long.
    fn put(&self, slot: Slot, value: &[u8]) -> Result<(), EngineError>;

    /// Empties a slot.
    fn delete(&self, slot: Slot) -> Result<(), EngineError>;

    /// Makes everything written so far outlive a power cut.
    fn sync(&self) -> Result<(), EngineError>;
}

impl<S: Slots + Send> Slots for Arc<S> {
    fn slots(&self) -> Result<Vec<Slot>, EngineError> {
        S::slots(self)
    }

    fn get(&self, slot: Slot) -> Result<Option<Vec<u8>>, EngineError> {
        S::get(self, slot)
    }

    fn put(&self, slot: Slot, value: &[u8]) -> Result<(), EngineError> {
        S::put(self, slot, value)
    }

    fn delete(&self, slot: Slot) -> Result<(), EngineError> {
        S::delete(self, slot)
    }

    fn sync(&self) -> Result<(), EngineError> {
        S::sync(self)
    }
}

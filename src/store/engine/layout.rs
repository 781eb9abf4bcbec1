//! The number of the layout in the engine. `recovery` also writes it into a file next to the
//! engine's files.

use super::Engine;
use super::slots::SlotStorage;
use crate::store::encoding::codec;
use crate::store::error::EngineError;

/// Layout that this version writes: `migrations/0003-one-log`.
pub(in crate::store) const LAYOUT: u64 = 3;

pub(in crate::store) fn read_layout(engine: &Engine) -> Result<Option<u64>, EngineError> {
    let stored = engine.get_from_default_tree(codec::LAYOUT_KEY)?;
    stored.map(|stored| codec::decode_layout(&stored)).transpose().map_err(|error| EngineError::Damaged(error.to_string()))
}

/// Writes the number of a layout and syncs it.
pub(in crate::store) fn write_layout(engine: &Engine, layout: u64) -> Result<(), EngineError> {
    engine.put_into_default_tree(codec::LAYOUT_KEY, &codec::encode_layout(layout))?;
    engine.sync()
}

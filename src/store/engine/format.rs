//! The number of the layout, as it stands in the engine. (`recovery` has the file beside the engine that says the same.)

use super::Engine;
use super::slots::Slots;
use crate::store::encoding::codec;
use crate::store::error::EngineError;

/// The layout that this version writes: `migrations/0003-one-log`.
pub(in crate::store) const FORMAT: u64 = 3;

/// The number of the layout as the engine has it.
pub(in crate::store) fn read_mark(engine: &Engine) -> Result<Option<u64>, EngineError> {
    let stored = engine.get_plain(codec::FORMAT_KEY)?;
    stored.map(|stored| codec::read_format(&stored)).transpose().map_err(|error| EngineError::Damaged(error.to_string()))
}

/// Writes the number of a layout into the engine, and syncs it.
pub(in crate::store) fn write_number(engine: &Engine, format: u64) -> Result<(), EngineError> {
    engine.put_plain(codec::FORMAT_KEY, &codec::write_format(format))?;
    engine.sync()
}

//! Upgrades of a store from an older layout, in place and one layout at a time.
//!
//! No older layout was released so far, so [`UPGRADES`] is empty. A new layout adds its step here,
//! and a store of the layout before it to `migrations/`.

use crate::store::engine::Engine;
use crate::store::engine::layout::write_layout;
use crate::store::engine::slots::SlotStorage as _;
use crate::store::error::EngineError;

/// Number of an older layout, and the step from it to the next one. A step that was interrupted is
/// run again.
pub(in crate::store) type Upgrade = (u64, fn(&Engine) -> Result<(), EngineError>);

/// Steps from the older layouts that this version can read.
pub(super) const UPGRADES: &[Upgrade] = &[];

/// Upgrades a store to the next layout. Returns false if there is no step from its layout.
pub(in crate::store) fn upgrade_from(layout: u64, engine: &Engine, upgrades: &[Upgrade]) -> Result<bool, EngineError> {
    let Some((_, step)) = upgrades.iter().find(|(from, _)| *from == layout) else { return Ok(false) };
    tracing::info!("upgrading the store from layout {layout} to {}", layout + 1);
    step(engine)?;
    // the number changes last: until it is synced, a start runs the step again
    engine.sync()?;
    write_layout(engine, layout + 1)?;
    Ok(true)
}

//! Records, positions, commands that change the mirror, and announcements of changes.

pub(super) mod change;
pub(super) mod finding;
pub(super) mod position;
pub(super) mod record;

//! Commands that change the mirror, records, positions and findings.

pub(super) mod change;
pub(super) mod finding;
pub(super) mod position;
pub(super) mod record;

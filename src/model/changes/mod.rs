//! Commands that change the mirror, records, positions and findings.

pub(super) mod catch_up;
pub(super) mod change;
pub(super) mod finding;
pub(super) mod finding_kind;
pub(super) mod observation;
pub(super) mod position;
pub(super) mod record;
pub(super) mod replaced;

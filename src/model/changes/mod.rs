//! Records and positions, the commands that change the mirror, and the announcements that follow.

pub(super) mod announcement;
pub(super) mod change;
pub(super) mod position;
pub(super) mod record;
pub(super) mod told_finding;

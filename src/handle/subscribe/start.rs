//! Start of a stream, and the check that meshkeep can continue from there.

use std::time::SystemTime;

use crate::handle::{Filter, Reading};
use crate::model::{Position, ReaderPosition, ResetReason, Sequence};

/// Start of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStart {
    /// Only changes from now on.
    Now,
    /// A snapshot of everything that matches, then live changes.
    Snapshot,
    /// The changes after a position. `None` if the client sent a position that cannot be parsed;
    /// the stream then starts with a reset.
    After(Option<ReaderPosition>),
    /// The changes after a time, as far as they are known.
    Since(SystemTime),
}

impl StreamStart {
    /// Returns the sequence after which the stream continues.
    pub(super) fn resume_position(&self, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
        match self {
            Self::Now | Self::Snapshot => Ok(reading.position().sequence),
            Self::After(position) => check_reader_position(*position, filter, reading),
            Self::Since(time) => check_servable(reading.position_before(*time).ok_or(ResetReason::Expired)?, filter, reading),
        }
    }
}

/// Checks that a position of a known run can be served. Neither the position nor the head that was
/// seen may be above the recovered sequences or below the floor of the tombstones.
pub(super) fn check_reader_position(position: Option<ReaderPosition>, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
    let ReaderPosition { position, seen } = position.ok_or(ResetReason::Malformed)?;
    if let Some(seen) = seen {
        check_servable(Position { sequence: seen, ..position }, filter, reading)?;
    }
    check_servable(position, filter, reading)
}

/// Checks one position. Returns its sequence, after which the stream continues.
pub(super) fn check_servable(position: Position, filter: &Filter, reading: &Reading) -> Result<Sequence, ResetReason> {
    let head = reading.position();
    let newest = if position.epoch == head.epoch {
        head.sequence
    } else if filter.asks_for_problems() {
        // it is not known whether findings of an earlier run are resolved
        return Err(ResetReason::ForeignEpoch);
    } else {
        let earlier = reading.published.earlier_runs.iter().find(|span| span.epoch == position.epoch);
        earlier.and_then(|span| span.accepted_up_to).ok_or(ResetReason::ForeignEpoch)?
    };
    if position.sequence > newest {
        return Err(ResetReason::RolledBack);
    }
    if position.sequence < reading.published.feed.floor() {
        return Err(ResetReason::Expired);
    }
    Ok(position.sequence)
}

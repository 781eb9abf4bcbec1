//! Subscribers that are suspended inside a snapshot or replay and resumed by another request, for
//! as many pages as needed.
//!
//! A live subscriber has a plain position. Inside a snapshot or replay that is not enough. Events
//! that were sent may be newer than the position. Events that were not sent would be skipped, or
//! lost if the store loses its end.

use super::{Filter, Mode, ResetReason, Subscription, SyncMode, servable};
use crate::handle::{Follower, Reading};
use crate::model::{EntryKey, Position};

/// Progress of a subscriber inside a snapshot or replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Position at which the snapshot began, because its scan is followed by the changes since. In
    /// a replay, the position that was reached.
    pub sent: Position,
    /// Head that was read last. If the store has lost it, the subscriber may have events that no
    /// longer exist, and cannot be resumed.
    pub seen: Position,
    /// Way in which the subscriber catches up.
    pub mode: SyncMode,
    /// Progress of the snapshot or replay.
    pub stage: Stage,
    /// Number of upserts and deletes that were sent so far.
    pub count: u64,
}

/// Progress of a snapshot or replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Reading in key order, with the next key to read; `None` for the first.
    Scan(Option<EntryKey>),
    /// Reading the changes since the position. Inside a snapshot, all keys have been read.
    Replay,
}

impl Subscription {
    /// Returns the progress inside a snapshot or replay, as of the reading of the last
    /// [`Subscription::tell_up_to`]. `None` outside of one.
    #[must_use]
    pub fn place(&self, reading: &Reading) -> Option<Place> {
        let stage = match &self.mode {
            Mode::Scanning(next) => Stage::Scan(next.clone()),
            Mode::Replaying => Stage::Replay,
            Mode::Live => return None,
        };
        Some(Place { sent: self.position(reading), seen: reading.position(), mode: self.sync_mode, stage, count: self.count })
    }

    /// Resumes the subscriber that was suspended at `place`, with the same filter.
    #[must_use]
    pub fn resumed(filter: Filter, place: &Place, reading: &Reading) -> Self {
        let mut subscription = Self::at_head(filter, reading);
        match Self::check_place(place, &subscription.filter, reading) {
            Ok(()) => {
                subscription.follower = Follower::at(place.sent.sequence);
                subscription.mode = match &place.stage {
                    Stage::Scan(next) => Mode::Scanning(next.clone()),
                    Stage::Replay => Mode::Replaying,
                };
                subscription.sync_mode = place.mode;
                subscription.count = place.count;
                subscription.owes_synced = true;
            }
            Err(reason) => subscription.restart(reason, reading.position().sequence),
        }
        subscription
    }

    /// Checks that a subscriber can be resumed.
    ///
    /// # Errors
    /// The reason why a reset is needed.
    pub fn check_place(place: &Place, filter: &Filter, reading: &Reading) -> Result<(), ResetReason> {
        servable(place.seen, filter, reading)?;
        servable(place.sent, filter, reading).map(|_| ())
    }
}

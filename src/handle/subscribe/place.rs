//! A reader that is put down inside a snapshot or replay and taken up again by another request, for as many pages as it takes.
//!
//! A reader that is live has a plain position. Inside a snapshot or replay that would not do: what was told so far may be newer than the
//! position, and what was not told yet would be skipped, or would be lost with a lost tail of the store.

use super::{Filter, Mode, ResetReason, Subscription, SyncMode, servable};
use crate::handle::Reading;
use crate::model::{EntryKey, Position};

/// Where a reader is inside a snapshot or replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The position that the snapshot began with, as what changed since follows the scan; in a replay how far it is.
    pub sent: Position,
    /// The head that was read last. A store that has lost it may have lost what the reader was told, so it cannot go on from here.
    pub seen: Position,
    /// What it is inside of.
    pub mode: SyncMode,
    /// How far that is.
    pub stage: Stage,
    /// How many upserts and deletes it took so far.
    pub count: u64,
}

/// How far a snapshot or replay is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// In key order; the next key to look at, `None` for the first.
    Scan(Option<EntryKey>),
    /// What changed since the position is missing; of a snapshot, all keys were looked at.
    Replay,
}

impl Subscription {
    /// Where the reader is inside a snapshot or replay, as of the reading that [`Subscription::next`] saw last; `None` outside of one.
    #[must_use]
    pub fn place(&self, reading: &Reading) -> Option<Place> {
        let stage = match &self.mode {
            Mode::Scanning(next) => Stage::Scan(next.clone()),
            Mode::Replaying => Stage::Replay,
            Mode::Live => return None,
        };
        Some(Place { sent: self.position(reading), seen: reading.position(), mode: self.sync_mode, stage, count: self.count })
    }

    /// The reader that was put down at `place`, with the same filter.
    #[must_use]
    pub fn resumed(filter: Filter, place: &Place, reading: &Reading) -> Self {
        let mut subscription = Self::at_head(filter, reading);
        match Self::check_place(place, &subscription.filter, reading) {
            Ok(()) => {
                subscription.sent = place.sent.sequence;
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

    /// Whether a place can be gone on from.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check_place(place: &Place, filter: &Filter, reading: &Reading) -> Result<(), ResetReason> {
        servable(place.seen, filter, reading)?;
        servable(place.sent, filter, reading).map(|_| ())
    }
}

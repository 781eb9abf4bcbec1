//! A reader that is put down inside a snapshot and taken up again by another request, for as many pages as it takes.
//!
//! Outside a snapshot a plain position says everything. Inside one it would not: what was scanned so far may be newer than the
//! position that the snapshot began with, and what was not scanned yet would be skipped.

use super::{Filter, Mode, ResetReason, Subscription, SyncMode, servable};
use crate::handle::Reading;
use crate::model::{EntryKey, Position};

/// Where a reader is inside a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The position that the snapshot began with: what changed since follows the scan.
    pub sent: Position,
    /// The head that was read last. A store that has lost it may have lost what the reader was told, so it cannot go on from here.
    pub seen: Position,
    /// How far the snapshot is.
    pub stage: Stage,
    /// How many upserts and deletes it took so far.
    pub count: u64,
}

/// How far a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// In key order; the next key to look at, `None` for the first.
    Scan(Option<EntryKey>),
    /// All keys were looked at; what changed meanwhile is missing.
    Replay,
}

impl Subscription {
    /// Where the reader is inside a snapshot, as of the reading that [`Subscription::next`] saw last; `None` outside of one.
    #[must_use]
    pub fn place(&self, reading: &Reading) -> Option<Place> {
        if self.sync_mode != SyncMode::Snapshot || !self.owes_synced {
            return None;
        }
        let stage = match &self.mode {
            Mode::Scanning(next) => Stage::Scan(next.clone()),
            Mode::Replaying | Mode::Live => Stage::Replay,
        };
        Some(Place { sent: self.position(reading), seen: reading.position(), stage, count: self.count })
    }

    /// The reader that was put down at `place`, with the same filter.
    #[must_use]
    pub fn resumed(filter: Filter, place: &Place, reading: &Reading) -> Self {
        let mut subscription = Self::at_head(filter, reading);
        match Self::check_place(place, reading) {
            Ok(()) => {
                subscription.sent = place.sent.sequence;
                subscription.mode = match &place.stage {
                    Stage::Scan(next) => Mode::Scanning(next.clone()),
                    Stage::Replay => Mode::Replaying,
                };
                subscription.sync_mode = SyncMode::Snapshot;
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
    pub fn check_place(place: &Place, reading: &Reading) -> Result<(), ResetReason> {
        servable(place.seen, reading)?;
        servable(place.sent, reading).map(|_| ())
    }
}

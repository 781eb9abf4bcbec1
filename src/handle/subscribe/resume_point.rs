//! Subscribers that are suspended inside a snapshot or replay and resumed by another request, for
//! as many pages as needed.
//!
//! A live subscriber needs only a position. Inside a snapshot or replay that is not enough. Some
//! events that were sent may be newer than the position, and may disappear if a crash loses the end
//! of the store's log. Continuing after the newest event would skip unsent ones, so a resume point
//! keeps both the position and the newest head seen.

use super::{Filter, ReadMode, ResetReason, Subscription, SyncMode, check_servable};
use crate::handle::{Follower, Reading};
use crate::model::{EntryKey, Position};

/// Progress of a subscriber inside a snapshot or replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumePoint {
    /// Position at which the snapshot began, because its scan is followed by the changes since. In
    /// a replay, the position that was reached.
    pub sent: Position,
    /// Head that was read last. If the store has lost it, the subscriber may have events that no
    /// longer exist, and cannot be resumed.
    pub seen: Position,
    /// Way in which the subscriber catches up.
    pub mode: SyncMode,
    /// Progress of the snapshot or replay.
    pub stage: CatchUpStage,
    /// Number of upserts and deletes that were sent so far.
    pub count: u64,
}

/// Progress of a snapshot or replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatchUpStage {
    /// Reading in key order, with the next key to read; `None` for the first.
    Scan(Option<EntryKey>),
    /// Reading the changes since the position. Inside a snapshot, all keys have been read.
    Replay,
}

impl Subscription {
    /// Returns the progress inside a snapshot or replay, as of the reading of the last
    /// [`Subscription::encode_next`]. `None` outside of one.
    #[must_use]
    pub fn resume_point(&self, reading: &Reading) -> Option<ResumePoint> {
        let stage = match &self.mode {
            ReadMode::Scanning(next) => CatchUpStage::Scan(next.clone()),
            ReadMode::Replaying => CatchUpStage::Replay,
            ReadMode::Live => return None,
        };
        Some(ResumePoint { sent: self.position(reading), seen: reading.position(), mode: self.sync_mode, stage, count: self.count })
    }

    /// Resumes the subscriber that was suspended at `point`, with the same filter.
    #[must_use]
    pub fn resume(filter: Filter, point: &ResumePoint, reading: &Reading) -> Self {
        let mut subscription = Self::at_head(filter, reading);
        match Self::check_resume_point(point, &subscription.filter, reading) {
            Ok(()) => {
                subscription.follower = Follower::at(point.sent.sequence);
                subscription.mode = match &point.stage {
                    CatchUpStage::Scan(next) => ReadMode::Scanning(next.clone()),
                    CatchUpStage::Replay => ReadMode::Replaying,
                };
                subscription.sync_mode = point.mode;
                subscription.count = point.count;
                subscription.synced_pending = true;
            }
            Err(reason) => subscription.restart(reason, reading.position().sequence),
        }
        subscription
    }

    /// Checks that a subscriber can be resumed.
    ///
    /// # Errors
    /// The reason why a reset is needed.
    pub fn check_resume_point(point: &ResumePoint, filter: &Filter, reading: &Reading) -> Result<(), ResetReason> {
        check_servable(point.seen, filter, reading)?;
        check_servable(point.sent, filter, reading).map(|_| ())
    }
}

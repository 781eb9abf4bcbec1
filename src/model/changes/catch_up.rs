//! Ways in which a subscriber catches up (docs/use/api/streams.md).

use crate::model::api_enum::api_enum;

api_enum! {
    /// Reason why a client must drop its copy.
    pub enum ResetReason {
        /// The subscriber asked for a snapshot.
        Initial = "initial",
        /// Deletes after the subscriber's position are no longer known.
        Expired = "expired",
        /// The subscriber's position is from an unknown run of meshkeep.
        ForeignEpoch = "foreignEpoch",
        /// The subscriber's position is ahead of the changes that exist.
        RolledBack = "rolledBack",
        /// The subscriber's position cannot be parsed.
        Malformed = "malformed",
    }
}

api_enum! {
    /// Way in which the subscriber caught up before `synced`: by a snapshot or by a replay.
    pub enum SyncMode {
        /// A full snapshot.
        Snapshot = "snapshot",
        /// The changes since a position.
        Replay = "replay",
    }
}

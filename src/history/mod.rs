//! The history: the records that changes replaced, as far back as the settings allow.
//!
//! The committer adds the replaced records of each group to a buffer, and the log contains them
//! until they are in a segment. The [`HistoryWriter`], on a thread of its own, seals the buffer
//! into segments, merges small segments, and removes old ones. A [`HistoryReader`] gives out
//! [`HistorySnapshot`]s for queries. The mirror never waits for the history: if the history is too
//! slow or its disk is full, it loses a period and reports the gap.
//!
//! Each module imports only the ones before it: `segment` (the bytes of a segment, pure except for
//! positioned reads), `buffered` (records that are not in a segment yet), `files` (the directory),
//! `snapshot` (the history at one moment), `selection` and `query` (versions at an earlier time),
//! `sealing` (writing and merging segments) and `writer`.

mod buffered;
mod ended_versions;
mod files;
mod query;
mod sealing;
mod segment;
mod selection;
mod snapshot;
#[cfg(test)]
mod tests;
mod writer;

pub use ended_versions::EndedVersionScan;
pub use query::{HistoryGap, PageLimits, PastCovering, PastState, SequenceAt, VersionPage};
#[cfg(feature = "internals")]
pub use sealing::write_unmerged_segment;
#[cfg(test)]
pub use segment::block::ReplacedVersion;
pub use segment::writer::with_object;
pub use selection::VersionSelection;
pub use snapshot::HistorySnapshot;
pub use writer::{HistoryOptions, HistoryReader, HistoryStatus, HistoryWriter, history};

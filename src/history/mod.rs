//! The history: the records that changes replaced, as far back as the settings allow.
//!
//! The committer adds the replaced records of each group to a buffer, and the log contains them
//! until they are in a segment. The [`HistoryWriter`], on a thread of its own, seals the buffer into
//! segments, merges small segments, and removes old ones. A [`HistoryReader`] gives out
//! [`HistorySnapshot`]s for queries. The mirror never waits for the history: if the history is too
//! slow or its disk is full, it loses a period and reports the gap.
//!
//! Each module imports only the ones before it: `segment` (the bytes of a segment, pure except for
//! positioned reads), `buffered` (records that are not in a segment yet), `files` (the directory),
//! `snapshot` (the history at one moment), `selection` and `query` (versions at an earlier time),
//! `sealing` (writing and merging segments) and `writer`.

mod buffered;
mod files;
#[cfg(test)]
mod query;
mod sealing;
mod segment;
#[cfg(test)]
mod selection;
mod snapshot;
#[cfg(test)]
mod tests;
mod writer;

#[cfg(test)]
pub use query::{PageLimits, PastState};
#[cfg(test)]
pub use segment::block::ReplacedVersion;
#[cfg(test)]
pub use selection::VersionSelection;
pub use writer::{HistoryOptions, HistoryReader, HistoryStatus, HistoryWriter, history};

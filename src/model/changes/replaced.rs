//! Records that changes replaced, which the history keeps.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::SystemTime;

use super::change::DeleteReason;
use super::position::Sequence;
use super::record::Record;

/// Record that a change replaced by a newer one, or deleted.
///
/// The change that created a key replaces no record. Its sequence is the `create_sequence` of all
/// later records of the key, so the history needs no entry for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplacedRecord {
    /// Record before the change.
    pub record: Arc<Record>,
    /// Reason of the deletion; `None` if the change updated the record.
    pub deleted: Option<DeleteReason>,
}

/// All records that were replaced within a range of sequences, with the times of the changes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplacedRecords {
    /// Sequence before the range.
    pub after: Sequence,
    /// Last sequence of the range.
    pub last: Sequence,
    /// Times of the changes, in order of sequence. A change has the time of the last pair at or
    /// before its sequence.
    pub times: Vec<(Sequence, SystemTime)>,
    /// Records by the sequence of the change that replaced them.
    pub records: BTreeMap<Sequence, ReplacedRecord>,
}

impl ReplacedRecords {
    /// Returns an empty range.
    #[cfg(test)]
    #[must_use]
    pub fn new(after: Sequence, last: Sequence) -> Self {
        Self { after, last, ..Self::default() }
    }

    /// Extends this range by the range before it. If that one does not end where this one begins,
    /// it is dropped, and the history has a gap there.
    pub fn merge_older(&mut self, older: Self) {
        if older.last != self.after {
            return;
        }
        self.after = older.after;
        self.times.splice(0..0, older.times);
        self.records.extend(older.records);
    }

    /// Removes the records and times up to a sequence.
    pub fn remove_up_to(&mut self, sequence: Sequence) {
        if sequence <= self.after {
            return;
        }
        self.after = sequence.min(self.last);
        self.records = self.records.split_off(&sequence.next());
        // the last pair at or before the sequence is the time of the next changes
        let obsolete = self.times.partition_point(|(first, _)| *first <= sequence.next()).saturating_sub(1);
        self.times.drain(..obsolete);
    }
}

/// Receiver of replaced records. The committer and the store call it; the history implements it.
/// No call blocks for long.
pub trait ReplacedRecordSink: Debug + Send + Sync {
    /// Accepts the replaced records of a group of the log. A power cut may still lose the group.
    fn add_replaced(&self, group: u64, replaced: &ReplacedRecords);

    /// Reports that all groups up to this one survive a power cut.
    fn confirm_synced(&self, group: u64);

    /// Asks for the buffered records to be written to a segment soon.
    fn request_seal(&self);

    /// Reports that the mirror cannot be stored because the disk is full.
    fn report_full_disk(&self);
}

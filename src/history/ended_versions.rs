//! Scan of the versions that existed at an earlier time and that later changes ended.
//!
//! Together with the current records that have not changed since, they are the state at that time.

use std::collections::BTreeSet;

use super::query::HistoryGap;
use super::segment::block::ReplacedVersion;
use super::selection::VersionSelection;
use super::snapshot::HistorySnapshot;
use crate::model::Sequence;

/// Scan of the versions that existed at a sequence and that later changes ended, in any order. It
/// ignores changes after the snapshot of the mirror, which has the versions that they ended.
#[derive(Debug)]
pub struct EndedVersionScan {
    snapshot: HistorySnapshot,
    selection: VersionSelection,
    at: Sequence,
    /// Newest sequence of the snapshot of the mirror.
    head: Sequence,
    /// Index of the next source to read.
    next_source: usize,
    /// Sources that cannot be read.
    damaged: BTreeSet<Sequence>,
}

impl EndedVersionScan {
    /// Begins a scan of the versions at `at` that changes up to and including `head` ended.
    #[must_use]
    pub fn new(snapshot: HistorySnapshot, selection: VersionSelection, at: Sequence, head: Sequence) -> Self {
        Self { snapshot, selection, at, head, next_source: 0, damaged: BTreeSet::new() }
    }

    /// Passes the versions of the next source to `visit`. Returns false if no source is left. Reads
    /// a file, so it needs a thread that may block.
    pub fn advance(&mut self, visit: &mut dyn FnMut(ReplacedVersion)) -> bool {
        let Self { snapshot, selection, at, head, .. } = self;
        let mut sources = snapshot.sources().enumerate().skip(self.next_source);
        let Some((index, source)) = sources.find(|(_, source)| source.last() > *at && source.after() < *head) else { return false };
        self.next_source = index + 1;
        let mut visit_existing = |version: ReplacedVersion| {
            if version.record.last_sequence <= *at && *at < version.replaced_at && version.replaced_at <= *head {
                visit(version);
            }
        };
        if source.visit_selected(selection, &mut visit_existing).is_none() {
            self.damaged.insert(source.after());
        }
        true
    }

    /// Returns the periods after the sequence that the history lost, oldest first. It is complete
    /// at the end of the scan.
    #[must_use]
    pub fn lost_periods(&self) -> Vec<HistoryGap> {
        self.snapshot.gaps_between(self.at, self.head, &self.damaged)
    }
}

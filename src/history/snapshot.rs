//! The history at one moment: its segments and the records that are not in a segment yet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use super::buffered::BufferedRange;
use super::files::StoredSegment;
use super::segment::times::TimeRange;
use crate::model::Sequence;

/// The history at one moment. It does not change, whatever is written meanwhile.
#[derive(Debug, Clone, Default)]
pub struct HistorySnapshot {
    /// Oldest first.
    pub(super) segments: Vec<Arc<StoredSegment>>,
    /// Records that are or will be written to segments, oldest first. Only the newest may be
    /// followed directly by the buffer.
    pub(super) sealing: VecDeque<BufferedRange>,
    pub(super) buffer: BufferedRange,
}

/// A part of the history: a segment, or records in memory.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source<'a> {
    Segment(&'a StoredSegment),
    Buffered(&'a BufferedRange),
}

impl Source<'_> {
    pub(super) fn after(self) -> Sequence {
        match self {
            Self::Segment(segment) => segment.after,
            Self::Buffered(range) => range.after,
        }
    }

    pub(super) fn last(self) -> Sequence {
        match self {
            Self::Segment(segment) => segment.last,
            Self::Buffered(range) => range.last,
        }
    }

    pub(super) fn times(self) -> Option<TimeRange> {
        match self {
            Self::Segment(segment) => segment.fence()?.times,
            Self::Buffered(range) => range.times(),
        }
    }

    pub(super) fn is_readable(self) -> bool {
        match self {
            Self::Segment(segment) => segment.fence().is_some(),
            Self::Buffered(_) => true,
        }
    }
}

impl HistorySnapshot {
    /// Iterates over the sources, oldest first.
    pub(super) fn sources(&self) -> impl DoubleEndedIterator<Item = Source<'_>> + Clone {
        let buffered = self.sealing.iter().chain((!self.buffer.is_empty()).then_some(&self.buffer));
        self.segments.iter().map(|segment| Source::Segment(segment)).chain(buffered.map(Source::Buffered))
    }

    /// Returns the last sequence of the history.
    #[must_use]
    pub fn last(&self) -> Sequence {
        // an empty buffer may follow a gap
        self.buffer.last
    }

    /// Returns the time of the oldest known change. `None` without changes.
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        self.sources().find_map(Source::times).map(|range| range.earliest.into())
    }

    /// Returns the number of ranges of sequences that no source covers.
    pub(super) fn gap_count(&self) -> usize {
        let readable: Vec<Source<'_>> = self.sources().filter(|source| source.is_readable()).collect();
        let between = readable.windows(2).filter(|pair| pair[0].last() < pair[1].after()).count();
        between + usize::from(readable.last().is_some_and(|newest| newest.last() < self.last()))
    }
}

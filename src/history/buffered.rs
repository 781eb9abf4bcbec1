//! Replaced records that are not in a segment yet, in order of sequence.
//!
//! They are few enough (some thousands) that a query scans all of them.

use std::sync::Arc;

use super::segment::block::ReplacedVersion;
use super::segment::row_key::prefix_of;
use super::segment::times::{Millis, TimePair, TimeRange, push_pair};
use crate::model::{ObjectPrefix, ReplacedRecords, Sequence};

/// Number of versions up to which newer ones are added to the same batch. A snapshot copies one
/// pointer per batch.
const BATCH_VERSIONS: usize = 256;

/// A version with the prefix of its key.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BufferedVersion {
    pub(super) prefix: Option<ObjectPrefix>,
    pub(super) version: ReplacedVersion,
}

/// Replaced versions of a range of sequences. A clone shares them.
#[derive(Debug, Clone, Default)]
pub(super) struct BufferedRange {
    /// Sequence before the range.
    pub(super) after: Sequence,
    /// Last sequence of the range.
    pub(super) last: Sequence,
    /// Last group of the log with a change of the range.
    pub(super) group: u64,
    pairs: Arc<Vec<TimePair>>,
    batches: Vec<Arc<Vec<BufferedVersion>>>,
    /// Approximate memory of the versions and times.
    pub(super) byte_count: usize,
}

impl BufferedRange {
    pub(super) fn new(after: Sequence) -> Self {
        Self { after, last: after, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.last == self.after
    }

    /// Adds the records of a group, which follow the range.
    pub(super) fn add(&mut self, group: u64, replaced: &ReplacedRecords) {
        let pairs = Arc::make_mut(&mut self.pairs);
        let before = pairs.len();
        for (sequence, time) in &replaced.times {
            push_pair(pairs, (*sequence, Millis::from(*time)));
        }
        self.byte_count += (pairs.len() - before) * size_of::<TimePair>();
        for (sequence, replaced) in &replaced.records {
            let record = Arc::clone(&replaced.record);
            let version = ReplacedVersion { record, replaced_at: *sequence, deleted: replaced.deleted };
            self.byte_count += version.byte_count();
            self.push(BufferedVersion { prefix: prefix_of(&version.record.key), version });
        }
        (self.last, self.group) = (replaced.last, group);
    }

    fn push(&mut self, buffered: BufferedVersion) {
        match self.batches.last_mut().filter(|batch| batch.len() < BATCH_VERSIONS).and_then(Arc::get_mut) {
            Some(batch) => batch.push(buffered),
            None => self.batches.push(Arc::new(vec![buffered])),
        }
    }

    /// Moves everything up to the last sequence of a group out.
    pub(super) fn take_up_to(&mut self, group: u64, last: Sequence) -> Self {
        if last >= self.last {
            let whole = std::mem::replace(self, Self::new(self.last));
            return Self { group, ..whole };
        }
        let whole = std::mem::replace(self, Self::new(last));
        let (mut taken, mut rest) = (Self::new(whole.after), Self::new(last));
        let split = whole.pairs.partition_point(|(sequence, _)| *sequence <= last);
        let mut rest_pairs = whole.pairs[split..].to_vec();
        // the last pair may have changes in both parts
        if let Some((_, time)) = whole.pairs[..split].last()
            && rest_pairs.first().is_none_or(|(first, _)| *first > last.next())
        {
            rest_pairs.insert(0, (last.next(), *time));
        }
        (taken.pairs, rest.pairs) = (Arc::new(whole.pairs[..split].to_vec()), Arc::new(rest_pairs));
        for buffered in whole.buffered() {
            let part = if buffered.version.replaced_at <= last { &mut taken } else { &mut rest };
            part.byte_count += buffered.version.byte_count();
            part.push(buffered.clone());
        }
        for part in [&mut taken, &mut rest] {
            part.byte_count += part.pairs.len() * size_of::<TimePair>();
        }
        (taken.last, taken.group) = (last, group);
        (rest.last, rest.group) = (whole.last, whole.group);
        *self = rest;
        taken
    }

    pub(super) fn buffered(&self) -> impl DoubleEndedIterator<Item = &BufferedVersion> {
        self.batches.iter().flat_map(|batch| batch.iter())
    }

    /// Iterates over the versions in order of sequence.
    pub(super) fn versions(&self) -> impl DoubleEndedIterator<Item = &ReplacedVersion> {
        self.buffered().map(|buffered| &buffered.version)
    }

    pub(super) fn pairs(&self) -> &[TimePair] {
        &self.pairs
    }

    pub(super) fn times(&self) -> Option<TimeRange> {
        TimeRange::of_pairs(&self.pairs)
    }
}

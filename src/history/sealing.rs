//! Sealing: writes buffered records to a segment, together with the small segments before it.
//!
//! A new segment absorbs the segments before it while they are less than about twice its size. So
//! few segments exist at low rates of change, and each record is written a few times. Full segments
//! stay as they are.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::buffered::BufferedRange;
use super::files::{SegmentDirectory, StoredSegment};
use super::segment::block::ReplacedVersion;
use super::segment::reader::SegmentError;
use super::segment::row_key::RowKey;
use super::segment::times::{TimePair, TimeRange, push_pair};

/// Factor by which buffered records shrink when they are sealed; a rough estimate.
const SHRINK_FACTOR: u64 = 12;

/// Limits on segments.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentLimits {
    /// Maximum length of a merged segment, in bytes. A quarter of it is a full segment.
    pub(super) length_max: u64,
    /// Maximum time between the first and the last change of a merged segment, so that old changes
    /// can be removed.
    pub(super) span_max: Duration,
}

/// Error of sealing.
#[derive(Debug, thiserror::Error)]
pub(super) enum SealError {
    /// An absorbed segment is damaged. It must stay as it is.
    #[error("a segment to merge is damaged")]
    DamagedSegment,
    /// The segment cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// Rows of one input of a merge, with the next one decoded.
struct MergeInput<'a> {
    /// `None` for the sealed records.
    segment: Option<&'a StoredSegment>,
    rows: Box<dyn Iterator<Item = Result<ReplacedVersion, SegmentError>> + 'a>,
    next: Option<(RowKey, ReplacedVersion)>,
}

impl<'a> MergeInput<'a> {
    fn new(
        segment: Option<&'a StoredSegment>,
        rows: impl Iterator<Item = Result<ReplacedVersion, SegmentError>> + 'a,
    ) -> Result<Self, SegmentError> {
        let mut input = Self { segment, rows: Box::new(rows), next: None };
        input.advance()?;
        Ok(input)
    }

    /// Returns the next row and decodes the one after it.
    fn advance(&mut self) -> Result<Option<(RowKey, ReplacedVersion)>, SegmentError> {
        let next = self.rows.next().transpose()?.map(|version| (version.row_key(), version));
        Ok(std::mem::replace(&mut self.next, next))
    }
}

/// Returns how many of the newest segments the sealed records absorb. The segments are in order of
/// age.
pub(super) fn absorbed_count(segments: &[Arc<StoredSegment>], sealed: &BufferedRange, limits: SegmentLimits) -> usize {
    let (mut length, mut after, mut times) = (sealed.byte_count as u64 / SHRINK_FACTOR, sealed.after, sealed.times());
    let mut count = 0;
    for segment in segments.iter().rev() {
        let Some(fence) = segment.fence().filter(|_| segment.damage().is_none()) else { break };
        let combined = [times, fence.times].into_iter().flatten().reduce(TimeRange::covering);
        let is_small = segment.length < limits.length_max / 4 && segment.length < 2 * length.max(SMALL_LENGTH);
        let is_short = combined.is_none_or(|range| range.span() <= limits.span_max);
        if segment.last != after || !is_small || !is_short || length + segment.length > limits.length_max {
            break;
        }
        (length, after, times) = (length + segment.length, segment.after, combined);
        count += 1;
    }
    count
}

/// Length up to which a segment is always absorbed: its filter and its head are most of it.
const SMALL_LENGTH: u64 = 16 << 10;

/// Writes sealed records and the absorbed segments, oldest first, as one segment.
pub(super) fn write_segment(
    directory: &SegmentDirectory,
    absorbed: &[Arc<StoredSegment>],
    sealed: &BufferedRange,
) -> Result<StoredSegment, SealError> {
    let (mut pairs, mut inputs): (Vec<TimePair>, Vec<MergeInput<'_>>) = (Vec::new(), Vec::new());
    for stored in absorbed {
        let opened = stored.read(|segment| Ok((MergeInput::new(Some(stored), segment.rows()?)?, segment.all_pairs()?)));
        let (input, earlier) = opened.ok_or(SealError::DamagedSegment)?;
        inputs.push(input);
        earlier.into_iter().for_each(|pair| push_pair(&mut pairs, pair));
    }
    sealed.pairs().iter().for_each(|pair| push_pair(&mut pairs, *pair));
    let mut versions: Vec<&ReplacedVersion> = sealed.versions().collect();
    versions.sort_by_cached_key(|version| version.row_key());
    inputs.extend(MergeInput::new(None, versions.into_iter().cloned().map(Ok)));
    let after = absorbed.first().map_or(sealed.after, |oldest| oldest.after);
    let mut is_damaged = false;
    let written = directory.write(|mut writer| {
        loop {
            let key = |input: &&mut MergeInput<'_>| input.next.as_ref().map(|(key, _)| key.clone());
            let Some(lowest) = inputs.iter_mut().filter(|input| input.next.is_some()).min_by_key(key) else { break };
            let segment = lowest.segment;
            let advanced = lowest.advance().map_err(|error| {
                // a segment with a known damage is not absorbed again
                segment.inspect(|segment| segment.record_damage(&error));
                is_damaged = true;
                io::Error::other(error.to_string())
            });
            let Some((key, version)) = advanced? else { continue };
            writer.push(key, version)?;
        }
        writer.finish(after, sealed.last, &pairs)
    });
    written.map_err(|error| if is_damaged { SealError::DamagedSegment } else { SealError::Write(error) })
}

/// Writes the records of a range as one segment below a data directory that no process uses.
/// Returns the length of the segment in bytes. A bench makes a large history with it.
///
/// # Errors
/// The segment cannot be written.
#[cfg(feature = "internals")]
pub fn write_unmerged_segment(data_directory: &std::path::Path, replaced: &crate::model::ReplacedRecords) -> io::Result<u64> {
    let mut range = BufferedRange::new(replaced.after);
    range.add(0, replaced);
    let directory = SegmentDirectory::in_data_directory(data_directory);
    let segment = write_segment(&directory, &[], &range).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(segment.length)
}

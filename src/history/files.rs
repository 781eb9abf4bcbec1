//! The files of the history: `history/<first>-<last>` in the data directory, one segment each.
//!
//! A segment is written under a temporary name, synced and renamed, so a file with a final name is
//! complete. A merged segment replaces others. If a kill comes between the rename and the removal
//! of the others, the next start removes every file whose range is inside another's.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::segment::fence::SegmentFence;
use super::segment::reader::{Segment, SegmentError};
use super::segment::writer::SegmentWriter;
use crate::model::Sequence;

/// Name of the directory in the data directory.
const HISTORY_DIRECTORY: &str = "history";

/// Name of the file that is being written.
const TEMPORARY_FILE: &str = "new";

/// A segment on the disk.
#[derive(Debug)]
pub(super) struct StoredSegment {
    /// Sequence before the range.
    pub(super) after: Sequence,
    /// Last sequence of the range.
    pub(super) last: Sequence,
    /// Length of the file.
    pub(super) length: u64,
    path: PathBuf,
    /// `None` if the fence cannot be read.
    segment: Option<Segment>,
    /// First damage that was noticed, human-readable.
    damage: OnceLock<String>,
}

impl StoredSegment {
    /// Returns the fence, unless it cannot be read.
    pub(super) fn fence(&self) -> Option<&SegmentFence> {
        self.segment.as_ref().map(|segment| &segment.fence)
    }

    /// Returns the damage that was noticed so far.
    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.get().map(String::as_str)
    }

    /// Reads from the segment. `None` if it is damaged; the damage is logged once.
    pub(super) fn read<'a, T>(&'a self, read: impl FnOnce(&'a Segment) -> Result<T, SegmentError>) -> Option<T> {
        match read(self.segment.as_ref()?) {
            Ok(read) => Some(read),
            Err(error) => {
                self.record_damage(&error);
                None
            }
        }
    }

    /// Records a damage, and logs the first one.
    pub(super) fn record_damage(&self, error: &SegmentError) {
        let path = self.path.display();
        if self.damage.set(format!("{path}: {error}")).is_ok() {
            tracing::error!(%path, %error, "cannot use a segment of the history: answers about its period are incomplete");
        }
    }
}

/// The directory with the segments.
#[derive(Debug)]
pub(super) struct SegmentDirectory {
    path: PathBuf,
}

impl SegmentDirectory {
    pub(super) fn in_data_directory(data_directory: &Path) -> Self {
        Self { path: data_directory.join(HISTORY_DIRECTORY) }
    }

    /// Opens all segments, oldest first. Removes what an interrupted write left.
    pub(super) fn open_segments(&self) -> io::Result<Vec<StoredSegment>> {
        let mut ranges = Vec::new();
        for entry in match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            outcome => outcome?,
        } {
            let entry = entry?;
            let name = entry.file_name();
            if name == TEMPORARY_FILE && entry.file_type()?.is_file() {
                fs::remove_file(entry.path())?;
            } else if let Some(range) = name.to_str().and_then(parse_name).filter(|_| entry.file_type().is_ok_and(|kind| kind.is_file())) {
                ranges.push((range, entry.path()));
            }
        }
        // the widest of the ranges with the same start comes first
        ranges.sort_by_key(|((after, last), _)| (*after, std::cmp::Reverse(*last)));
        let mut segments: Vec<StoredSegment> = Vec::new();
        for ((after, last), path) in ranges {
            let segment = open_segment(after, last, path)?;
            // a merged segment that cannot be read does not replace its parts
            let container = segments.iter().rfind(|earlier| earlier.last >= last && earlier.segment.is_some());
            if container.is_some() {
                self.remove(&segment);
            } else {
                segments.push(segment);
            }
        }
        Ok(segments)
    }

    /// Writes a segment and makes it survive a power cut.
    pub(super) fn write(
        &self,
        write: impl FnOnce(SegmentWriter<BufWriter<File>>) -> io::Result<(BufWriter<File>, SegmentFence)>,
    ) -> io::Result<StoredSegment> {
        fs::create_dir_all(&self.path)?;
        let temporary = self.path.join(TEMPORARY_FILE);
        let outcome = self.write_temporary(&temporary, write);
        if outcome.is_err() {
            // a full disk must not keep a part of a segment
            drop(fs::remove_file(&temporary));
        }
        outcome
    }

    fn write_temporary(
        &self,
        temporary: &Path,
        write: impl FnOnce(SegmentWriter<BufWriter<File>>) -> io::Result<(BufWriter<File>, SegmentFence)>,
    ) -> io::Result<StoredSegment> {
        match fs::remove_file(temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) | Ok(()) => {}
        }
        let file = File::options().read(true).write(true).create_new(true).open(temporary)?;
        let (writer, fence) = write(SegmentWriter::new(BufWriter::new(file))?)?;
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        let path = self.path.join(format!("{}-{}", fence.after.next(), fence.last));
        fs::rename(temporary, &path)?;
        File::open(&self.path)?.sync_all()?;
        let segment = Segment::open(file).map_err(|error| io::Error::other(error.to_string()))?;
        let (after, last, length) = (fence.after, fence.last, segment.length);
        Ok(StoredSegment { after, last, length, path, segment: Some(segment), damage: OnceLock::new() })
    }

    /// Removes the file of a segment. Queries that have it open can still read it.
    pub(super) fn remove(&self, segment: &StoredSegment) {
        if let Err(error) = fs::remove_file(&segment.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %segment.path.display(), %error, "cannot remove an old segment of the history");
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

fn open_segment(after: Sequence, last: Sequence, path: PathBuf) -> io::Result<StoredSegment> {
    let file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
        outcome => outcome,
    };
    let length = file.as_ref().ok().and_then(|file| file.metadata().ok()).map_or(0, |metadata| metadata.len());
    let opened = file.map_err(SegmentError::from).and_then(Segment::open);
    let stored = |segment| StoredSegment { after, last, length, path, segment, damage: OnceLock::new() };
    match opened {
        Ok(segment) if (segment.fence.after, segment.fence.last) == (after, last) => Ok(stored(Some(segment))),
        Ok(_) => {
            let stored = stored(None);
            stored.record_damage(&SegmentError::Damaged(crate::pack::DecodeError::Field("range")));
            Ok(stored)
        }
        Err(error) => {
            let stored = stored(None);
            stored.record_damage(&error);
            Ok(stored)
        }
    }
}

/// Returns the range of a file: the sequence before the first one, and the last one.
fn parse_name(name: &str) -> Option<(Sequence, Sequence)> {
    let (first, last) = name.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let is_canonical = format!("{first}-{last}") == name && first > 0 && first <= last;
    is_canonical.then(|| (Sequence(first - 1), Sequence(last)))
}

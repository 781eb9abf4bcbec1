//! The history of a running meshkeep: the buffer, the thread that seals it, and the retention of
//! segments.
//!
//! The log keeps the groups that are not in the history yet. The [`HistoryWriter`] reports which
//! groups it has through a callback, also if it had to drop them: only a drop makes a gap.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::buffered::BufferedRange;
use super::files::{SegmentDirectory, StoredSegment};
use super::sealing::{SealError, SegmentLimits, absorbed_count, write_segment};
use super::segment::times::{Millis, TimeRange};
use super::snapshot::{HistorySnapshot, Source};
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::{ReplacedRecordSink, ReplacedRecords, Sequence};

/// Memory of the buffer above which it is sealed: about 16,000 ipcache entries, which make a
/// segment of 600 KB.
const SEAL_BYTES: usize = 8 << 20;

/// Number of sequences in the buffer above which it is sealed. Creations have sequences and are in
/// the log, but have no records in the buffer.
const SEAL_SEQUENCES: u64 = 65_536;

/// Memory of all records that are not in a segment above which the buffer is dropped, because
/// sealing is too slow or nothing is synced.
const BUFFER_BYTES_MAX: usize = 4 * SEAL_BYTES;

/// Maximum number of groups that wait to be synced. The store syncs 40 times a second.
const UNSYNCED_GROUPS_MAX: usize = 65_536;

/// Age of the buffer's first change after which it is sealed. It bounds the log that a start reads.
/// Also the interval at which old segments are removed when nothing changes.
const SEAL_INTERVAL: Duration = Duration::from_secs(300);

/// Maximum length of a segment, unless [`SEGMENTS_TARGET`] of them are less than the history may
/// have.
const SEGMENT_LENGTH_MIN: u64 = 8 << 20;

/// Number of full-length segments in the largest history. A lookup may read a page of each.
const SEGMENTS_TARGET: u64 = 128;

/// Share of the maximum age that a merged segment may span.
const SPAN_SHARE: u32 = 8;

/// Share of the history that is removed when the mirror has no space on the disk.
const FULL_DISK_SHARE: u64 = 8;

/// Failure after a panic of the writer.
pub(super) const PANIC: &str = "the thread of the history panicked: restart meshkeep";

/// Recently logged failures.
static FAILURES: LogLimiter = LogLimiter::new();

/// Limits of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryOptions {
    /// Maximum age of a change.
    pub age_max: Duration,
    /// Maximum size on the disk, in bytes.
    pub bytes_max: u64,
}

/// State of the history, for `/v1/status` and the metrics.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HistoryStatus {
    /// Size of the segments on the disk, in bytes.
    pub bytes: u64,
    /// Number of segments.
    pub segment_count: usize,
    /// Number of replaced records in segments.
    pub version_count: u64,
    /// Time of the oldest change.
    pub since: Option<SystemTime>,
    /// Number of gaps.
    pub gap_count: usize,
    /// Damaged segments, human-readable.
    pub damaged: Vec<String>,
    /// Last failure to write or to read the directory, human-readable; `None` once writing works.
    pub failure: Option<String>,
    /// How far back the maximum size reaches at the rate of change of the current segments. `None`
    /// if they cover less than an hour.
    pub reach: Option<Duration>,
}

/// Shared state of the history.
struct HistoryShared {
    directory: SegmentDirectory,
    options: HistoryOptions,
    state: Mutex<HistoryState>,
    changed: Condvar,
    /// Reports that the history needs no group of the log up to this one.
    release_groups: Box<dyn Fn(u64) + Send + Sync>,
}

#[derive(Debug, Default)]
struct HistoryState {
    contents: HistorySnapshot,
    /// Groups that may not survive a power cut, each with its last sequence.
    unsynced: VecDeque<(u64, Sequence)>,
    /// Last group that survives a power cut, and its last sequence.
    synced: (u64, Sequence),
    /// Time at which the buffer got its first change.
    since: Option<Instant>,
    seal_requested: bool,
    disk_full: bool,
    stopped: bool,
    /// True after a panic of the writer, or if the directory cannot be read: nothing is added.
    has_failed: bool,
    failure: Option<String>,
}

/// Reader of the history.
#[derive(Debug, Clone)]
pub struct HistoryReader(Arc<HistoryShared>);

/// The thread that writes the history. [`HistoryWriter::run`] needs its own thread.
#[derive(Debug)]
pub struct HistoryWriter(Arc<HistoryShared>);

/// Opens the history in a data directory, with the records that the log still has. `release_groups`
/// is called with the last group of the log that the history does not need; it must not block.
///
/// If the directory cannot be read, the history stays empty and reports the failure.
pub fn history(
    data_directory: &Path,
    options: HistoryOptions,
    release_groups: impl Fn(u64) + Send + Sync + 'static,
) -> (HistoryWriter, HistoryReader) {
    let directory = SegmentDirectory::in_data_directory(data_directory);
    let (segments, failure) = match directory.open_segments() {
        Ok(segments) => (segments, None),
        Err(error) => {
            let path = directory.path().display();
            tracing::error!(%path, %error, "cannot read the history: meshkeep keeps none until it is restarted");
            (Vec::new(), Some(format!("cannot read {path}: {error}")))
        }
    };
    let segments: Vec<_> = segments.into_iter().map(Arc::new).collect();
    let last = segments.iter().map(|segment| segment.last).max().unwrap_or_default();
    let contents = HistorySnapshot { segments, sealing: VecDeque::new(), buffer: BufferedRange::new(last) };
    let state = Mutex::new(HistoryState { contents, has_failed: failure.is_some(), failure, ..HistoryState::default() });
    let shared = Arc::new(HistoryShared { directory, options, state, changed: Condvar::new(), release_groups: Box::new(release_groups) });
    (HistoryWriter(Arc::clone(&shared)), HistoryReader(shared))
}

impl fmt::Debug for HistoryShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HistoryShared").field("directory", &self.directory).field("options", &self.options).finish_non_exhaustive()
    }
}

impl HistoryReader {
    /// Returns the history as it is now. It contains every change that a mirror snapshot has which
    /// was taken before.
    #[must_use]
    pub fn snapshot(&self) -> HistorySnapshot {
        self.0.state().contents.clone()
    }

    /// Returns the last sequence of the history; 0 if it is empty.
    #[must_use]
    pub fn last(&self) -> Sequence {
        self.0.state().contents.last()
    }

    /// Stops the writer after it has sealed what is synced. It merges no segments any more.
    pub fn stop(&self) {
        self.0.state().stopped = true;
        self.0.changed.notify_all();
    }

    /// Returns the state of the history. Reads no files.
    #[must_use]
    pub fn status(&self) -> HistoryStatus {
        let (contents, failure) = {
            let state = self.0.state();
            (state.contents.clone(), state.failure.clone())
        };
        let fences = || contents.segments.iter().filter_map(|segment| segment.fence());
        let bytes = total_length(&contents.segments);
        let times = fences().filter_map(|fence| fence.times).reduce(TimeRange::covering);
        let span = times.map(TimeRange::span).filter(|span| *span >= Duration::from_secs(3600));
        let reach =
            span.and_then(|span| Duration::try_from_secs_f64(span.as_secs_f64() * self.0.options.bytes_max as f64 / bytes as f64).ok());
        HistoryStatus {
            bytes,
            segment_count: contents.segments.len(),
            version_count: fences().map(|fence| fence.row_count).sum(),
            since: contents.sources().find_map(Source::times).map(|range| range.earliest.into()),
            gap_count: contents.gap_count(),
            damaged: contents.segments.iter().filter_map(|segment| segment.damage().map(str::to_owned)).collect(),
            failure,
            reach,
        }
    }
}

impl ReplacedRecordSink for HistoryReader {
    fn add_replaced(&self, group: u64, replaced: &ReplacedRecords) {
        let mut state = self.0.state();
        if state.has_failed {
            state.contents.buffer = BufferedRange::new(replaced.last);
            return;
        }
        if state.contents.buffer.last != replaced.after {
            // a gap, or the beginning of the history
            let before = std::mem::replace(&mut state.contents.buffer, BufferedRange::new(replaced.after));
            if !before.is_empty() {
                state.contents.sealing.push_back(before);
                state.since = None;
            }
        }
        state.contents.buffer.add(group, replaced);
        state.since.get_or_insert_with(Instant::now);
        state.unsynced.push_back((group, replaced.last));
        let sealing_bytes: usize = state.contents.sealing.iter().map(|range| range.byte_count).sum();
        if sealing_bytes + state.contents.buffer.byte_count > BUFFER_BYTES_MAX || state.unsynced.len() > UNSYNCED_GROUPS_MAX {
            state.drop_buffer("the history cannot be written as fast as changes arrive");
        }
    }

    fn confirm_synced(&self, group: u64) {
        let mut state = self.0.state();
        while let Some((synced, last)) = state.unsynced.front().copied().filter(|(unsynced, _)| *unsynced <= group) {
            state.unsynced.pop_front();
            state.synced = (synced, last);
        }
        state.synced.0 = state.synced.0.max(group);
        let has_all = state.contents.buffer.is_empty() && state.contents.sealing.is_empty();
        if state.is_seal_due() {
            self.0.changed.notify_all();
        }
        drop(state);
        if has_all {
            (self.0.release_groups)(group);
        }
    }

    fn request_seal(&self) {
        let mut state = self.0.state();
        if !state.contents.buffer.is_empty() {
            state.seal_requested = true;
            self.0.changed.notify_all();
        }
    }

    fn report_full_disk(&self) {
        self.0.state().disk_full = true;
        self.0.changed.notify_all();
    }
}

impl HistoryState {
    /// Drops the buffer, which makes a gap.
    fn drop_buffer(&mut self, reason: &str) {
        if let Some(LogPermit { more }) = FAILURES.permit(reason) {
            tracing::error!(reason, more, "dropped changes from the history: answers about this period are incomplete");
        }
        self.contents.buffer = BufferedRange::new(self.contents.buffer.last);
        self.unsynced.clear();
        self.since = None;
    }

    /// Returns whether records must be sealed now. Only synced records can be sealed.
    fn is_seal_due(&self) -> bool {
        if let Some(oldest) = self.contents.sealing.front() {
            return oldest.group <= self.synced.0;
        }
        let buffer = &self.contents.buffer;
        let has_synced = self.synced.1 > buffer.after;
        let is_due = self.stopped
            || self.seal_requested
            || buffer.byte_count > SEAL_BYTES
            || buffer.last.0 - buffer.after.0 > SEAL_SEQUENCES
            || self.since.is_some_and(|since| since.elapsed() >= SEAL_INTERVAL);
        has_synced && is_due
    }
}

/// Next work of the writer.
enum WriterTask {
    Seal(BufferedRange),
    FreeSpace,
    RemoveOldSegments,
}

impl HistoryWriter {
    /// Seals and removes segments until [`HistoryReader::stop`] is called.
    pub fn run(self) {
        self.0.remove_old_segments();
        while let Some(task) = self.0.next_task() {
            self.0.run_task(task);
        }
    }
}

#[cfg(test)]
impl HistoryWriter {
    /// Does the work that is due, without waiting.
    pub fn run_due_tasks(&self) {
        loop {
            let task = self.0.due_task(&mut self.0.state());
            let Some(task) = task else { return };
            self.0.run_task(task);
        }
    }
}

impl Drop for HistoryWriter {
    /// After a panic, the mirror must not wait for the history.
    fn drop(&mut self) {
        if thread::panicking() {
            let mut state = self.0.state();
            state.drop_buffer(PANIC);
            (state.has_failed, state.failure) = (true, Some(PANIC.to_owned()));
            state.contents.sealing.clear();
            drop(state);
            (self.0.release_groups)(u64::MAX);
        }
    }
}

impl HistoryShared {
    fn state(&self) -> MutexGuard<'_, HistoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns work that is due.
    fn due_task(&self, state: &mut HistoryState) -> Option<WriterTask> {
        if std::mem::take(&mut state.disk_full) {
            return Some(WriterTask::FreeSpace);
        }
        if !state.is_seal_due() {
            return None;
        }
        if state.contents.sealing.is_empty() {
            let (group, last) = state.synced;
            let sealed = state.contents.buffer.take_up_to(group, last);
            state.since = (!state.contents.buffer.is_empty()).then(Instant::now);
            state.seal_requested = false;
            state.contents.sealing.push_back(sealed);
        }
        state.contents.sealing.front().cloned().map(WriterTask::Seal)
    }

    fn run_task(&self, task: WriterTask) {
        match task {
            WriterTask::Seal(sealed) => self.seal(&sealed),
            WriterTask::FreeSpace => self.free_space(),
            WriterTask::RemoveOldSegments => {}
        }
        self.remove_old_segments();
    }

    /// Waits for work. Returns `None` when the history has stopped.
    fn next_task(&self) -> Option<WriterTask> {
        let mut state = self.state();
        loop {
            if let Some(task) = self.due_task(&mut state) {
                return Some(task);
            }
            if state.stopped {
                return None;
            }
            let left = state.since.map(|since| SEAL_INTERVAL.saturating_sub(since.elapsed()));
            // records that are due but not synced are announced by confirm_synced
            let left = left.filter(|left| !left.is_zero()).unwrap_or(SEAL_INTERVAL);
            let (guard, outcome) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if outcome.timed_out() {
                return Some(self.due_task(&mut state).unwrap_or(WriterTask::RemoveOldSegments));
            }
        }
    }

    /// Writes sealed records to a segment. If that fails, they are lost.
    fn seal(&self, sealed: &BufferedRange) {
        let outcome = self.write(sealed);
        let mut state = self.state();
        state.contents.sealing.pop_front();
        state.failure = outcome.as_ref().err().map(ToString::to_string);
        if let Err(error) = &outcome
            && let Some(LogPermit { more }) = FAILURES.permit(&error.to_string())
        {
            tracing::error!(directory = %self.directory.path().display(), %error, more, "cannot write a segment of the history: answers about its period are incomplete");
        }
        let absorbed = match outcome {
            Ok((segment, absorbed)) => {
                let kept = state.contents.segments.len() - absorbed.len();
                state.contents.segments.truncate(kept);
                state.contents.segments.push(Arc::new(segment));
                absorbed
            }
            Err(_) => Vec::new(),
        };
        drop(state);
        absorbed.iter().for_each(|segment| self.directory.remove(segment));
        (self.release_groups)(sealed.group);
    }

    /// Writes a segment. On a full disk, removes the oldest segments until there is space. Returns
    /// the segment and those that it absorbed.
    fn write(&self, sealed: &BufferedRange) -> io::Result<(StoredSegment, Vec<Arc<StoredSegment>>)> {
        loop {
            let (segments, is_stopped) = {
                let state = self.state();
                (state.contents.segments.clone(), state.stopped)
            };
            // the next start merges: a shutdown has no time for it
            let count = if is_stopped { 0 } else { absorbed_count(&segments, sealed, self.limits()) };
            let absorbed = segments[segments.len() - count..].to_vec();
            match write_segment(&self.directory, &absorbed, sealed) {
                Ok(segment) => return Ok((segment, absorbed)),
                // its damage is recorded now, so it is not absorbed again
                Err(SealError::DamagedSegment) => {}
                Err(SealError::Write(error)) if is_full(&error) && !segments.is_empty() => self.free_space(),
                Err(SealError::Write(error)) => return Err(error),
            }
        }
    }

    fn limits(&self) -> SegmentLimits {
        SegmentLimits {
            length_max: (self.options.bytes_max / SEGMENTS_TARGET).max(SEGMENT_LENGTH_MIN),
            span_max: self.options.age_max / SPAN_SHARE,
        }
    }

    /// Removes the oldest segments, an eighth of the history but at least one.
    fn free_space(&self) {
        let bytes = self.remove_oldest_segments(|segments| {
            let share = total_length(segments) / FULL_DISK_SHARE;
            (1..=segments.len()).take_while(|count| *count == 1 || total_length(&segments[..*count]) <= share).count()
        });
        if bytes > 0
            && let Some(LogPermit { more }) = FAILURES.permit("full")
        {
            tracing::warn!(bytes, more, "the disk is full: removed the oldest part of the history");
        }
    }

    /// Removes the oldest segments until the first is neither too old nor exceeds the maximum size.
    fn remove_old_segments(&self) {
        let oldest = SystemTime::now().checked_sub(self.options.age_max).map(Millis::from);
        self.remove_oldest_segments(|segments| {
            let is_removed = |start: &usize| {
                // a segment whose times are not known is older than the next one
                let latest = segments[*start..].iter().find_map(|segment| Some(segment.fence()?.times?.latest));
                let is_old = oldest.zip(latest).is_some_and(|(oldest, latest)| latest < oldest);
                is_old || total_length(&segments[*start..]) > self.options.bytes_max
            };
            (0..segments.len()).take_while(is_removed).count()
        });
    }

    /// Removes the oldest segments, as many as `count` returns. Returns their length in bytes.
    fn remove_oldest_segments(&self, count: impl FnOnce(&[Arc<StoredSegment>]) -> usize) -> u64 {
        let removed: Vec<Arc<StoredSegment>> = {
            let segments = &mut self.state().contents.segments;
            let count = count(segments);
            segments.drain(..count).collect()
        };
        removed.iter().for_each(|segment| self.directory.remove(segment));
        total_length(&removed)
    }
}

/// Returns the length of some segments in bytes.
fn total_length(segments: &[Arc<StoredSegment>]) -> u64 {
    segments.iter().map(|segment| segment.length).sum()
}

/// Returns whether an error means that the disk or the quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

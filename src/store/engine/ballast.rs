//! Ballast: values that keep sled's log more than half full, so that sled does not rewrite it
//! forever.
//!
//! While half of all segments of its log are free, sled empties the last used segment for each
//! segment that was filled, in order to shrink the file (0.34.7, `pagecache/segment.rs`,
//! `deactivate_segment`). The values that it moves fill another segment. With values as large as
//! ours this never ends, and the file hardly shrinks, because the lowest segments are emptied
//! first. The same happens after opening: the first flush counts the used segments one by one, and
//! compares each intermediate count with the number of all free segments. With a million keys, sled
//! wrote 43 bytes for each changed byte, as long as the process ran.
//!
//! Ballast is stored in trees that are not slots. It uses only free space: up to a megabyte is
//! added per flush, and after the file has grown, nothing is added for a while. At a high write
//! rate only the ballast that opening needs is kept: sled then empties segments anyway, and more
//! ballast would only make the file grow.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use super::slots::{Slot, VALUE_BYTES_MAX};
use super::{SEGMENT_BYTES, VALUE_KEY, call_sled, open_primed_tree};
use crate::store::error::EngineError;

/// Tree with the number of ballast values, 8 bytes little-endian.
const COUNT_TREE: &str = "ballast";

/// Prefix of the names of the ballast trees, which are numbered from 0. The trees with numbers
/// below the count in [`COUNT_TREE`] have a value.
const PREFIX: &str = "ballast-";

/// sled empties no segment while at most this many are used, whatever their share (`inactive_segs >
/// 5`, plus the current one). So this many free segments need no ballast, even during the first
/// flush after opening, which counts the used segments one by one.
const SEGMENTS_NEVER_EMPTIED: u64 = 6;

/// Number of segments by which the used ones should exceed half of all. The margin is needed
/// because sled's own pages and concurrent writes shift the limit.
const SPARE_SEGMENTS: u64 = 8;

/// Maximum number of values that are added or removed per flush.
const VALUES_PER_FLUSH_MAX: usize = 8;

/// Number of flushes without new values after the file has grown: half a second or more.
const PAUSE_FLUSHES: usize = 20;

/// Number of values by which the ballast may exceed the wanted number before values are removed: 8
/// MB. Between two rounds of folds the stored size changes by less.
const SURPLUS_VALUES_MAX: usize = 64;

/// Time over which the write rate is measured.
const RATE_WINDOW: Duration = Duration::from_secs(10);

/// Bytes per [`RATE_WINDOW`] above which the write rate is high. 1,000 changes per second write 12
/// MB, 20,000 write 200 MB. The exact limit between the two hardly matters.
const LOW_RATE_BYTES_MAX: u64 = 50_000_000;

/// Time for which the additional ballast is kept after opening. By then sled has emptied the
/// segments that it began to empty. With a million keys this took 12 s in a build without
/// optimization.
const OPENING_TIME: Duration = Duration::from_secs(60);

/// Length of the head of a used segment: a checksum and a sequence number, never all zero. sled
/// fills free segments with zeros when it opens.
const HEAD_LENGTH: usize = 16;

/// The ballast of an open engine.
#[derive(Debug)]
pub(super) struct Ballast {
    /// Current number of values.
    count: usize,
    /// Number of values when the engine was opened.
    initial_count: usize,
    /// Number of additional values that opening needs, and the time until which it needs them.
    opening_surplus: (usize, Instant),
    /// True until a high write rate was measured.
    is_rate_low: bool,
    /// Start of the measurement, and the bytes written before it.
    window: (Instant, u64),
    /// Length of the file at the last flush.
    file_bytes: u64,
    /// Number of flushes until values may be added.
    pause_flushes: usize,
}

impl Ballast {
    /// Reads the ballast that earlier processes wrote. Call it before the first write.
    pub(super) fn load(db: &sled::Db, file: &File, now: Instant) -> Result<Self, EngineError> {
        let stored_bytes = call_sled(|| db.open_tree(COUNT_TREE)?.get(VALUE_KEY))?;
        let stored_count = stored_bytes.and_then(|bytes| Some(u64::from_le_bytes(bytes.as_ref().try_into().ok()?)));
        let count = stored_count.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX));
        // sled empties one segment for each free one
        let opening_count = values_in_segments(free_segment_count(file)?.saturating_sub(SEGMENTS_NEVER_EMPTIED));
        let file_bytes = file.metadata()?.len();
        Ok(Self {
            count,
            initial_count: count,
            opening_surplus: (opening_count, now + OPENING_TIME),
            is_rate_low: true,
            window: (now, 0),
            file_bytes,
            pause_flushes: 0,
        })
    }

    /// Adds or removes values. Call it before each flush.
    pub(super) fn adjust(&mut self, db: &sled::Db, file: &File, lengths: &SlotLengths, now: Instant) -> Result<(), EngineError> {
        if now >= self.window.0 + RATE_WINDOW {
            self.is_rate_low = lengths.written_bytes - self.window.1 <= LOW_RATE_BYTES_MAX;
            self.window = (now, lengths.written_bytes);
        }
        let file_bytes = file.metadata()?.len();
        let opening_count = Some(self.opening_surplus.0).filter(|count| *count > 0 && now < self.opening_surplus.1);
        let wanted = match self.is_rate_low {
            true => wanted_values(file_bytes, lengths.live_bytes()).max(opening_count.map_or(0, |count| self.initial_count + count)),
            false => opening_count.unwrap_or(0),
        };
        self.pause_flushes = if file_bytes > self.file_bytes { PAUSE_FLUSHES } else { self.pause_flushes.saturating_sub(1) };
        self.file_bytes = file_bytes;
        let before = self.count;
        for _ in 0..VALUES_PER_FLUSH_MAX {
            if self.count < wanted {
                if self.pause_flushes > 0 {
                    break;
                }
                call_sled(|| db.open_tree(tree_name(self.count))?.insert(VALUE_KEY, vec![0; VALUE_BYTES_MAX]))?;
                self.count += 1;
            } else if self.count > wanted + SURPLUS_VALUES_MAX {
                // the tree is kept: sled rewrites the names of all trees when one is added or
                // removed (docs/develop/measurements.md §1.3, trap 5)
                call_sled(|| open_primed_tree(db, &tree_name(self.count - 1))?.remove(VALUE_KEY))?;
                self.count -= 1;
            }
        }
        if self.count != before {
            let count = (self.count as u64).to_le_bytes();
            call_sled(|| db.open_tree(COUNT_TREE)?.insert(VALUE_KEY, &count))?;
        }
        Ok(())
    }
}

/// Lengths of the values in slots.
#[derive(Debug, Default)]
pub(super) struct SlotLengths {
    /// Length of the value of each slot that was read or written.
    by_slot: HashMap<Slot, u64>,
    /// Total length of all values written so far.
    written_bytes: u64,
}

impl SlotLengths {
    pub(super) fn record_read(&mut self, slot: Slot, length: usize) {
        self.by_slot.insert(slot, length as u64);
    }

    pub(super) fn record_write(&mut self, slot: Slot, length: usize) {
        self.record_read(slot, length);
        self.written_bytes += length as u64;
    }

    fn live_bytes(&self) -> u64 {
        self.by_slot.values().sum()
    }
}

/// Returns whether a tree contains ballast.
pub(super) fn is_ballast(tree_name: &[u8]) -> bool {
    tree_name == COUNT_TREE.as_bytes() || tree_number(tree_name).is_some()
}

fn tree_name(number: usize) -> String {
    format!("{PREFIX}{number}")
}

fn tree_number(tree_name: &[u8]) -> Option<usize> {
    std::str::from_utf8(tree_name).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// Returns the number of values that fill this many segments.
fn values_in_segments(segments: u64) -> usize {
    usize::try_from(segments * SEGMENT_BYTES as u64 / VALUE_BYTES_MAX as u64).unwrap_or(usize::MAX)
}

/// Returns the number of values with which more than half of the file is used.
fn wanted_values(file_bytes: u64, live_bytes: u64) -> usize {
    let total = file_bytes / SEGMENT_BYTES as u64;
    if total <= 2 * SEGMENTS_NEVER_EMPTIED {
        return 0;
    }
    values_in_segments((total / 2 + SPARE_SEGMENTS).saturating_sub(live_bytes / SEGMENT_BYTES as u64))
}

fn free_segment_count(file: &File) -> io::Result<u64> {
    let (mut head, mut free) = ([0; HEAD_LENGTH], 0);
    for index in 0..file.metadata()?.len() / SEGMENT_BYTES as u64 {
        file.read_exact_at(&mut head, index * SEGMENT_BYTES as u64)?;
        free += u64::from(head == [0; HEAD_LENGTH]);
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use super::super::slots::{SlotKind, SlotStorage};
    use super::*;

    fn slot(number: u32) -> Slot {
        Slot { kind: SlotKind::Chunk, number }
    }

    fn value(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(VALUE_BYTES_MAX / 4)
    }

    /// Writes 32 MB and deletes three quarters of it, so that dozens of segments are free.
    fn create_engine_with_free_segments(directory: &std::path::Path) {
        let engine = Engine::open(directory).unwrap();
        for number in 0..256 {
            engine.put(slot(number), &value(number)).unwrap();
            engine.db().flush().unwrap();
        }
        for number in (0..256).filter(|number| number % 64 > 15) {
            engine.delete(slot(number)).unwrap();
        }
        engine.db().flush().unwrap();
    }

    /// Flushes until the number of values no longer changes.
    fn adjust_until_stable(ballast: &mut Ballast, engine: &Engine, lengths: &SlotLengths, now: Instant) -> usize {
        let mut counts = vec![ballast.count];
        while counts.len() <= 2 * PAUSE_FLUSHES || counts[counts.len() - 1 - 2 * PAUSE_FLUSHES] != ballast.count {
            ballast.adjust(engine.db(), &engine.file, lengths, now).unwrap();
            engine.db().flush().unwrap();
            counts.push(ballast.count);
        }
        assert!(counts.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= VALUES_PER_FLUSH_MAX), "{counts:?}");
        ballast.count
    }

    #[test]
    fn ballast_keeps_more_than_half_of_the_segments_used() {
        let directory = tempfile::tempdir().unwrap();
        create_engine_with_free_segments(directory.path());
        let lengths_of = |count| {
            let mut lengths = SlotLengths::default();
            (0..count).for_each(|number| lengths.record_read(slot(number), VALUE_BYTES_MAX));
            lengths
        };
        let (full_lengths, mut lengths) = (lengths_of(512), lengths_of(64));
        let engine = Engine::open(directory.path()).unwrap();
        let free = free_segment_count(&engine.file).unwrap();
        assert!(free > 20, "{free}");
        let wanted = || wanted_values(engine.file.metadata().unwrap().len(), lengths.live_bytes());
        let now = Instant::now();
        let mut ballast = Ballast::load(engine.db(), &engine.file, now).unwrap();
        let early = adjust_until_stable(&mut ballast, &engine, &full_lengths, now);
        assert_eq!(early, values_in_segments(free - SEGMENTS_NEVER_EMPTIED), "opening needs ballast even if the slots use the whole file");
        let later = adjust_until_stable(&mut ballast, &engine, &lengths, now + OPENING_TIME);
        assert!((wanted()..=wanted() + SURPLUS_VALUES_MAX).contains(&later), "{later} of {early}, {} wanted", wanted());
        drop(engine);

        let engine = Engine::open(directory.path()).unwrap();
        let mut ballast = Ballast::load(engine.db(), &engine.file, now).unwrap();
        assert_eq!(ballast.count, later, "the ballast is kept when the engine is closed");
        lengths.written_bytes += LOW_RATE_BYTES_MAX + 1;
        let busy = adjust_until_stable(&mut ballast, &engine, &lengths, now + OPENING_TIME);
        assert_eq!(busy, SURPLUS_VALUES_MAX.min(later), "no ballast is wanted at a high write rate");
        assert!(engine.list_slots().unwrap().iter().all(|slot| slot.kind == SlotKind::Chunk));
        for number in (0..256).filter(|number| number % 64 <= 15) {
            assert_eq!(engine.get(slot(number)).unwrap(), Some(value(number)));
        }
    }

    #[test]
    fn small_and_full_files_need_no_ballast() {
        const MB: u64 = 1 << 20;
        let values = |file_megabytes, live_megabytes| wanted_values(file_megabytes * MB, live_megabytes * MB);
        assert_eq!([values(0, 0), values(6, 1), values(64, 40), values(64, 30), values(188, 40)], [0, 0, 0, 48, 467]);
    }
}

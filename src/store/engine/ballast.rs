//! Keeps sled from writing everything anew for ever.
//!
//! sled empties the last used segment of its log whenever it thinks that half of all are free, so that its file shrinks (0.34.7,
//! `pagecache/segment.rs`, `deactivate_segment`): one for each segment that was filled. What is written to empty it fills another, so it never
//! comes to an end with values as large as ours, and the file hardly shrinks, for the lowest segments are emptied first. It even begins so: the
//! first flush after it opens takes the used segments into account one by one, against all that are free. With a million keys that was 43 bytes
//! for each byte of change, for as long as the process lived.
//!
//! *Ballast* ends it: values without meaning, in trees that are no slots, so many that less than half is free. It takes room that is free, a
//! megabyte with each flush; where the file grows instead, it waits until sled has made some. While very much is written it goes, but for what
//! an open needs: sled is busy emptying then anyway, and the file would grow.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use super::slots::{Slot, VALUE_BYTES_MAX};
use super::{SEGMENT_BYTES, VALUE_KEY, guarded, primed};
use crate::store::error::EngineError;

/// The tree that says how many values there are: 8 bytes, little-endian. Only what lies below that number counts.
const COUNT_TREE: &str = "ballast";

/// The beginning of the names of its trees. They are numbered from 0 on; those below some number have a value.
const PREFIX: &str = "ballast-";

/// sled never empties a segment while so few are in use, whatever their share (`inactive_segs > 5`, and the one in question). So with as many
/// free ones they are never half, from the first that the flush after an open takes into account.
const ALONE_COUNT: u64 = 6;

/// More than half of the segments are in use by so many, as sled's own pages and the writes of the moment move the middle.
const SPARE_COUNT: u64 = 8;

/// How many values come or go with a flush.
const STEP_COUNT: usize = 8;

/// How many flushes pass without any after the file grew: half a second or more.
const PAUSE_COUNT: usize = 20;

/// Values go when there are so many more than needed: 8 MB. What is stored grows and shrinks by less from one round of folds to the next.
const SURPLUS_COUNT: usize = 64;

/// How long it is counted what is written, until it shows whether that is much.
const COUNTED: Duration = Duration::from_secs(10);

/// The bytes within [`COUNTED`] above which very much is written: 1,000 changes/s are 12 MB, 20,000 are 200 MB. Between the two it hardly matters.
const CALM_BYTES_MAX: u64 = 50_000_000;

/// How long what an open needs is there, so that sled can empty what it has begun to. With a million keys it was done after 12 s, in a build
/// without optimization.
const EARLY: Duration = Duration::from_secs(60);

/// The bytes at the beginning of a segment that is in use: a checksum and a sequence number, never all zero. sled fills free ones with zeros as
/// it opens.
const HEAD_LENGTH: usize = 16;

/// The ballast of an open engine.
#[derive(Debug)]
pub(super) struct Ballast {
    /// How many values there are.
    count: usize,
    /// How many there were to begin with.
    left: usize,
    /// How many more an open needs, and until when.
    early: (usize, Instant),
    /// Whether not very much is written, as far as one can tell.
    calm: bool,
    /// Since when it is counted what is written, and how much that was before.
    counted: (Instant, u64),
    /// How long the file was at the last flush.
    file_bytes: u64,
    /// How many flushes are yet to pass until more values come.
    pause_count: usize,
}

impl Ballast {
    /// What earlier processes left, looked at before anything is written.
    pub(super) fn found(map: &sled::Db, log: &File, now: Instant) -> Result<Self, EngineError> {
        let noted = guarded(|| map.open_tree(COUNT_TREE)?.get(VALUE_KEY))?;
        let noted = noted.and_then(|bytes| Some(u64::from_le_bytes(bytes.as_ref().try_into().ok()?)));
        let count = noted.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX));
        // each of them is emptied, too, until the free segments are used up
        let early = values_in(free_segment_count(log)?.saturating_sub(ALONE_COUNT));
        let file_bytes = log.metadata()?.len();
        Ok(Self { count, left: count, early: (early, now + EARLY), calm: true, counted: (now, 0), file_bytes, pause_count: 0 })
    }

    /// To be called before each flush.
    pub(super) fn tend(&mut self, map: &sled::Db, log: &File, lengths: &Lengths, now: Instant) -> Result<(), EngineError> {
        if now >= self.counted.0 + COUNTED {
            self.calm = lengths.written - self.counted.1 <= CALM_BYTES_MAX;
            self.counted = (now, lengths.written);
        }
        let file_bytes = log.metadata()?.len();
        let early = Some(self.early.0).filter(|early| *early > 0 && now < self.early.1);
        let wanted = match self.calm {
            true => values_for(file_bytes, lengths.live()).max(early.map_or(0, |early| self.left + early)),
            false => early.unwrap_or(0),
        };
        self.pause_count = if file_bytes > self.file_bytes { PAUSE_COUNT } else { self.pause_count.saturating_sub(1) };
        self.file_bytes = file_bytes;
        let before = self.count;
        for _ in 0..STEP_COUNT {
            if self.count < wanted {
                if self.pause_count > 0 {
                    break;
                }
                guarded(|| map.open_tree(name_of(self.count))?.insert(VALUE_KEY, vec![0; VALUE_BYTES_MAX]))?;
                self.count += 1;
            } else if self.count > wanted + SURPLUS_COUNT {
                // the tree stays: the names of all are rewritten with each that comes or goes (docs/develop/measurements.md §1.3, trap 5)
                guarded(|| primed(map, &name_of(self.count - 1))?.remove(VALUE_KEY))?;
                self.count -= 1;
            }
        }
        if self.count != before {
            let count = (self.count as u64).to_le_bytes();
            guarded(|| map.open_tree(COUNT_TREE)?.insert(VALUE_KEY, &count))?;
        }
        Ok(())
    }
}

/// How long the values of slots are.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    /// Of each slot that was read or written.
    by_slot: HashMap<Slot, u64>,
    /// Of all that were written so far, together.
    written: u64,
}

impl Lengths {
    pub(super) fn read(&mut self, slot: Slot, length: usize) {
        self.by_slot.insert(slot, length as u64);
    }

    pub(super) fn write(&mut self, slot: Slot, length: usize) {
        self.read(slot, length);
        self.written += length as u64;
    }

    fn live(&self) -> u64 {
        self.by_slot.values().sum()
    }
}

/// Whether a tree is of ballast.
pub(super) fn is_ballast(tree_name: &[u8]) -> bool {
    tree_name == COUNT_TREE.as_bytes() || number_of(tree_name).is_some()
}

fn name_of(number: usize) -> String {
    format!("{PREFIX}{number}")
}

fn number_of(tree_name: &[u8]) -> Option<usize> {
    std::str::from_utf8(tree_name).ok()?.strip_prefix(PREFIX)?.parse().ok()
}

/// How many values fill so many segments.
fn values_in(segments: u64) -> usize {
    usize::try_from(segments * SEGMENT_BYTES as u64 / VALUE_BYTES_MAX as u64).unwrap_or(usize::MAX)
}

/// How many values, beside what is stored, take half of a file and some more.
fn values_for(file_bytes: u64, live_bytes: u64) -> usize {
    let total = file_bytes / SEGMENT_BYTES as u64;
    if total <= 2 * ALONE_COUNT {
        return 0;
    }
    values_in((total / 2 + SPARE_COUNT).saturating_sub(live_bytes / SEGMENT_BYTES as u64))
}

fn free_segment_count(log: &File) -> io::Result<u64> {
    let (mut head, mut free) = ([0; HEAD_LENGTH], 0);
    for index in 0..log.metadata()?.len() / SEGMENT_BYTES as u64 {
        log.read_exact_at(&mut head, index * SEGMENT_BYTES as u64)?;
        free += u64::from(head == [0; HEAD_LENGTH]);
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use super::super::slots::{SlotKind, Slots};
    use super::*;

    fn slot(number: u32) -> Slot {
        Slot { kind: SlotKind::Chunk, number }
    }

    fn value(number: u32) -> Vec<u8> {
        number.to_le_bytes().repeat(VALUE_BYTES_MAX / 4)
    }

    /// 32 MB, of which three quarters are deleted again, so that dozens of segments are free.
    fn with_free_segments(directory: &std::path::Path) {
        let engine = Engine::open(directory).unwrap();
        for number in 0..256 {
            engine.put(slot(number), &value(number)).unwrap();
            engine.map().flush().unwrap();
        }
        for number in (0..256).filter(|number| number % 64 > 15) {
            engine.delete(slot(number)).unwrap();
        }
        engine.map().flush().unwrap();
    }

    /// Flushes until nothing comes or goes any more.
    fn settle(ballast: &mut Ballast, engine: &Engine, lengths: &Lengths, now: Instant) -> usize {
        let mut counts = vec![ballast.count];
        while counts.len() <= 2 * PAUSE_COUNT || counts[counts.len() - 1 - 2 * PAUSE_COUNT] != ballast.count {
            ballast.tend(engine.map(), &engine.log, lengths, now).unwrap();
            engine.map().flush().unwrap();
            counts.push(ballast.count);
        }
        assert!(counts.windows(2).all(|pair| pair[0].abs_diff(pair[1]) <= STEP_COUNT), "{counts:?}");
        ballast.count
    }

    #[test]
    fn more_than_half_of_the_segments_are_in_use_and_no_slot_changes() {
        let directory = tempfile::tempdir().unwrap();
        with_free_segments(directory.path());
        let of_slots = |count| {
            let mut lengths = Lengths::default();
            (0..count).for_each(|number| lengths.read(slot(number), VALUE_BYTES_MAX));
            lengths
        };
        let (full, mut lengths) = (of_slots(512), of_slots(64));
        let engine = Engine::open(directory.path()).unwrap();
        let free = free_segment_count(&engine.log).unwrap();
        assert!(free > 20, "{free}");
        let wanted = || values_for(engine.log.metadata().unwrap().len(), lengths.live());
        let now = Instant::now();
        let mut ballast = Ballast::found(engine.map(), &engine.log, now).unwrap();
        let early = settle(&mut ballast, &engine, &full, now);
        assert_eq!(early, values_in(free - ALONE_COUNT), "what an open needs, though all of the file were in use");
        let later = settle(&mut ballast, &engine, &lengths, now + EARLY);
        assert!((wanted()..=wanted() + SURPLUS_COUNT).contains(&later), "{later} of {early}, {} wanted", wanted());
        drop(engine);

        let engine = Engine::open(directory.path()).unwrap();
        let mut ballast = Ballast::found(engine.map(), &engine.log, now).unwrap();
        assert_eq!(ballast.count, later, "it outlives a process");
        lengths.written += CALM_BYTES_MAX + 1;
        let busy = settle(&mut ballast, &engine, &lengths, now + EARLY);
        assert_eq!(busy, SURPLUS_COUNT.min(later), "none is wanted while much is written");
        assert!(engine.slots().unwrap().iter().all(|slot| slot.kind == SlotKind::Chunk));
        for number in (0..256).filter(|number| number % 64 <= 15) {
            assert_eq!(engine.get(slot(number)).unwrap(), Some(value(number)));
        }
    }

    #[test]
    fn small_files_and_full_ones_need_none() {
        const MB: u64 = 1 << 20;
        let values = |file_megabytes, live_megabytes| values_for(file_megabytes * MB, live_megabytes * MB);
        assert_eq!([values(0, 0), values(6, 1), values(64, 40), values(64, 30), values(188, 40)], [0, 0, 0, 48, 467]);
    }
}

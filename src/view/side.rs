//! The deltas of chunks: for each chunk a log of rows that were replaced or deleted since it was built (`change_log`), and the listings,
//! revisions and leases of other rows (`stamps`).
//!
//! A change adds to what all versions of the mirror share. What each version has of its own is a few numbers for each chunk, copied
//! page by page where they change.

use std::borrow::Borrow;
use std::sync::Arc;

use super::change_log::{Change, ChangeLog, bit};
use super::decoding::kept;
use super::shelf::Shelf;
use super::stamps::{Settled, Stamps};
use crate::model::{Record, Sequence, SourceStamp};
use crate::pack::Chunk;

/// What a row is now.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    /// As it was packed.
    Packed,
    /// A record stands for it.
    Replaced(&'a Arc<Record>),
    /// Its key is gone.
    Gone,
}

/// What a row was before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// As it was packed.
    Packed,
    /// A record stood for it.
    Replaced,
    /// Its key was gone.
    Gone,
}

/// The part of a chunk's log that belongs to one version of the mirror, and counts over it.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    /// The bits of the rows that are in the log. Most rows are not, and need not be looked for there.
    touched: u64,
    /// How many changes of the log are this version's.
    length: u16,
    /// How many rows are not as they were packed, and for how many of these a record stands.
    shadowed: u16,
    replaced: u16,
    /// How many new keys between the chunk's first and the next chunk's first came since; the highest number stands for more, too.
    inserted: u16,
}

/// The deltas of all chunks, by number. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub(super) struct Sides {
    tallies: Shelf<Tally>,
    logs: Shelf<Option<Arc<ChangeLog>>>,
    stamps: Shelf<Option<Arc<Stamps>>>,
    /// How many records stand for rows.
    replacement_count: usize,
    /// How many rows are gone.
    gone_count: usize,
    /// How many rows have a revision and lease beside their chunk.
    stamped_count: usize,
}

/// The delta of one chunk, as one version of the mirror has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Side<'a> {
    tally: Tally,
    log: Option<&'a ChangeLog>,
    stamps: Option<&'a Stamps>,
}

/// The last change of each row of a chunk that has one, in order of row.
#[derive(Debug)]
pub(super) struct Changes<C>(Vec<(u16, C)>);

/// A chunk that was taken out, with its delta.
#[derive(Debug)]
pub(super) struct Removed {
    pub(super) chunk: Chunk,
    pub(super) changes: Changes<Change>,
    stamps: Option<Arc<Stamps>>,
}

impl<'a> From<Option<&'a Change>> for Row<'a> {
    fn from(change: Option<&'a Change>) -> Self {
        match change {
            None => Self::Packed,
            Some(None) => Self::Gone,
            Some(Some(record)) => Self::Replaced(record),
        }
    }
}

/// The number of a row in a log: a chunk has 4,096 at most.
fn number(row: usize) -> u16 {
    u16::try_from(row).unwrap_or(u16::MAX)
}

impl<C: Borrow<Change>> Changes<C> {
    /// What a row is now.
    pub(super) fn at(&self, row: usize) -> Row<'_> {
        if self.0.is_empty() {
            return Row::Packed;
        }
        let found = self.0.binary_search_by_key(&number(row), |(row, _)| *row);
        found.ok().map(|at| self.0[at].1.borrow()).into()
    }

    /// Every row that is not as it was packed, in order.
    pub(super) fn rows(&self) -> impl Iterator<Item = (usize, Row<'_>)> {
        self.0.iter().map(|(row, change)| (usize::from(*row), Some(change.borrow()).into()))
    }

    /// Every record that stands for a row, by row.
    pub(super) fn replacements(&self) -> impl Iterator<Item = (usize, &Arc<Record>)> {
        self.0.iter().filter_map(|(row, change)| Some((usize::from(*row), change.borrow().as_ref()?)))
    }
}

impl Removed {
    /// The generation and source of a row that is as it was packed.
    pub(super) fn settled(&self, row: usize) -> (u64, SourceStamp) {
        let stamps = self.stamps.as_deref();
        let source = stamps.and_then(|stamps| stamps.source(row)).unwrap_or_else(|| self.chunk.source(row));
        (stamps.map_or(0, |stamps| stamps.generation(row)), source)
    }
}

impl<'a> Side<'a> {
    /// What a row is now.
    pub(super) fn at(self, row: usize) -> Row<'a> {
        let row = number(row);
        if self.tally.touched & bit(row) == 0 {
            return Row::Packed;
        }
        self.log.and_then(|log| log.latest(self.tally.length, row)).into()
    }

    /// The last change of each row that has one.
    pub(super) fn changes(self) -> Changes<&'a Change> {
        Changes(self.log.map(|log| log.by_row(self.tally.length)).unwrap_or_default())
    }

    /// Whether a record that stands for a row may have a sequence between two. False is certain.
    pub(super) fn has_replacements_within(self, above: Sequence, below: Sequence) -> bool {
        self.tally.replaced > 0 && self.log.is_some_and(|log| log.has_within(above, below))
    }

    /// How many rows are gone.
    pub(super) fn gone_count(self) -> usize {
        usize::from(self.tally.shadowed - self.tally.replaced)
    }

    /// Whether nothing is beside the chunk.
    pub(super) fn is_empty(self) -> bool {
        self.tally.shadowed == 0 && self.stamps.is_none()
    }

    /// The last listing that had a row.
    pub(super) fn generation(self, row: usize) -> u64 {
        self.stamps.map_or(0, |stamps| stamps.generation(row))
    }

    /// The revision and lease that equal bytes of a row came with.
    pub(super) fn source(self, row: usize) -> Option<SourceStamp> {
        self.stamps.and_then(|stamps| stamps.source(row))
    }

    /// How much folding the chunk would gain. A stamp takes a twentieth of a record's room.
    pub(super) fn dirt(self) -> usize {
        let stamped = self.stamps.map_or(0, Stamps::source_count);
        usize::from(self.tally.shadowed) + usize::from(self.tally.inserted) + stamped / 20
    }
}

impl Sides {
    /// What is beside the chunk of a number.
    pub(super) fn at(&self, chunk: usize) -> Side<'_> {
        let tally = self.tallies.get(chunk).copied().unwrap_or_default();
        // most chunks have no log: whether they have is known without looking
        let log = if tally.length > 0 { self.logs.shared(chunk) } else { None };
        Side { tally, log, stamps: self.stamps.shared(chunk) }
    }

    /// Notes what is beside a new chunk: of the rows that are as they were packed what the source said, of each other what it became.
    pub(super) fn add(&mut self, number: usize, chunk: &Chunk, rows: &[Settled], changes: Vec<(usize, Change)>) {
        for (row, change) in changes {
            self.put(number, row, change);
        }
        if let Some(stamps) = Stamps::of(chunk, rows) {
            self.stamped_count += stamps.source_count();
            self.stamps.set(number, stamps);
        }
    }

    /// Takes what is beside a chunk away.
    pub(super) fn remove(&mut self, number: usize, chunk: Chunk) -> Removed {
        let Changes(changes) = self.at(number).changes();
        let changes = Changes(changes.into_iter().map(|(row, change)| (row, change.clone())).collect());
        let tally = std::mem::take(self.tallies.change(number));
        self.replacement_count -= usize::from(tally.replaced);
        self.gone_count -= usize::from(tally.shadowed - tally.replaced);
        self.logs.take(number);
        let stamps = self.stamps.take(number);
        self.stamped_count -= stamps.as_deref().map_or(0, Stamps::source_count);
        Removed { chunk, changes, stamps }
    }

    /// Puts a record in place of a row, or takes the row away, whatever became of it before.
    pub(super) fn put(&mut self, chunk: usize, row: usize, change: Change) {
        let before = match self.at(chunk).at(row) {
            Row::Packed => Before::Packed,
            Row::Gone => Before::Gone,
            Row::Replaced(_) => Before::Replaced,
        };
        self.put_over(before, chunk, row, change);
    }

    /// Puts a record in place of a row, or takes the row away; `before` is what the row was.
    pub(super) fn put_over(&mut self, before: Before, chunk: usize, row: usize, change: Change) {
        let (was_shadowed, was_replaced) = (before != Before::Packed, before == Before::Replaced);
        if !was_shadowed && self.stamps.shared(chunk).is_some_and(|stamps| stamps.is_behind(row)) {
            self.stamps.change_shared(chunk).drop_behind();
        }
        let is_replaced = change.is_some();
        self.push(chunk, row, change.map(kept));
        let tally = self.tally(chunk);
        tally.touched |= bit(number(row));
        tally.shadowed += u16::from(!was_shadowed);
        tally.replaced = tally.replaced + u16::from(is_replaced) - u16::from(was_replaced);
        self.replacement_count = self.replacement_count + usize::from(is_replaced) - usize::from(was_replaced);
        self.gone_count = self.gone_count + usize::from(!is_replaced) - usize::from(was_shadowed && !was_replaced);
    }

    /// Adds a change to a chunk's log.
    fn push(&mut self, chunk: usize, row: usize, change: Change) {
        let length = self.tally(chunk).length;
        let log = if length > 0 { self.logs.shared(chunk) } else { None };
        let left = match log {
            Some(log) => log.push(length, number(row), change).err(),
            None => Some(change),
        };
        if let Some(change) = left {
            self.renew(chunk);
            let length = self.tally(chunk).length;
            // it has room
            let _ = self.logs.shared(chunk).map(|log| log.push(length, number(row), change));
        }
        self.tally(chunk).length += 1;
    }

    /// Makes room in a chunk's log: behind what is there, or in a log of its own that has of each row the last change alone, where most
    /// are of rows that changed again, and where another version went on before.
    fn renew(&mut self, chunk: usize) {
        let length = self.tally(chunk).length;
        let Some(log) = self.logs.shared(chunk).filter(|_| length > 0) else { return self.logs.set(chunk, ChangeLog::default()) };
        let shadowed = self.tallies.get(chunk).copied().unwrap_or_default().shadowed;
        if log.is_full(length) && length / 2 <= shadowed {
            if let Some(before) = self.logs.take(chunk) {
                self.logs.set(chunk, ChangeLog::behind(before, length));
            }
            return;
        }
        let changes = log.by_row(length);
        let count = number(changes.len());
        let new = ChangeLog::of(changes.into_iter().map(|(row, change)| (row, change.clone())));
        let new = if new.is_full(count) { ChangeLog::behind(Arc::new(new), count) } else { new };
        self.logs.set(chunk, new);
        self.tally(chunk).length = count;
    }

    fn tally(&mut self, chunk: usize) -> &mut Tally {
        self.tallies.change(chunk)
    }

    /// Notes the listing that confirms a row of a chunk of so many.
    pub(super) fn confirm(&mut self, chunk: usize, row: usize, generation: u64, rows: usize) {
        if self.at(chunk).generation(row) != generation {
            let live = rows - usize::from(self.at(chunk).tally.shadowed);
            self.stamps.change_shared(chunk).confirm(row, generation, rows, live);
        }
    }

    /// Notes the revision and lease that equal bytes of a row came with.
    pub(super) fn put_source(&mut self, chunk: usize, row: usize, source: SourceStamp, rows: usize) {
        self.stamped_count += usize::from(self.at(chunk).source(row).is_none());
        self.stamps.change_shared(chunk).put_source(row, source, rows);
    }

    /// Counts a key that came to live between the rows of a chunk.
    pub(super) fn count_insert(&mut self, chunk: usize) {
        let tally = self.tally(chunk);
        tally.inserted = tally.inserted.saturating_add(1);
    }

    /// How many rows have a revision and lease beside their chunk.
    pub(super) fn stamped_count(&self) -> usize {
        self.stamped_count
    }

    /// How many rows are gone.
    pub(super) fn gone_count(&self) -> usize {
        self.gone_count
    }

    /// How many records stand for rows.
    pub(super) fn replacement_count(&self) -> usize {
        self.replacement_count
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::tests::bare_record;
    use super::*;

    /// By chunk and row: the sequence of what stands for it, if anything does.
    type Naive = BTreeMap<(usize, usize), Option<u64>>;

    fn sequence_of(row: Row<'_>) -> Option<Option<u64>> {
        match row {
            Row::Packed => None,
            Row::Gone => Some(None),
            Row::Replaced(record) => Some(Some(record.last_sequence.0)),
        }
    }

    fn assert_same(sides: &Sides, naive: &Naive, what: &str) {
        for chunk in 0..3 {
            let side = sides.at(chunk);
            let changes = side.changes();
            let expected: Vec<(usize, Option<u64>)> =
                naive.iter().filter(|((at, _), _)| *at == chunk).map(|((_, row), change)| (*row, *change)).collect();
            let found: Vec<(usize, Option<u64>)> = changes.rows().filter_map(|(row, now)| Some((row, sequence_of(now)?))).collect();
            assert_eq!(found, expected, "{what}, chunk {chunk}");
            let replaced: Vec<u64> = expected.iter().filter_map(|(_, change)| *change).collect();
            assert_eq!((side.dirt(), side.gone_count()), (expected.len(), expected.len() - replaced.len()), "{what}, chunk {chunk}");
            for row in 0..300 {
                let expected = naive.get(&(chunk, row)).copied();
                assert_eq!(
                    (sequence_of(side.at(row)), sequence_of(changes.at(row))),
                    (expected, expected),
                    "{what}, chunk {chunk}, row {row}"
                );
            }
            for sequence in replaced {
                assert!(side.has_replacements_within(Sequence(sequence - 1), Sequence(sequence + 1)), "{what}, chunk {chunk}");
            }
        }
        let replaced = naive.values().flatten().count();
        assert_eq!((sides.replacement_count(), sides.gone_count()), (replaced, naive.len() - replaced), "{what}");
    }

    /// Copies that stay as they are, and copies of which each goes on by itself; many rows that change once, and few that change often.
    #[test]
    fn every_version_knows_what_became_of_the_rows_and_nothing_of_what_others_did() {
        for seed in 0..20 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut sides, mut naive, mut kept) = (Sides::default(), Naive::new(), Vec::new());
            for step in 1..1_500 {
                let (chunk, row) = (random.random_range(0..3), random.random_range(0..if step % 500 < 250 { 300 } else { 20 }));
                if random.random_bool(0.7) {
                    sides.put(chunk, row, Some(bare_record(7, step)));
                    naive.insert((chunk, row), Some(step));
                } else {
                    sides.put(chunk, row, None);
                    naive.insert((chunk, row), None);
                }
                match random.random_range(0..60) {
                    0..4 => kept.push((sides.clone(), naive.clone())),
                    4 => (sides, naive) = kept.get(random.random_range(0..=kept.len())).cloned().unwrap_or((sides, naive)),
                    _ => {}
                }
            }
            kept.push((sides, naive));
            for (at, (sides, naive)) in kept.iter().enumerate() {
                assert_same(sides, naive, &format!("seed {seed}, version {at}"));
            }
        }
    }

    #[test]
    fn listings_are_kept_by_row_until_each_row_was_confirmed_or_changed() {
        let mut sides = Sides::default();
        let settled = |sides: &Sides| sides.stamps.shared(0).is_some_and(Stamps::is_settled);
        (0..2).for_each(|row| sides.confirm(0, row, 7, 3));
        assert!(!settled(&sides));
        sides.put(0, 2, None);
        assert!(settled(&sides));
        assert_eq!((sides.at(0).generation(0), sides.at(0).generation(1)), (7, 7));
    }

    #[test]
    fn a_row_that_changes_all_the_time_takes_no_more_room_for_that() {
        let mut sides = Sides::default();
        for (row, sequence) in [0, 1, 2].into_iter().cycle().zip(0..100_000) {
            sides.put(0, row, Some(bare_record(7, sequence)));
        }
        let side = sides.at(0);
        assert!(side.tally.length <= 64, "{} changes are kept of 3 rows", side.tally.length);
        assert_same(&sides, &[((0, 0), Some(99_999)), ((0, 1), Some(99_997)), ((0, 2), Some(99_998))].into(), "at the end");
    }
}

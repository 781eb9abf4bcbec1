//! From layout 2 to layout 3 (`migrations/0003-one-log`), in place.
//!
//! Owns: the log of layout 2, which was in the engine (windows of a group each, segments of many), its witness, and the order of steps that may
//! be broken off anywhere: the verdict on what was found is noted in the mark; all that this log has is folded, as layout 2 would have done it; the
//! new log is begun; the number of the layout changes; what is needed no longer goes. Positions of before end, so that nothing else is
//! needed of the old log. Layout 1, which no release wrote, is set aside.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::{fs, io};

use super::load;
use super::recover::{Object, Reading};
use crate::store::encoding::codec::{self, Testimony};
use crate::store::encoding::group::Group;
use crate::store::encoding::pairs::read_pairs;
use crate::store::engine::Engine;
use crate::store::engine::format::{FORMAT, set_format};
use crate::store::engine::slots::Slots;
use crate::store::error::EngineError;
use crate::store::log::files::Files;
use crate::store::log::run::LogRun;
use crate::store::objects::object;

/// The number of the layout that is upgraded.
pub(super) const OLD_FORMAT: u64 = 2;

/// What the store had to hold at least, beside the engine's files.
const WITNESS_FILE: &str = "witness";

/// Which keys were announced and not stored yet, in the data directory.
const JOURNAL_DIRECTORY: &str = "journal";

/// In place of the log's id, while what was found whole is upgraded.
const WHOLE: u64 = 1;

/// Upgrades an engine of layout 2.
pub(in crate::store) fn upgrade(engine: &Arc<Engine>, directory: &Path, files: &dyn Files) -> Result<(), EngineError> {
    tracing::info!("upgrading the store from layout {OLD_FORMAT} to {FORMAT}");
    let witness = fs::read(directory.join(WITNESS_FILE)).ok().and_then(|bytes| codec::read_witness(&bytes).ok());
    fold(Arc::clone(engine), witness, files)?;
    set_format(engine)
}

/// What layout 2 left beside the engine.
pub(super) fn remove_leftovers(directory: &Path) -> io::Result<()> {
    let absent =
        |outcome: io::Result<()>| outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) });
    absent(fs::remove_file(directory.join(WITNESS_FILE)))?;
    directory.parent().map_or(Ok(()), |data_directory| absent(fs::remove_dir_all(data_directory.join(JOURNAL_DIRECTORY))))
}

/// Folds all that the old log has, and begins the new one.
pub(in crate::store) fn fold<S: Slots>(slots: S, witness: Option<Testimony>, files: &dyn Files) -> Result<(), EngineError> {
    let mut reading = Reading::begin(slots)?;
    let is_whole = take_old_log(&mut reading)?;
    let mark = reading.mark.unwrap_or_default();
    let testified = witness.is_some_and(|witness| !witness.suspect && witness.group_number <= mark.group.max(reading.last));
    // what follows changes what this was judged by
    let verdict = mark.id.map_or(is_whole && testified, |id| id != 0);
    reading.warm.marked(0, mark.group);
    reading.warm.adopt(if verdict { WHOLE } else { 0 })?;
    let (mut warm, mut found) = reading.finish()?;
    if !verdict {
        found.doubts.push("the log of layout 2 is not whole".to_owned());
    }
    let (loaded, _, mut repairs) = load::judge(&warm, &mut found)?;
    repairs.insert(codec::EPOCHS_KEY.into(), None);
    let reserved = witness.map(|witness| witness.sequence).filter(|sequence| *sequence > loaded.sequence_reserved);
    repairs.extend(Group { sequence_reserved: reserved, ..Group::default() }.changes());
    load::begin_log(&mut warm, &repairs, files)?;
    Ok(())
}

/// Reads the log in the engine. Returns whether nothing of it is missing.
fn take_old_log<S: Slots>(reading: &mut Reading<S>) -> Result<bool, EngineError> {
    let (mut objects, mut is_whole): (BTreeMap<u64, Object>, bool) = (BTreeMap::new(), true);
    for slot in std::mem::take(&mut reading.old_log) {
        let Some(value) = reading.warm.slots().get(slot)? else { continue };
        match object::read_part(slot, value) {
            Ok(part) => {
                reading.warm.room().saw_stamp(part.head.stamp);
                objects.entry(part.head.stamp).or_default().take(slot, part);
            }
            Err(_) => is_whole = false,
        }
    }
    // one that lacks parts was never finished
    objects.retain(|_, object| object.is_complete());
    let mut floor = reading.mark.map_or(0, |mark| mark.floor);
    let mut lost = Vec::new();
    for object in objects.into_values() {
        let (first, last) = (object.head.first_group, object.head.last_group);
        match if object.is_damaged() { None } else { read_pairs(&object.body()).ok() } {
            Some(pairs) => {
                floor = floor.max(object.head.floor);
                reading.log.push(LogRun { first, last, pairs: Arc::new(pairs) });
            }
            None => lost.push((first, last)),
        }
    }
    reading.log.sort_by_key(|run| (run.last, std::cmp::Reverse(run.first)));
    reading.last = reading.log.last().map_or(0, |run| run.last);
    // a damaged one matters where no other has its groups
    let replaced = |(first, last): &(u64, u64)| *last < floor || reading.log.iter().any(|run| run.first <= *first && *last <= run.last);
    is_whole &= lost.iter().all(replaced);
    // between the first group that is needed and the last none may be missing
    let mut ranges: Vec<(u64, u64)> = reading.log.iter().map(|run| (run.first, run.last)).collect();
    ranges.sort_unstable();
    let mut next = floor;
    for (first, last) in ranges {
        if first > next {
            break;
        }
        next = next.max(last + 1);
    }
    Ok(is_whole && (reading.log.is_empty() || next > reading.last))
}

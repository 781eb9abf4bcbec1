//! The log as a start finds it.
//!
//! Owns: which of its objects are still needed, what they say of which chunk, and whether any group is missing. Deliberately lacks: reading
//! slots (`recover`).

use std::sync::Arc;

use super::change::{Key, Value};
use super::error::EngineError;
use super::packing;
use super::pairs::Pairs;
use super::recover::{Object, Reading};
use super::slots::{SlotKind, Slots};
use super::threads::in_threads;
use super::warm::LogObject;
use crate::model::{Causes, Due};

/// Changes that cannot be read and were logged lately: of a damaged log it may be all.
static UNREADABLE: Causes = Causes::new();

/// An object of the log.
#[derive(Debug)]
pub(super) struct LogRead {
    pub(super) kind: SlotKind,
    /// Without its bytes.
    pub(super) object: Object,
    pub(super) stored_bytes: usize,
    /// `None` where it is damaged or was never finished.
    pub(super) pairs: Option<Arc<Pairs>>,
}

impl LogRead {
    pub(super) fn groups(&self) -> (u64, u64) {
        (self.object.head.first_group, self.object.head.last_group)
    }
}

/// What a log object is at a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LogPlace {
    /// Groups that are in no segment yet.
    Hot,
    /// Sealed groups.
    Segment,
    /// A window whose groups are in a segment, not overwritten yet.
    LeftOver,
}

impl<S: Slots> Reading<S> {
    pub(super) fn restore_log(&mut self) -> Result<(), EngineError> {
        let lost = self.lost_group();
        let log = std::mem::take(&mut self.log);
        let sealed = log.iter().filter(|read| read.kind == SlotKind::Segment && read.object.is_complete());
        let sealed = sealed.map(|read| read.object.head.last_group).max().unwrap_or_default();
        let values = in_threads(&log, |read| read.pairs.as_ref().map(|pairs| read_values(pairs)))?;
        for (read, values) in log.into_iter().zip(values) {
            let Some((values, damaged_count)) = values else {
                self.garbage.extend(read.object.slots());
                continue;
            };
            self.found.damaged_count += damaged_count;
            self.found.suspect_everywhere |= damaged_count > 0;
            // a window that is in a segment is left over from before
            let place = match read.kind {
                SlotKind::Hot if read.object.head.first_group <= sealed => LogPlace::LeftOver,
                SlotKind::Hot => LogPlace::Hot,
                SlotKind::Segment | SlotKind::Chunk | SlotKind::Mark | SlotKind::Manifest => LogPlace::Segment,
            };
            self.apply(place, &read, values);
        }
        if let Some(lost) = lost {
            tracing::warn!("the store lost group {lost} or what follows: all clusters will be listed anew");
            self.found.suspect_everywhere = true;
            self.found.void_from = Some(self.floor);
        }
        Ok(())
    }

    /// Notes for the chunks what a log object has for them. Keeps it if it has anything, or if an older one is kept: between the first group
    /// that is needed and the last there must be no gap, or the next start takes it for a loss.
    fn apply(&mut self, place: LogPlace, read: &LogRead, values: Vec<(Key, Option<Value>)>) {
        let (first_group, last_group) = read.groups();
        let mut needed = false;
        for (key, value) in &values {
            needed |= self.warm.note(first_group, last_group, key, value.clone());
        }
        let kept = LogObject {
            slots: read.object.slots(),
            first_group,
            last_group,
            raw_bytes: read.object.head.raw_bytes,
            stored_bytes: read.stored_bytes,
        };
        let log = &mut self.warm.log;
        let follows = !log.segments.is_empty() || !log.hot.is_empty();
        match place {
            LogPlace::Hot if needed || follows => {
                // not of one that is left over from before: what it says may be older than what is in the chunks
                log.merged.extend(values);
                log.hot.push(kept);
            }
            LogPlace::Segment if needed || follows => log.segments.push(kept),
            LogPlace::LeftOver if needed => log.segments.push(kept),
            LogPlace::Hot | LogPlace::Segment | LogPlace::LeftOver => self.garbage.extend(kept.slots),
        }
    }

    /// The first group from the floor on that is not there, or one that follows. A damaged object matters where no other has its groups; one
    /// that was not finished is the newest, and nothing is missing without it.
    pub(super) fn lost_group(&self) -> Option<u64> {
        let read = self.log.iter().filter(|read| read.pairs.is_some());
        let mut covered: Vec<(u64, u64)> = read.map(LogRead::groups).collect();
        covered.sort_unstable();
        let replaced = |lost: (u64, u64)| lost.1 < self.floor || covered.iter().any(|(first, last)| *first <= lost.0 && lost.1 <= *last);
        let mut damaged = self.log.iter().filter(|read| read.pairs.is_none() && read.object.is_complete());
        let lost = damaged.any(|read| !replaced(read.groups()));
        let mut next = self.floor;
        for (first, last) in &covered {
            if *first > next {
                break;
            }
            next = next.max(last + 1);
        }
        (lost || !covered.is_empty() && next <= self.group_number).then_some(next)
    }
}

/// The values of a log object, and how many cannot be read.
fn read_values(pairs: &Pairs) -> (Vec<(Key, Option<Value>)>, u64) {
    let mut damaged_count = 0;
    let read = pairs.iter().filter_map(|(key, body)| match body.map(|body| packing::read_value(key, body)).transpose() {
        Ok(value) => Some((key.into(), value)),
        Err(_) => {
            if let Some(Due { more }) = UNREADABLE.due("change") {
                tracing::warn!(key = %key.escape_ascii(), more, "a change in the log cannot be read");
            }
            damaged_count += 1;
            None
        }
    });
    (read.collect(), damaged_count)
}

//! The keys at one revision.
//!
//! The revision is the newest one, one that is pinned for the pages of a list, or an earlier one
//! that is reconstructed from the newest changes.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use smol_str::SmolStr;
use tonic::Status;

use crate::etcd_api::answers::Room;
use crate::etcd_api::face::Face;
use crate::etcd_api::refusal;
use crate::etcd_api::revisions::{revision, sequence};
use crate::etcd_api::span::Span;
use crate::handle::{RawPast, RawPlace, Reading, Slice};
use crate::model::{RawRecord, Sequence};

/// Bytes of a reconstructed key in addition to its value. The value is shared with the feed.
const PAST_BYTES: usize = size_of::<(SmolStr, Option<RawRecord>)>() + 128;

/// The keys at one revision.
#[derive(Debug)]
pub(super) struct Moment {
    reading: Reading,
    /// Earlier state of the keys that changed since the revision.
    past: RawPast,
    /// Sequence after which `past` is still incomplete; `None` once it has all changes.
    unknown_after: Option<Sequence>,
}

/// Outcome of a walk over keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// There are no more keys.
    Over,
    /// `visit` wanted no more keys.
    Enough,
    /// The slice is over.
    Paused,
}

impl Face {
    /// Returns the keys at a revision; 0 or less means the newest. `reading` is the newest
    /// snapshot.
    ///
    /// # Errors
    /// Returns `OutOfRange` for a future revision.
    pub(super) fn moment(&self, reading: &Reading, at: i64) -> Result<Moment, Status> {
        let head = revision(reading.position().sequence);
        if at > head {
            return Err(refusal::future_revision());
        }
        let moment = |reading, unknown_after| Moment { reading, past: BTreeMap::new(), unknown_after };
        if at <= 0 || at == head {
            return Ok(moment(reading.clone(), None));
        }
        match self.pins.find(at) {
            Some(reading) => Ok(moment(reading, None)),
            None => Ok(moment(reading.clone(), Some(sequence(at)))),
        }
    }
}

impl Moment {
    /// Reconstructs the keys of a span at the revision. The other methods are valid only after this
    /// has finished.
    ///
    /// # Errors
    /// Returns `OutOfRange` ("compacted") if the feed no longer has all changes since the revision.
    pub(super) fn go_back(&mut self, span: &Span, slice: &mut Slice, room: &mut Room) -> Result<ControlFlow<()>, Status> {
        let Some(after) = self.unknown_after else { return Ok(ControlFlow::Break(())) };
        let known = self.past.len();
        let next = self.reading.raw_past(&mut self.past, after, slice, |key| span.holds(key.as_bytes())).ok_or_else(refusal::compacted)?;
        room.take((self.past.len() - known) * PAST_BYTES)?;
        self.unknown_after = next;
        Ok(if next.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    /// Returns the record of a key at the revision.
    pub(super) fn get(&self, key: &[u8]) -> Option<RawRecord> {
        let key = str::from_utf8(key).ok()?;
        match self.past.get(key) {
            Some(then) => then.clone(),
            None => self.reading.raw(key).map(|place| place.record()),
        }
    }

    /// Returns the number of keys that a span has in the reading. [`Self::correct`] adds the
    /// difference to the revision.
    pub(super) fn count_now(&self, span: &Span) -> usize {
        if span.is_empty() {
            return 0;
        }
        if span.is_single {
            return usize::from(str::from_utf8(&span.start).is_ok_and(|key| self.reading.raw(key).is_some()));
        }
        self.reading.raw_count(&span.start, span.end.as_deref())
    }

    /// Corrects a count by the keys that differed at the revision. `from` is the last key that was
    /// processed.
    pub(super) fn correct(&self, count: &mut usize, from: &mut Option<SmolStr>, slice: &mut Slice) -> ControlFlow<()> {
        for (key, then) in self.past_after(from.as_ref()) {
            // the count includes the keys that exist now
            *count += usize::from(then.is_some());
            *count -= usize::from(self.reading.raw(key).is_some());
            slice.look();
            if slice.is_over() {
                *from = Some(key.clone());
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(())
    }

    fn past_after<'a>(&'a self, key: Option<&SmolStr>) -> impl Iterator<Item = (&'a SmolStr, &'a Option<RawRecord>)> + use<'a> {
        let after = key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_str()));
        self.past.range::<str, _>((after, Bound::Unbounded))
    }

    /// Visits the keys of a span in order, if `test` accepts their creation and modification
    /// sequences.
    ///
    /// It starts after the key `last` and stops when `visit` wants no more or the slice is over;
    /// `last` is then the last key that was processed. Without `values`, the records have empty
    /// values.
    pub(super) fn walk(
        &self,
        span: &Span,
        last: &mut Option<SmolStr>,
        values: bool,
        slice: &mut Slice,
        test: impl Fn(Sequence, Sequence) -> bool,
        mut visit: impl FnMut(RawRecord) -> Result<bool, Status>,
    ) -> Result<Walk, Status> {
        let start = last.as_ref().map_or_else(|| span.start.clone(), |last| [last.as_bytes(), &[0]].concat());
        if span.is_empty() || !span.holds(&start) {
            return Ok(Walk::Over);
        }
        let mut past = self.past_after(last.as_ref()).peekable();
        // visits the record, then checks whether `visit` wants more and whether the slice is over
        let mut look = |last: &mut Option<SmolStr>, key: &dyn Fn() -> SmolStr, record: Option<RawRecord>| {
            let is_enough = match record {
                Some(record) => !visit(record)?,
                None => false,
            };
            slice.look();
            if is_enough || slice.is_over() {
                *last = Some(key());
                return Ok(Some(if is_enough { Walk::Enough } else { Walk::Paused }));
            }
            Ok::<_, Status>(None)
        };
        let passing = |then: &Option<RawRecord>| then.clone().filter(|record| test(record.create_sequence, record.last_sequence));
        for place in self.reading.raw_from(&start) {
            if past.peek().is_some() {
                let key = place.key();
                while let Some((other, then)) = past.next_if(|(other, _)| **other < key) {
                    if let Some(walk) = look(last, &|| other.clone(), passing(then))? {
                        return Ok(walk);
                    }
                }
                if let Some((other, then)) = past.next_if(|(other, _)| **other == key) {
                    if let Some(walk) = look(last, &|| other.clone(), passing(then))? {
                        return Ok(walk);
                    }
                    continue;
                }
            }
            let (created, changed, _) = place.history();
            let record = match test(created, changed) {
                true if values => Some(place.record()),
                true => Some(bare(&place)),
                false => None,
            };
            // the end is checked even for keys that fail the test, because few may pass
            let is_within = match &record {
                Some(record) => span.is_not_behind(record.key.as_bytes()),
                None => span.is_not_behind(place.key().as_bytes()),
            };
            if !is_within {
                break;
            }
            if let Some(walk) = look(last, &|| place.key(), record)? {
                return Ok(walk);
            }
        }
        for (key, then) in past {
            if let Some(walk) = look(last, &|| key.clone(), passing(then))? {
                return Ok(walk);
            }
        }
        Ok(Walk::Over)
    }
}

fn bare(place: &RawPlace<'_>) -> RawRecord {
    let (create_sequence, last_sequence, version) = place.history();
    RawRecord { key: place.key(), value: Arc::default(), create_sequence, last_sequence, version }
}

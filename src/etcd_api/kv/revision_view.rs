//! The keys as they were at one revision.
//!
//! The revision is the newest one, one whose snapshot is pinned for the pages of a list, or an
//! earlier one. The keys of an earlier revision are reconstructed from the newest changes.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use smol_str::SmolStr;
use tonic::Status;

use crate::etcd_api::errors;
use crate::etcd_api::key_interval::KeyInterval;
use crate::etcd_api::responses::ResponseMemory;
use crate::etcd_api::revisions::{to_revision, to_sequence};
use crate::etcd_api::state::EtcdApi;
use crate::handle::{FormerValues, RawKey, Reading, WorkSlice};
use crate::model::{RawRecord, Sequence};

/// Bytes of a reconstructed key in addition to its value. The value is shared with the feed.
const RECORD_BYTES: usize = size_of::<(SmolStr, Option<RawRecord>)>() + 128;

#[derive(Debug)]
pub(super) struct RevisionView {
    reading: Reading,
    /// Earlier state of the keys that changed since the revision.
    earlier: FormerValues,
    /// Sequence after which the changes have not been collected into `earlier` yet; `None` once all
    /// have been.
    unknown_after: Option<Sequence>,
}

/// Outcome of [`RevisionView::visit_keys`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VisitOutcome {
    /// There are no more keys.
    Finished,
    /// `visit` needs no more keys.
    Stopped,
    /// The slice is over.
    Paused,
}

impl EtcdApi {
    /// Returns the keys at a revision; 0 or less means the newest. `reading` is the newest
    /// snapshot.
    ///
    /// # Errors
    /// Returns `OutOfRange` for a future revision.
    pub(super) fn view_at(&self, reading: &Reading, revision: i64) -> Result<RevisionView, Status> {
        let head = to_revision(reading.position().sequence);
        if revision > head {
            return Err(errors::future_revision());
        }
        let view = |reading, unknown_after| RevisionView { reading, earlier: BTreeMap::new(), unknown_after };
        if revision <= 0 || revision == head {
            return Ok(view(reading.clone(), None));
        }
        match self.pinned_snapshots.find(revision) {
            Some(reading) => Ok(view(reading, None)),
            None => Ok(view(reading.clone(), Some(to_sequence(revision)))),
        }
    }
}

impl RevisionView {
    /// Reconstructs the keys of an interval at the revision. Returns `Break` once it has finished.
    /// The other methods are valid only after that.
    ///
    /// # Errors
    /// Returns `OutOfRange` ("compacted") if the feed no longer has all changes since the revision.
    pub(super) fn reconstruct(
        &mut self,
        interval: &KeyInterval,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
    ) -> Result<ControlFlow<()>, Status> {
        let Some(after) = self.unknown_after else { return Ok(ControlFlow::Break(())) };
        let known = self.earlier.len();
        let next = self
            .reading
            .collect_former_values(&mut self.earlier, after, slice, |key| interval.contains(key.as_bytes()))
            .ok_or_else(errors::compacted)?;
        memory.charge((self.earlier.len() - known) * RECORD_BYTES)?;
        self.unknown_after = next;
        Ok(if next.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    /// Returns the record of a key at the revision.
    pub(super) fn get(&self, key: &[u8]) -> Option<RawRecord> {
        let key = str::from_utf8(key).ok()?;
        match self.earlier.get(key) {
            Some(record) => record.clone(),
            None => self.reading.raw_value(key).map(|raw_key| raw_key.record()),
        }
    }

    /// Returns the number of keys that an interval has in the snapshot. [`Self::correct_count`]
    /// then corrects it for the revision.
    pub(super) fn count_in_snapshot(&self, interval: &KeyInterval) -> usize {
        if interval.is_empty() {
            return 0;
        }
        if interval.is_single {
            return usize::from(str::from_utf8(&interval.start).is_ok_and(|key| self.reading.raw_value(key).is_some()));
        }
        self.reading.raw_count(&interval.start, interval.end.as_deref())
    }

    /// Corrects a count for the keys that were different at the revision. `last` is the last key
    /// that was processed.
    pub(super) fn correct_count(&self, count: &mut usize, last: &mut Option<SmolStr>, slice: &mut WorkSlice) -> ControlFlow<()> {
        for (key, record) in self.earlier_after(last.as_ref()) {
            // the count includes the keys that exist now
            *count += usize::from(record.is_some());
            *count -= usize::from(self.reading.raw_value(key).is_some());
            slice.count_row();
            if slice.is_over() {
                *last = Some(key.clone());
                return ControlFlow::Continue(());
            }
        }
        ControlFlow::Break(())
    }

    fn earlier_after<'a>(&'a self, key: Option<&SmolStr>) -> impl Iterator<Item = (&'a SmolStr, &'a Option<RawRecord>)> + use<'a> {
        let after = key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_str()));
        self.earlier.range::<str, _>((after, Bound::Unbounded))
    }

    /// Calls `visit` with the keys of an interval in order. Skips keys whose creation and
    /// modification sequences `test` does not accept.
    ///
    /// Starts after the key `last`. Stops when `visit` returns `false` or the slice is over, and
    /// then sets `last` to the last key that was processed. If `needs_values` is not set, the
    /// records have empty values.
    pub(super) fn visit_keys(
        &self,
        interval: &KeyInterval,
        last: &mut Option<SmolStr>,
        needs_values: bool,
        slice: &mut WorkSlice,
        test: impl Fn(Sequence, Sequence) -> bool,
        mut visit: impl FnMut(RawRecord) -> Result<bool, Status>,
    ) -> Result<VisitOutcome, Status> {
        let start = last.as_ref().map_or_else(|| interval.start.clone(), |last| [last.as_bytes(), &[0]].concat());
        if interval.is_empty() || !interval.contains(&start) {
            return Ok(VisitOutcome::Finished);
        }
        let mut earlier = self.earlier_after(last.as_ref()).peekable();
        // visits the record, then checks whether `visit` needs more and whether the slice is over
        let mut visit_one = |last: &mut Option<SmolStr>, key: &dyn Fn() -> SmolStr, record: Option<RawRecord>| {
            let is_enough = match record {
                Some(record) => !visit(record)?,
                None => false,
            };
            slice.count_row();
            if is_enough || slice.is_over() {
                *last = Some(key());
                return Ok(Some(if is_enough { VisitOutcome::Stopped } else { VisitOutcome::Paused }));
            }
            Ok::<_, Status>(None)
        };
        let filtered = |record: &Option<RawRecord>| record.clone().filter(|record| test(record.create_sequence, record.last_sequence));
        for raw_key in self.reading.raw_from(&start) {
            if earlier.peek().is_some() {
                let key = raw_key.key();
                while let Some((earlier_key, record)) = earlier.next_if(|(earlier_key, _)| **earlier_key < key) {
                    if let Some(outcome) = visit_one(last, &|| earlier_key.clone(), filtered(record))? {
                        return Ok(outcome);
                    }
                }
                if let Some((earlier_key, record)) = earlier.next_if(|(earlier_key, _)| **earlier_key == key) {
                    if let Some(outcome) = visit_one(last, &|| earlier_key.clone(), filtered(record))? {
                        return Ok(outcome);
                    }
                    continue;
                }
            }
            let (created, changed, _) = raw_key.history();
            let record = match test(created, changed) {
                true if needs_values => Some(raw_key.record()),
                true => Some(record_without_value(&raw_key)),
                false => None,
            };
            // keys that fail the test are checked too: if few pass, the loop would otherwise run
            // far beyond the end
            let is_within = match &record {
                Some(record) => interval.is_before_end(record.key.as_bytes()),
                None => interval.is_before_end(raw_key.key().as_bytes()),
            };
            if !is_within {
                break;
            }
            if let Some(outcome) = visit_one(last, &|| raw_key.key(), record)? {
                return Ok(outcome);
            }
        }
        for (key, record) in earlier {
            if let Some(outcome) = visit_one(last, &|| key.clone(), filtered(record))? {
                return Ok(outcome);
            }
        }
        Ok(VisitOutcome::Finished)
    }
}

fn record_without_value(raw_key: &RawKey<'_>) -> RawRecord {
    let (create_sequence, last_sequence, version) = raw_key.history();
    RawRecord { key: raw_key.key(), value: Arc::default(), create_sequence, last_sequence, version }
}

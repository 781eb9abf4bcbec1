//! `KV/Range`: answers a request about an interval of keys in slices, with all options of etcd
//! (`server/etcdserver/txn/range.go`).

use std::ops::ControlFlow;

use etcd_client::proto::{PbKeyValue, PbRangeRequest};
use smol_str::SmolStr;
use tonic::Status;

use super::revision_view::{RevisionView, VisitOutcome};
use super::sorting::{SortOrder, SortTarget, SortedRecords};
use crate::etcd_api::errors;
use crate::etcd_api::key_interval::KeyInterval;
use crate::etcd_api::responses::ResponseMemory;
use crate::etcd_api::responses::encoder::ResponseEncoder;
use crate::etcd_api::revisions::to_revision;
use crate::etcd_api::state::EtcdApi;
use crate::handle::{Reading, WorkSlice};
use crate::model::{RawRecord, Sequence};

/// Maximum bytes of `key` and `range_end` together. For a transaction, it limits the sum over all
/// operations.
///
/// Same as etcd's limit for a request (`--max-request-bytes`, 1.5 MiB).
pub(super) const KEY_BYTES_MAX: usize = 3 << 19;

/// Bytes charged for a record that waits to be sorted, in addition to its key and value: two
/// vectors and four numbers.
const KEY_VALUE_BYTES: usize = size_of::<PbKeyValue>();

/// Executes one range request.
#[derive(Debug)]
pub(super) struct RangeExecutor {
    parameters: RangeParameters,
    interval: KeyInterval,
    view: RevisionView,
    step: RangeStep,
    /// Number of keys that passed the filters.
    matched: usize,
    /// Set if more keys passed than the limit allows.
    more: bool,
    sorted: Option<SortedRecords>,
    /// Last key that was processed.
    last: Option<SmolStr>,
    /// Chunk size of a streamed range: the range pauses at it so that the chunk can be sent.
    chunk: Option<ChunkLimits>,
}

/// Maximum size of a chunk of a streamed range. The first limit that is reached ends the chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkLimits {
    pub(super) keys: usize,
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct RangeParameters {
    limit: Option<usize>,
    /// Set if reading stops once there are more keys than the limit. Sorting and filtering need all
    /// keys.
    stops_early: bool,
    keys_only: bool,
    /// Set if values are read, even if only to sort by them.
    needs_values: bool,
    /// Minimum and maximum revision of a key's last modification, and of its creation; 0 means no
    /// bound.
    modified: (i64, i64),
    created: (i64, i64),
}

/// Next step of a [`RangeExecutor`].
#[derive(Debug)]
enum RangeStep {
    Reconstruct {
        count_only: bool,
    },
    ReadKeys,
    WriteSorted {
        /// Set if reading reached the end of the interval, not only the limit.
        has_read_all: bool,
    },
    /// Count the keys of the interval in the snapshot, or go on to `CountEach` if a bound is not
    /// valid UTF-8.
    Count,
    CountEach {
        count: usize,
        last: Option<SmolStr>,
    },
    /// Add the keys that existed only at the revision to the count, and subtract those that exist
    /// only now.
    CorrectCount {
        count: usize,
        last: Option<SmolStr>,
    },
    Finished {
        count: usize,
    },
}

/// Reason why [`RangeExecutor::advance`] stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeStop {
    ChunkFull,
    /// The answer is complete.
    Complete {
        more: bool,
        count: i64,
    },
}

/// Refuses the requests that etcd refuses.
pub(super) fn check(request: &PbRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(errors::empty_key());
    }
    parse_sort(request).map(drop)
}

/// Returns the total length of the keys in bytes.
///
/// # Errors
/// Refuses more than [`KEY_BYTES_MAX`].
pub(super) fn key_bytes<'a>(intervals: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<usize, Status> {
    let bytes = intervals.into_iter().map(|(key, end)| key.len() + end.len()).sum();
    if bytes > KEY_BYTES_MAX { Err(errors::request_too_large()) } else { Ok(bytes) }
}

fn parse_sort(request: &PbRangeRequest) -> Result<(SortTarget, SortOrder), Status> {
    let target = match request.sort_target {
        0 => SortTarget::Key,
        1 => SortTarget::Version,
        2 => SortTarget::Create,
        3 => SortTarget::Modify,
        4 => SortTarget::Value,
        _ => return Err(errors::invalid_sort_option()),
    };
    let order = match request.sort_order {
        0 => SortOrder::None,
        1 => SortOrder::Ascending,
        2 => SortOrder::Descending,
        _ => return Err(errors::invalid_sort_option()),
    };
    Ok((target, order))
}

/// Returns whether keys are sorted by their bytes, so that reading can stop at the limit.
pub(super) fn is_default_order(request: &PbRangeRequest) -> bool {
    request.sort_order == 0 || (request.sort_target, request.sort_order) == (0, 1)
}

pub(super) fn has_revision_filters(request: &PbRangeRequest) -> bool {
    [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision] != [0; 4]
}

impl RangeParameters {
    fn new(request: &PbRangeRequest, target: SortTarget) -> Self {
        Self {
            limit: usize::try_from(request.limit).ok().filter(|limit| *limit > 0),
            stops_early: is_default_order(request) && !has_revision_filters(request),
            keys_only: request.keys_only,
            needs_values: !request.keys_only || target == SortTarget::Value,
            modified: (request.min_mod_revision, request.max_mod_revision),
            created: (request.min_create_revision, request.max_create_revision),
        }
    }

    fn matches(&self, created: Sequence, modified: Sequence) -> bool {
        let within = |sequence, (min, max): (i64, i64)| {
            let revision = to_revision(sequence);
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        within(modified, self.modified) && within(created, self.created)
    }

    fn has_filters(&self) -> bool {
        (self.modified, self.created) != ((0, 0), (0, 0))
    }
}

/// Returns the bytes that a record uses while it waits to be sorted.
fn retained_bytes(record: &RawRecord, keys_only: bool) -> usize {
    KEY_VALUE_BYTES + record.key.len() + if keys_only { 0 } else { record.value.len() }
}

impl RangeExecutor {
    /// Prepares the answer to a checked request. `reading` is the newest snapshot.
    ///
    /// # Errors
    /// Returns `OutOfRange` for a future revision.
    pub(super) fn new(api: &EtcdApi, reading: &Reading, request: &PbRangeRequest) -> Result<Self, Status> {
        let (target, order) = parse_sort(request)?;
        Ok(Self {
            parameters: RangeParameters::new(request, target),
            interval: KeyInterval::new(&request.key, &request.range_end),
            view: api.view_at(reading, request.revision)?,
            step: RangeStep::Reconstruct { count_only: request.count_only },
            matched: 0,
            more: false,
            sorted: (target != SortTarget::Key || order == SortOrder::Descending).then(|| SortedRecords::new(target, order)),
            last: None,
            chunk: None,
        })
    }

    pub(super) fn in_chunks(self, chunk: ChunkLimits) -> Self {
        Self { chunk: Some(chunk), sorted: None, ..self }
    }

    /// Continues until the slice is over.
    pub(super) fn advance(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> ControlFlow<Result<RangeStop, Status>> {
        loop {
            match self.run_step(slice, memory, out) {
                Ok(Some(stop)) => return ControlFlow::Break(Ok(stop)),
                Ok(None) if slice.is_over() => return ControlFlow::Continue(()),
                Ok(None) => {}
                Err(error) => return ControlFlow::Break(Err(error)),
            }
        }
    }

    fn run_step(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> Result<Option<RangeStop>, Status> {
        slice.count_row();
        match &mut self.step {
            RangeStep::Reconstruct { count_only } => {
                let count_only = *count_only;
                if self.view.reconstruct(&self.interval, slice, memory)?.is_break() {
                    self.step = if count_only { RangeStep::Count } else { RangeStep::ReadKeys };
                }
            }
            RangeStep::ReadKeys => return self.read_keys(slice, memory, out),
            RangeStep::WriteSorted { has_read_all } => {
                let has_read_all = *has_read_all;
                match self.sorted.as_mut().and_then(SortedRecords::pop_first) {
                    Some(record) => {
                        memory.release(retained_bytes(&record, !self.parameters.needs_values));
                        encode_record(&self.parameters, &record, memory, out)?;
                    }
                    None => self.step = self.count_step(has_read_all),
                }
            }
            RangeStep::Count if self.interval.has_utf8_bounds() => {
                self.step = RangeStep::CorrectCount { count: self.view.count_in_snapshot(&self.interval), last: None };
            }
            RangeStep::Count => self.step = RangeStep::CountEach { count: 0, last: None },
            RangeStep::CountEach { count, last } => {
                let visit = |_| {
                    *count += 1;
                    Ok(true)
                };
                if self.view.visit_keys(&self.interval, last, false, slice, |_, _| true, visit)? == VisitOutcome::Finished {
                    self.step = RangeStep::Finished { count: *count };
                }
            }
            RangeStep::CorrectCount { count, last } => {
                if self.view.correct_count(count, last, slice).is_break() {
                    self.step = RangeStep::Finished { count: *count };
                }
            }
            RangeStep::Finished { count } => {
                return Ok(Some(RangeStop::Complete { more: self.more, count: i64::try_from(*count).unwrap_or(i64::MAX) }));
            }
        }
        Ok(None)
    }

    /// Returns the step after all requested keys were read.
    fn count_step(&self, has_read_all: bool) -> RangeStep {
        if has_read_all && !self.parameters.has_filters() { RangeStep::Finished { count: self.matched } } else { RangeStep::Count }
    }

    fn read_keys(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> Result<Option<RangeStop>, Status> {
        let Self { parameters, interval, view, matched, more, sorted, last, chunk, .. } = self;
        let (length_before, mut keys, mut is_full) = (out.length(), 0, false);
        let visit = |record: RawRecord| {
            *matched += 1;
            *more = parameters.limit.is_some_and(|limit| *matched > limit);
            let Some(sorted) = sorted else {
                if *more {
                    return Ok(false);
                }
                encode_record(parameters, &record, memory, out)?;
                keys += 1;
                is_full = chunk.is_some_and(|chunk| keys >= chunk.keys || out.length() - length_before >= chunk.bytes);
                return Ok(!is_full);
            };
            memory.charge(retained_bytes(&record, !parameters.needs_values))?;
            if let Some(last) = sorted.insert(record, parameters.limit) {
                memory.release(retained_bytes(&last, !parameters.needs_values));
            }
            Ok(!(*more && parameters.stops_early))
        };
        let outcome = if interval.is_single {
            let record = view.get(&interval.start).filter(|record| parameters.matches(record.create_sequence, record.last_sequence));
            record.map(visit).transpose()?;
            VisitOutcome::Finished
        } else {
            view.visit_keys(
                interval,
                last,
                parameters.needs_values,
                slice,
                |created, modified| parameters.matches(created, modified),
                visit,
            )?
        };
        match outcome {
            VisitOutcome::Stopped if is_full => return Ok(Some(RangeStop::ChunkFull)),
            VisitOutcome::Paused => {}
            outcome => {
                let has_read_all = outcome == VisitOutcome::Finished;
                self.step = if self.sorted.is_some() { RangeStep::WriteSorted { has_read_all } } else { self.count_step(has_read_all) };
            }
        }
        Ok(None)
    }
}

fn encode_record(
    parameters: &RangeParameters,
    record: &RawRecord,
    memory: &mut ResponseMemory,
    out: &mut ResponseEncoder,
) -> Result<(), Status> {
    let before = out.length();
    out.put_key_value(record, parameters.keys_only);
    memory.charge(out.length() - before)
}

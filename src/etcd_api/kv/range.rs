//! `KV/Range`: answers a request about a span of keys in slices, with all options of etcd
//! (`server/etcdserver/txn/range.go`).

use std::ops::ControlFlow;

use etcd_client::proto::{PbKeyValue, PbRangeRequest};
use smol_str::SmolStr;
use tonic::Status;

use super::moment::{Moment, Walk};
use super::sorted::{Order, Sorted, Target};
use crate::etcd_api::answers::Room;
use crate::etcd_api::answers::writing::Writing;
use crate::etcd_api::face::Face;
use crate::etcd_api::refusal;
use crate::etcd_api::revisions::revision;
use crate::etcd_api::span::Span;
use crate::handle::{Reading, Slice};
use crate::model::{RawRecord, Sequence};

/// Maximum bytes of `key` and `range_end` together; in a transaction, of all its operations.
///
/// Same as etcd's limit for a request (`--max-request-bytes`, 1.5 MiB).
pub(super) const KEY_BYTES_MAX: usize = 3 << 19;

/// Bytes charged for a key in addition to its key and value: two vectors and four numbers.
const KEY_VALUE_BYTES: usize = size_of::<PbKeyValue>();

/// A range that is being answered.
#[derive(Debug)]
pub(super) struct Ranging {
    options: Options,
    span: Span,
    moment: Moment,
    stage: Stage,
    /// Number of keys that passed the filters.
    seen: usize,
    /// Set if more keys passed than the limit allows.
    more: bool,
    sorted: Option<Sorted>,
    /// Last key that was processed.
    last: Option<SmolStr>,
    /// Chunk size of a streamed range: the range pauses at it so that the chunk can be sent.
    chunk: Option<Chunk>,
}

/// Maximum size of a chunk of a streamed range. The first limit that is reached ends the chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chunk {
    pub(super) keys: usize,
    pub(super) bytes: usize,
}

/// Options of a range request.
#[derive(Debug)]
struct Options {
    limit: Option<usize>,
    /// Set if reading stops once there are more keys than the limit. Sorting and filtering need all
    /// keys.
    stops_early: bool,
    keys_only: bool,
    /// Set if values are read, be it only to sort by them.
    values: bool,
    /// Minimum and maximum revision of a key's last modification, and of its creation; 0 means no
    /// bound.
    modified: (i64, i64),
    created: (i64, i64),
}

/// Next step of the answer.
#[derive(Debug)]
enum Stage {
    /// Reconstruct the keys at the revision.
    GoBack {
        count_only: bool,
    },
    Read,
    /// Encode the sorted keys.
    Write {
        has_read_all: bool,
    },
    /// Count the keys of the span in the reading; one by one if a bound is not valid UTF-8.
    Count,
    CountEach {
        count: usize,
        last: Option<SmolStr>,
    },
    /// Correct the count by the keys that differed at the revision.
    Correct {
        count: usize,
        from: Option<SmolStr>,
    },
    Over {
        count: usize,
    },
}

/// Reason why a range stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The chunk is full.
    Chunk,
    /// The answer is complete.
    All { more: bool, count: i64 },
}

/// Refuses the requests that etcd refuses.
pub(super) fn check(request: &PbRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(refusal::empty_key());
    }
    sorting(request).map(drop)
}

/// Returns the total length of the keys in bytes.
///
/// # Errors
/// Refuses more than [`KEY_BYTES_MAX`].
pub(super) fn key_bytes<'a>(spans: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Result<usize, Status> {
    let bytes = spans.into_iter().map(|(key, end)| key.len() + end.len()).sum();
    if bytes > KEY_BYTES_MAX { Err(refusal::request_too_large()) } else { Ok(bytes) }
}

fn sorting(request: &PbRangeRequest) -> Result<(Target, Order), Status> {
    let target = match request.sort_target {
        0 => Target::Key,
        1 => Target::Version,
        2 => Target::Create,
        3 => Target::Modify,
        4 => Target::Value,
        _ => return Err(refusal::invalid_sort_option()),
    };
    let order = match request.sort_order {
        0 => Order::None,
        1 => Order::Ascending,
        2 => Order::Descending,
        _ => return Err(refusal::invalid_sort_option()),
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

impl Options {
    fn of(request: &PbRangeRequest, target: Target) -> Self {
        Self {
            limit: usize::try_from(request.limit).ok().filter(|limit| *limit > 0),
            stops_early: is_default_order(request) && !has_revision_filters(request),
            keys_only: request.keys_only,
            values: !request.keys_only || target == Target::Value,
            modified: (request.min_mod_revision, request.max_mod_revision),
            created: (request.min_create_revision, request.max_create_revision),
        }
    }

    fn passes(&self, created: Sequence, changed: Sequence) -> bool {
        let within = |sequence, (min, max): (i64, i64)| {
            let revision = revision(sequence);
            (min == 0 || revision >= min) && (max == 0 || revision <= max)
        };
        within(changed, self.modified) && within(created, self.created)
    }

    fn has_filters(&self) -> bool {
        (self.modified, self.created) != ((0, 0), (0, 0))
    }
}

/// Returns the number of bytes that a key adds to the answer.
fn byte_count(record: &RawRecord, keys_only: bool) -> usize {
    KEY_VALUE_BYTES + record.key.len() + if keys_only { 0 } else { record.value.len() }
}

impl Ranging {
    /// Prepares the answer to a checked request. `reading` is the newest snapshot.
    ///
    /// # Errors
    /// Returns `OutOfRange` for a future revision.
    pub(super) fn new(face: &Face, reading: &Reading, request: &PbRangeRequest) -> Result<Self, Status> {
        let (target, order) = sorting(request)?;
        Ok(Self {
            options: Options::of(request, target),
            span: Span::new(&request.key, &request.range_end),
            moment: face.moment(reading, request.revision)?,
            stage: Stage::GoBack { count_only: request.count_only },
            seen: 0,
            more: false,
            sorted: (target != Target::Key || order == Order::Descending).then(|| Sorted::new(target, order)),
            last: None,
            chunk: None,
        })
    }

    /// Splits the answer into chunks.
    pub(super) fn in_chunks(self, chunk: Chunk) -> Self {
        Self { chunk: Some(chunk), sorted: None, ..self }
    }

    /// Continues until the slice is over.
    pub(super) fn advance(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> ControlFlow<Result<Ended, Status>> {
        loop {
            match self.step(slice, room, out) {
                Ok(Some(ended)) => return ControlFlow::Break(Ok(ended)),
                Ok(None) if slice.is_over() => return ControlFlow::Continue(()),
                Ok(None) => {}
                Err(error) => return ControlFlow::Break(Err(error)),
            }
        }
    }

    fn step(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> Result<Option<Ended>, Status> {
        slice.look();
        match &mut self.stage {
            Stage::GoBack { count_only } => {
                let count_only = *count_only;
                if self.moment.go_back(&self.span, slice, room)?.is_break() {
                    self.stage = if count_only { Stage::Count } else { Stage::Read };
                }
            }
            Stage::Read => return self.read(slice, room, out),
            Stage::Write { has_read_all } => {
                let has_read_all = *has_read_all;
                match self.sorted.as_mut().and_then(Sorted::next) {
                    Some(record) => {
                        room.give(byte_count(&record, !self.options.values));
                        write(&self.options, &record, room, out)?;
                    }
                    None => self.stage = self.counting(has_read_all),
                }
            }
            Stage::Count if self.span.is_text() => {
                self.stage = Stage::Correct { count: self.moment.count_now(&self.span), from: None };
            }
            Stage::Count => self.stage = Stage::CountEach { count: 0, last: None },
            Stage::CountEach { count, last } => {
                let visit = |_| {
                    *count += 1;
                    Ok(true)
                };
                if self.moment.walk(&self.span, last, false, slice, |_, _| true, visit)? == Walk::Over {
                    self.stage = Stage::Over { count: *count };
                }
            }
            Stage::Correct { count, from } => {
                if self.moment.correct(count, from, slice).is_break() {
                    self.stage = Stage::Over { count: *count };
                }
            }
            Stage::Over { count } => {
                return Ok(Some(Ended::All { more: self.more, count: i64::try_from(*count).unwrap_or(i64::MAX) }));
            }
        }
        Ok(None)
    }

    /// Returns the step after all requested keys were read.
    fn counting(&self, has_read_all: bool) -> Stage {
        if has_read_all && !self.options.has_filters() { Stage::Over { count: self.seen } } else { Stage::Count }
    }

    fn read(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> Result<Option<Ended>, Status> {
        let Self { options, span, moment, seen, more, sorted, last, chunk, .. } = self;
        let (began, mut keys, mut is_full) = (out.length(), 0, false);
        let visit = |record: RawRecord| {
            *seen += 1;
            *more = options.limit.is_some_and(|limit| *seen > limit);
            let Some(sorted) = sorted else {
                if *more {
                    return Ok(false);
                }
                write(options, &record, room, out)?;
                keys += 1;
                is_full = chunk.is_some_and(|chunk| keys >= chunk.keys || out.length() - began >= chunk.bytes);
                return Ok(!is_full);
            };
            room.take(byte_count(&record, !options.values))?;
            if let Some(last) = sorted.insert(record, options.limit) {
                room.give(byte_count(&last, !options.values));
            }
            Ok(!(*more && options.stops_early))
        };
        let walk = if span.is_single {
            let found = moment.get(&span.start).filter(|record| options.passes(record.create_sequence, record.last_sequence));
            found.map(visit).transpose()?;
            Walk::Over
        } else {
            moment.walk(span, last, options.values, slice, |created, changed| options.passes(created, changed), visit)?
        };
        match walk {
            Walk::Enough if is_full => return Ok(Some(Ended::Chunk)),
            Walk::Paused => {}
            walk => {
                let has_read_all = walk == Walk::Over;
                self.stage = if self.sorted.is_some() { Stage::Write { has_read_all } } else { self.counting(has_read_all) };
            }
        }
        Ok(None)
    }
}

fn write(options: &Options, record: &RawRecord, room: &mut Room, out: &mut Writing) -> Result<(), Status> {
    let before = out.length();
    out.key_value(record, options.keys_only);
    room.take(out.length() - before)
}

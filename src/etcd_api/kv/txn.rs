//! `KV/Txn` without writes: comparisons, and the ranges of the chosen branch, all at one revision.
//!
//! meshkeep's own client sends such a transaction before it resumes. The answer is made in slices,
//! one operation after the other.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use etcd_client::proto::{PbCompare, PbRangeRequest, PbTargetUnion, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp};
use smol_str::SmolStr;
use tonic::Status;

use super::moment::{Moment, Walk};
use super::range::{self, Ended, Ranging};
use crate::etcd_api::answers::Room;
use crate::etcd_api::answers::writing::{Mark, Writing};
use crate::etcd_api::face::Face;
use crate::etcd_api::refusal;
use crate::etcd_api::revisions::revision;
use crate::etcd_api::span::Span;
use crate::handle::{Reading, Slice};
use crate::model::RawRecord;

/// Maximum number of operations along each path of a transaction (etcd's `--max-txn-ops`).
const OPERATIONS_MAX: usize = 128;

/// A transaction that is being answered.
pub(super) struct Transacting {
    face: Arc<Face>,
    reading: Reading,
    now: Moment,
    /// Remaining tasks, the next one last.
    tasks: Vec<Task>,
    /// The range in progress, and where its response begins.
    range: Option<(Ranging, Mark)>,
}

enum Task {
    Choose(Choice),
    Do(PbTxnRequestOp),
    /// Ends the response of an inner transaction.
    Close(Mark),
}

/// A branch that has to be chosen.
struct Choice {
    request: PbTxnRequest,
    /// Number of comparisons that were found true.
    held: usize,
    /// Last key that the current comparison processed, and whether it matched any key.
    last: Option<SmolStr>,
    has_found: bool,
}

/// Refuses the transactions that etcd refuses, and writes.
///
/// The size of the whole tree was checked before ([`crate::etcd_api::receiving`]).
pub(super) fn check(request: &PbTxnRequest) -> Result<(), Status> {
    check_within(request, OPERATIONS_MAX)
}

fn check_within(request: &PbTxnRequest, left: usize) -> Result<(), Status> {
    let operations = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = left.checked_sub(operations).ok_or_else(refusal::too_many_operations)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(refusal::empty_key());
    }
    request.success.iter().chain(&request.failure).try_for_each(|operation| match &operation.request {
        Some(PbTxnOpRequest::RequestRange(range)) => range::check(range),
        Some(PbTxnOpRequest::RequestTxn(inner)) if left > 0 => check_within(inner, left),
        Some(PbTxnOpRequest::RequestTxn(_)) => Err(refusal::too_many_operations()),
        Some(PbTxnOpRequest::RequestPut(_) | PbTxnOpRequest::RequestDeleteRange(_)) => Err(refusal::permission_denied()),
        None => Err(Status::invalid_argument("etcdserver: key not found")),
    })
}

fn ranges(request: &PbTxnRequest) -> Vec<&PbRangeRequest> {
    request.success.iter().chain(&request.failure).flat_map(ranges_of).collect()
}

fn ranges_of(operation: &PbTxnRequestOp) -> Vec<&PbRangeRequest> {
    match &operation.request {
        Some(PbTxnOpRequest::RequestRange(range)) => vec![range],
        Some(PbTxnOpRequest::RequestTxn(inner)) => ranges(inner),
        _ => Vec::new(),
    }
}

fn compares(request: &PbTxnRequest) -> Vec<&PbCompare> {
    let inner = request.success.iter().chain(&request.failure).flat_map(|operation| match &operation.request {
        Some(PbTxnOpRequest::RequestTxn(inner)) => compares(inner),
        _ => Vec::new(),
    });
    request.compare.iter().chain(inner).collect()
}

/// Returns all spans that a transaction reads.
pub(super) fn spans(request: &PbTxnRequest) -> Vec<Span> {
    let compared = compares(request).into_iter().map(|compare| Span::new(&compare.key, &compare.range_end));
    compared.chain(ranges(request).into_iter().map(|range| Span::new(&range.key, &range.range_end))).collect()
}

/// Returns the total length of the keys of a transaction in bytes.
///
/// # Errors
/// Refuses more than [`range::KEY_BYTES_MAX`].
pub(super) fn key_bytes(request: &PbTxnRequest) -> Result<usize, Status> {
    let compared = compares(request).into_iter().map(|compare| (&compare.key[..], &compare.range_end[..]));
    range::key_bytes(compared.chain(ranges(request).into_iter().map(|range| (&range.key[..], &range.range_end[..]))))
}

impl Transacting {
    /// Prepares the answer to a checked request at the revision of `reading`.
    pub(super) fn new(face: &Arc<Face>, reading: &Reading, request: PbTxnRequest) -> Result<Self, Status> {
        let (face, reading, now) = (Arc::clone(face), reading.clone(), face.moment(reading, 0)?);
        Ok(Self { face, reading, now, tasks: vec![Task::Choose(Choice::of(request))], range: None })
    }

    /// Continues until the slice is over.
    pub(super) fn advance(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> ControlFlow<Result<(), Status>> {
        loop {
            if let Some((range, mark)) = &mut self.range {
                match range.advance(slice, room, out) {
                    ControlFlow::Break(Ok(Ended::All { more, count })) => {
                        out.end_of_range(more, count);
                        out.close_range(mark);
                        self.range = None;
                    }
                    ControlFlow::Break(Err(error)) => return ControlFlow::Break(Err(error)),
                    ControlFlow::Continue(()) | ControlFlow::Break(Ok(Ended::Chunk)) => {}
                }
            } else {
                let Some(task) = self.tasks.pop() else { return ControlFlow::Break(Ok(())) };
                if let Err(error) = self.begin(task, slice, out) {
                    return ControlFlow::Break(Err(error));
                }
            }
            slice.look();
            if slice.is_over() {
                return ControlFlow::Continue(());
            }
        }
    }

    fn begin(&mut self, task: Task, slice: &mut Slice, out: &mut Writing) -> Result<(), Status> {
        match task {
            Task::Choose(mut choice) => match choice.decide(&self.now, slice)? {
                Some(succeeded) => {
                    out.succeeded(succeeded);
                    let PbTxnRequest { success, failure, .. } = choice.request;
                    let branch = if succeeded { success } else { failure };
                    self.tasks.extend(branch.into_iter().rev().map(Task::Do));
                }
                None => self.tasks.push(Task::Choose(choice)),
            },
            Task::Do(PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestRange(range)) }) => {
                self.range = Some((Ranging::new(&self.face, &self.reading, &range)?, out.open()));
            }
            Task::Do(PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestTxn(inner)) }) => {
                self.tasks.extend([Task::Close(out.open()), Task::Choose(Choice::of(inner))]);
            }
            Task::Do(_) => return Err(refusal::permission_denied()),
            Task::Close(mark) => out.close_txn(&mark),
        }
        Ok(())
    }
}

impl Choice {
    fn of(request: PbTxnRequest) -> Self {
        Self { request, held: 0, last: None, has_found: false }
    }

    /// Evaluates the comparisons. Returns `None` if the slice is over before the result is known.
    fn decide(&mut self, now: &Moment, slice: &mut Slice) -> Result<Option<bool>, Status> {
        while let Some(compare) = self.request.compare.get(self.held) {
            let Some(is_true) = holds(compare, now, &mut self.last, &mut self.has_found, slice)? else { return Ok(None) };
            if !is_true {
                return Ok(Some(false));
            }
            (self.held, self.last, self.has_found) = (self.held + 1, None, false);
            slice.look();
            if slice.is_over() {
                return Ok(None);
            }
        }
        Ok(Some(true))
    }
}

/// Returns whether a comparison is true for every key of its range, or `None` if the slice is over
/// first.
///
/// A missing key compares as zeros. A comparison of its value is always false.
fn holds(
    compare: &PbCompare,
    now: &Moment,
    last: &mut Option<SmolStr>,
    has_found: &mut bool,
    slice: &mut Slice,
) -> Result<Option<bool>, Status> {
    let span = Span::new(&compare.key, &compare.range_end);
    if span.is_single {
        return Ok(Some(is_true(compare, now.get(&compare.key).as_ref())));
    }
    let visit = |record| {
        *has_found = true;
        Ok(is_true(compare, Some(&record)))
    };
    Ok(match now.walk(&span, last, true, slice, |_, _| true, visit)? {
        Walk::Paused => None,
        Walk::Enough => Some(false),
        Walk::Over => Some(*has_found || is_true(compare, None)),
    })
}

fn is_true(compare: &PbCompare, found: Option<&RawRecord>) -> bool {
    let number = |get: fn(&RawRecord) -> i64| found.map_or(0, get);
    let ordering = match &compare.target_union {
        Some(PbTargetUnion::Value(value)) => match found {
            Some(record) => (*record.value).cmp(value),
            // a missing key has no value
            None => return false,
        },
        Some(PbTargetUnion::Version(version)) => number(|record| i64::try_from(record.version).unwrap_or(i64::MAX)).cmp(version),
        Some(PbTargetUnion::CreateRevision(created)) => number(|record| revision(record.create_sequence)).cmp(created),
        Some(PbTargetUnion::ModRevision(modified)) => number(|record| revision(record.last_sequence)).cmp(modified),
        Some(PbTargetUnion::Lease(lease)) => 0.cmp(lease),
        None => number(|record| i64::try_from(record.version).unwrap_or(i64::MAX)).cmp(&0),
    };
    match compare.result {
        0 => ordering == Ordering::Equal,
        1 => ordering == Ordering::Greater,
        2 => ordering == Ordering::Less,
        _ => ordering != Ordering::Equal,
    }
}

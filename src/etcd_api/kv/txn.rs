//! `KV/Txn` without writes: comparisons, and the ranges of the chosen branch, all at one revision.
//!
//! meshkeep's own client sends such a transaction before it resumes. The answer is built in slices,
//! one operation after the other.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use etcd_client::proto::{PbCompare, PbRangeRequest, PbTargetUnion, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp};
use smol_str::SmolStr;
use tonic::Status;

use super::range::{self, RangeExecutor, RangeStop};
use super::revision_view::{RevisionView, VisitOutcome};
use crate::etcd_api::errors;
use crate::etcd_api::key_interval::KeyInterval;
use crate::etcd_api::responses::ResponseMemory;
use crate::etcd_api::responses::encoder::{MessageStart, ResponseEncoder};
use crate::etcd_api::revisions::to_revision;
use crate::etcd_api::state::EtcdApi;
use crate::handle::{Reading, WorkSlice};
use crate::model::RawRecord;

/// Maximum number of operations along each path of a transaction (etcd's `--max-txn-ops`).
const OPERATIONS_MAX: usize = 128;

/// Executes one transaction.
pub(super) struct TxnExecutor {
    api: Arc<EtcdApi>,
    reading: Reading,
    view: RevisionView,
    /// Remaining steps. The last element is the next step.
    steps: Vec<TxnStep>,
    /// The range in progress, and where its response begins.
    range: Option<(RangeExecutor, MessageStart)>,
}

enum TxnStep {
    ChooseBranch(PendingBranch),
    Execute(PbTxnRequestOp),
    /// Ends the response of an inner transaction.
    EndResponse(MessageStart),
}

/// A transaction whose branch has not been chosen yet.
struct PendingBranch {
    request: PbTxnRequest,
    /// Number of comparisons that are known to be true.
    true_count: usize,
    /// Last key that the current comparison processed, and whether it matched any key.
    last: Option<SmolStr>,
    has_matched: bool,
}

/// Refuses transactions that etcd refuses, and transactions that write.
///
/// The size of the whole tree was checked before ([`crate::etcd_api::request_body`]).
pub(super) fn check(request: &PbTxnRequest) -> Result<(), Status> {
    check_within(request, OPERATIONS_MAX)
}

fn check_within(request: &PbTxnRequest, remaining: usize) -> Result<(), Status> {
    let operations = request.compare.len().max(request.success.len()).max(request.failure.len());
    let remaining = remaining.checked_sub(operations).ok_or_else(errors::too_many_operations)?;
    if request.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(errors::empty_key());
    }
    request.success.iter().chain(&request.failure).try_for_each(|operation| match &operation.request {
        Some(PbTxnOpRequest::RequestRange(range)) => range::check(range),
        Some(PbTxnOpRequest::RequestTxn(inner)) if remaining > 0 => check_within(inner, remaining),
        Some(PbTxnOpRequest::RequestTxn(_)) => Err(errors::too_many_operations()),
        Some(PbTxnOpRequest::RequestPut(_) | PbTxnOpRequest::RequestDeleteRange(_)) => Err(errors::permission_denied()),
        None => Err(Status::invalid_argument("etcdserver: key not found")),
    })
}

fn ranges(request: &PbTxnRequest) -> Vec<&PbRangeRequest> {
    request.success.iter().chain(&request.failure).flat_map(operation_ranges).collect()
}

fn operation_ranges(operation: &PbTxnRequestOp) -> Vec<&PbRangeRequest> {
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

/// Returns all intervals that a transaction reads.
pub(super) fn intervals(request: &PbTxnRequest) -> Vec<KeyInterval> {
    let compared = compares(request).into_iter().map(|compare| KeyInterval::new(&compare.key, &compare.range_end));
    compared.chain(ranges(request).into_iter().map(|range| KeyInterval::new(&range.key, &range.range_end))).collect()
}

/// Returns the total length of the keys of a transaction in bytes.
///
/// # Errors
/// Refuses more than [`range::KEY_BYTES_MAX`].
pub(super) fn key_bytes(request: &PbTxnRequest) -> Result<usize, Status> {
    let compared = compares(request).into_iter().map(|compare| (&compare.key[..], &compare.range_end[..]));
    range::key_bytes(compared.chain(ranges(request).into_iter().map(|range| (&range.key[..], &range.range_end[..]))))
}

impl TxnExecutor {
    /// Prepares the answer to a checked request at the revision of `reading`.
    pub(super) fn new(api: &Arc<EtcdApi>, reading: &Reading, request: PbTxnRequest) -> Result<Self, Status> {
        let (api, reading, view) = (Arc::clone(api), reading.clone(), api.view_at(reading, 0)?);
        Ok(Self { api, reading, view, steps: vec![TxnStep::ChooseBranch(PendingBranch::new(request))], range: None })
    }

    /// Continues until the slice is over.
    pub(super) fn advance(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> ControlFlow<Result<(), Status>> {
        loop {
            if let Some((range, start)) = &mut self.range {
                match range.advance(slice, memory, out) {
                    ControlFlow::Break(Ok(RangeStop::Complete { more, count })) => {
                        out.put_range_end(more, count);
                        out.end_range_response(start);
                        self.range = None;
                    }
                    ControlFlow::Break(Err(error)) => return ControlFlow::Break(Err(error)),
                    ControlFlow::Continue(()) | ControlFlow::Break(Ok(RangeStop::ChunkFull)) => {}
                }
            } else {
                let Some(step) = self.steps.pop() else { return ControlFlow::Break(Ok(())) };
                if let Err(error) = self.run_step(step, slice, out) {
                    return ControlFlow::Break(Err(error));
                }
            }
            slice.count_row();
            if slice.is_over() {
                return ControlFlow::Continue(());
            }
        }
    }

    fn run_step(&mut self, step: TxnStep, slice: &mut WorkSlice, out: &mut ResponseEncoder) -> Result<(), Status> {
        match step {
            TxnStep::ChooseBranch(mut branch) => match branch.evaluate(&self.view, slice)? {
                Some(succeeded) => {
                    out.put_succeeded(succeeded);
                    let PbTxnRequest { success, failure, .. } = branch.request;
                    let operations = if succeeded { success } else { failure };
                    self.steps.extend(operations.into_iter().rev().map(TxnStep::Execute));
                }
                None => self.steps.push(TxnStep::ChooseBranch(branch)),
            },
            TxnStep::Execute(PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestRange(range)) }) => {
                self.range = Some((RangeExecutor::new(&self.api, &self.reading, &range)?, out.begin_message()));
            }
            TxnStep::Execute(PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestTxn(inner)) }) => {
                self.steps.extend([TxnStep::EndResponse(out.begin_message()), TxnStep::ChooseBranch(PendingBranch::new(inner))]);
            }
            TxnStep::Execute(_) => return Err(errors::permission_denied()),
            TxnStep::EndResponse(start) => out.end_txn_response(&start),
        }
        Ok(())
    }
}

impl PendingBranch {
    fn new(request: PbTxnRequest) -> Self {
        Self { request, true_count: 0, last: None, has_matched: false }
    }

    /// Evaluates the comparisons. Returns `None` if the slice is over before the result is known.
    fn evaluate(&mut self, view: &RevisionView, slice: &mut WorkSlice) -> Result<Option<bool>, Status> {
        while let Some(compare) = self.request.compare.get(self.true_count) {
            let Some(is_true) = is_true_for_all_keys(compare, view, &mut self.last, &mut self.has_matched, slice)? else { return Ok(None) };
            if !is_true {
                return Ok(Some(false));
            }
            (self.true_count, self.last, self.has_matched) = (self.true_count + 1, None, false);
            slice.count_row();
            if slice.is_over() {
                return Ok(None);
            }
        }
        Ok(Some(true))
    }
}

/// Returns whether a comparison is true for every key of its range, or `None` if the slice ends
/// first.
///
/// A missing key has version and revisions 0. A comparison of its value is always false.
fn is_true_for_all_keys(
    compare: &PbCompare,
    view: &RevisionView,
    last: &mut Option<SmolStr>,
    has_matched: &mut bool,
    slice: &mut WorkSlice,
) -> Result<Option<bool>, Status> {
    let interval = KeyInterval::new(&compare.key, &compare.range_end);
    if interval.is_single {
        return Ok(Some(compare_record(compare, view.get(&compare.key).as_ref())));
    }
    let visit = |record| {
        *has_matched = true;
        Ok(compare_record(compare, Some(&record)))
    };
    Ok(match view.visit_keys(&interval, last, true, slice, |_, _| true, visit)? {
        VisitOutcome::Paused => None,
        VisitOutcome::Stopped => Some(false),
        VisitOutcome::Finished => Some(*has_matched || compare_record(compare, None)),
    })
}

fn compare_record(compare: &PbCompare, record: Option<&RawRecord>) -> bool {
    let number = |get: fn(&RawRecord) -> i64| record.map_or(0, get);
    let ordering = match &compare.target_union {
        Some(PbTargetUnion::Value(value)) => match record {
            Some(record) => (*record.value).cmp(value),
            // a missing key has no value
            None => return false,
        },
        Some(PbTargetUnion::Version(version)) => number(|record| i64::try_from(record.version).unwrap_or(i64::MAX)).cmp(version),
        Some(PbTargetUnion::CreateRevision(created)) => number(|record| to_revision(record.create_sequence)).cmp(created),
        Some(PbTargetUnion::ModRevision(modified)) => number(|record| to_revision(record.last_sequence)).cmp(modified),
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

//! `KV/Txn` of reads alone: comparisons, and the ranges of the branch that they choose, all at one moment. meshkeep itself asks so before it
//! goes on from where it was.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use etcd_client::proto::{
    PbCompare, PbRangeRequest, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};
use tonic::Status;

use super::face::{Face, Given};
use super::moment::Moment;
use super::range::{self, Bounds, KEYS_BETWEEN_LOOKS};
use super::refusal;
use super::revisions::revision;
use super::span::Span;
use crate::handle::Reading;
use crate::model::RawRecord;

/// How many operations a transaction may have (etcd's `--max-txn-ops`).
const OPERATIONS_MAX: usize = 128;

/// The moments that the ranges of a transaction are read at, by their revisions.
pub(super) struct Moments {
    now: Moment,
    earlier: BTreeMap<i64, Moment>,
}

/// Refuses what etcd refuses, and what writes.
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

/// All that it asks for.
pub(super) fn spans(request: &PbTxnRequest) -> Vec<Span> {
    let compared = compares(request).into_iter().map(|compare| Span::new(&compare.key, &compare.range_end));
    compared.chain(ranges(request).into_iter().map(|range| Span::new(&range.key, &range.range_end))).collect()
}

impl Moments {
    /// As of the newest moment.
    pub(super) fn of(face: &Face, reading: &Reading, request: &PbTxnRequest) -> Result<Self, Status> {
        let (spans, mut earlier) = (spans(request), BTreeMap::new());
        let holds = |key: &[u8]| spans.iter().any(|span| span.holds(key));
        for range in ranges(request).into_iter().filter(|range| range.revision > 0) {
            if let Entry::Vacant(vacant) = earlier.entry(range.revision) {
                vacant.insert(face.moment(reading, range.revision, holds)?);
            }
        }
        Ok(Self { now: face.moment(reading, 0, holds)?, earlier })
    }

    /// The answer, but for its header.
    pub(super) fn answer(&self, request: &PbTxnRequest, bounds: &mut Bounds<'_>) -> Result<PbTxnResponse, Status> {
        let mut succeeded = true;
        for compare in &request.compare {
            succeeded = succeeded && self.holds(compare, bounds.given)?;
        }
        let branch = if succeeded { &request.success } else { &request.failure };
        let mut responses = Vec::with_capacity(branch.len());
        for operation in branch {
            let response = match &operation.request {
                Some(PbTxnOpRequest::RequestRange(range)) => {
                    let moment = self.earlier.get(&range.revision).unwrap_or(&self.now);
                    PbTxnOpResponse::ResponseRange(range::answer(moment, range, bounds)?)
                }
                Some(PbTxnOpRequest::RequestTxn(inner)) => PbTxnOpResponse::ResponseTxn(self.answer(inner, bounds)?),
                _ => return Err(refusal::permission_denied()),
            };
            responses.push(PbResponseOp { response: Some(response) });
        }
        Ok(PbTxnResponse { header: None, succeeded, responses })
    }

    /// Whether a comparison is true of every key that it is about; of one that is not there by its zeros, but for its value. Ends once its client is gone.
    fn holds(&self, compare: &PbCompare, given: &Given) -> Result<bool, Status> {
        let span = Span::new(&compare.key, &compare.range_end);
        if span.is_single {
            let found = str::from_utf8(&compare.key).ok().and_then(|key| self.now.get(key));
            return Ok(is_true(compare, found.as_ref()));
        }
        let (mut all, mut seen) = (true, 0_usize);
        self.now.each(
            &span,
            true,
            |_, _| true,
            |record| {
                seen += 1;
                all = is_true(compare, Some(&record));
                all && !(seen.is_multiple_of(KEYS_BETWEEN_LOOKS) && given.is_up())
            },
        );
        if given.is_up() {
            return Err(refusal::given_up());
        }
        Ok(if seen > 0 { all } else { is_true(compare, None) })
    }
}

fn is_true(compare: &PbCompare, found: Option<&RawRecord>) -> bool {
    let number = |get: fn(&RawRecord) -> i64| found.map_or(0, get);
    let ordering = match &compare.target_union {
        Some(PbTargetUnion::Value(value)) => match found {
            Some(record) => (*record.value).cmp(value),
            // what is not there has no value
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::super::tests::Mirror;
    use super::*;

    /// Each comparison may be of every key, and there may be 128.
    #[tokio::test]
    async fn comparisons_end_once_nobody_waits_for_them() {
        let mut mirror = Mirror::new();
        mirror.put("10.0.0.1", b"{}");
        let (face, reading) = (Arc::new(mirror.face()), mirror.reading().await);
        let all = PbCompare { key: vec![0], range_end: vec![0], result: 3, ..PbCompare::default() };
        let request = PbTxnRequest { compare: vec![all], ..PbTxnRequest::default() };
        let (sender, ended) = mpsc::sync_channel(1);
        let (asked, mut room) = (Arc::clone(&face), face.answers.room());
        let call = face.work(move |given| {
            let moments = Moments::of(&asked, &reading, &request)?;
            let heard = moments.answer(&request, &mut Bounds { room: &mut room, given: &Given::default() })?.succeeded;
            while !given.is_up() {
                std::thread::yield_now();
            }
            let unheard = moments.answer(&request, &mut Bounds { room: &mut room, given });
            sender.send((heard, unheard.unwrap_err().message().to_owned())).unwrap();
            Ok(())
        });
        assert!(call.now_or_never().is_none());
        assert_eq!(ended.recv().unwrap(), (true, refusal::given_up().message().to_owned()));
    }
}

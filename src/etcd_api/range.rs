//! `KV/Range`: one question about a span of keys, by all of etcd's options (`server/etcdserver/txn/range.go`).

use std::cmp::Ordering;

use etcd_client::proto::{PbKeyValue, PbRangeRequest, PbRangeResponse};
use tonic::Status;

use super::answers::Room;
use super::face::Given;
use super::moment::Moment;
use super::refusal;
use super::revisions::revision;
use super::span::Span;
use crate::model::{RawRecord, Sequence};

/// Whether the client has gone is asked each time that so many keys were read.
pub(super) const KEYS_BETWEEN_LOOKS: usize = 512;

/// What an answer takes for each key beside its bytes: two vectors and four numbers.
const KEY_VALUE_BYTES: usize = size_of::<PbKeyValue>();

/// How keys are sorted, by etcd's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Key,
    Version,
    Create,
    Modify,
    Value,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    None,
    Ascending,
    Descending,
}

/// How far an answer may go.
pub(super) struct Bounds<'a> {
    pub(super) room: &'a mut Room,
    pub(super) given: &'a Given,
}

/// Refuses what etcd refuses.
pub(super) fn check(request: &PbRangeRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(refusal::empty_key());
    }
    sorting(request).map(drop)
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

/// Whether keys come in the order of their bytes, so that a limit ends the reading.
pub(super) fn is_default_order(request: &PbRangeRequest) -> bool {
    request.sort_order == 0 || (request.sort_target, request.sort_order) == (0, 1)
}

pub(super) fn has_revision_filters(request: &PbRangeRequest) -> bool {
    [request.min_mod_revision, request.max_mod_revision, request.min_create_revision, request.max_create_revision] != [0; 4]
}

/// A key as etcd writes it.
pub(super) fn key_value(record: &RawRecord) -> PbKeyValue {
    PbKeyValue {
        key: record.key.as_bytes().to_vec(),
        create_revision: revision(record.create_sequence),
        mod_revision: revision(record.last_sequence),
        version: i64::try_from(record.version).unwrap_or(i64::MAX),
        value: record.value.to_vec(),
        lease: 0,
    }
}

/// How much an answer grows by a key.
pub(super) fn byte_count(record: &RawRecord) -> usize {
    KEY_VALUE_BYTES + record.key.len() + record.value.len()
}

/// The answer, but for its header.
pub(super) fn answer(moment: &Moment, request: &PbRangeRequest, bounds: &mut Bounds<'_>) -> Result<PbRangeResponse, Status> {
    // a transaction has many
    if bounds.given.is_up() {
        return Err(refusal::given_up());
    }
    let span = Span::new(&request.key, &request.range_end);
    if request.count_only {
        return Ok(PbRangeResponse { count: count_of(moment, &span), ..PbRangeResponse::default() });
    }
    let (target, order) = sorting(request)?;
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
    // one more, to know whether there is more; to sort or filter, all must be seen
    let read_max = limit.filter(|_| is_default_order(request) && !has_revision_filters(request)).map(|limit| limit.saturating_add(1));
    let values = !request.keys_only || target == Target::Value;
    let mut found: Vec<RawRecord> = Vec::new();
    read(moment, request, &span, values, |record| {
        bounds.room.take(byte_count(&record))?;
        found.push(record);
        if found.len().is_multiple_of(KEYS_BETWEEN_LOOKS) && bounds.given.is_up() {
            return Err(refusal::given_up());
        }
        Ok(read_max.is_none_or(|max| found.len() < max))
    })?;
    let read_all = read_max.is_none() && !has_revision_filters(request);
    let count = if read_all || read_max.is_some_and(|max| found.len() < max) { found.len() } else { moment.count(&span) };
    sort(&mut found, target, order);
    let more = limit.is_some_and(|limit| found.len() > limit);
    found.truncate(limit.unwrap_or(usize::MAX));
    let written = |record: RawRecord| {
        let written = key_value(&record);
        if request.keys_only { PbKeyValue { value: Vec::new(), ..written } } else { written }
    };
    let kvs = found.into_iter().map(written).collect();
    Ok(PbRangeResponse { header: None, kvs, more, count: i64::try_from(count).unwrap_or(i64::MAX) })
}

fn count_of(moment: &Moment, span: &Span) -> i64 {
    i64::try_from(moment.count(span)).unwrap_or(i64::MAX)
}

/// Gives the keys of a span that pass the filters, in the order of their bytes, until `take` has enough or fails.
fn read(
    moment: &Moment,
    request: &PbRangeRequest,
    span: &Span,
    values: bool,
    mut take: impl FnMut(RawRecord) -> Result<bool, Status>,
) -> Result<(), Status> {
    let within = |revision: i64, min: i64, max: i64| (min == 0 || revision >= min) && (max == 0 || revision <= max);
    let passes = |created: Sequence, last: Sequence| {
        within(revision(last), request.min_mod_revision, request.max_mod_revision)
            && within(revision(created), request.min_create_revision, request.max_create_revision)
    };
    let mut outcome = Ok(true);
    if span.is_single {
        let found = str::from_utf8(&request.key).ok().and_then(|key| moment.get(key));
        if let Some(record) = found.filter(|record| passes(record.create_sequence, record.last_sequence)) {
            outcome = take(record);
        }
    } else {
        moment.each(span, values, passes, |record| {
            outcome = take(record);
            matches!(outcome, Ok(true))
        });
    }
    outcome.map(drop)
}

fn sort(found: &mut [RawRecord], target: Target, order: Order) {
    if order == Order::None && target == Target::Key {
        return;
    }
    let compare = |left: &RawRecord, right: &RawRecord| match target {
        Target::Key => left.key.cmp(&right.key),
        Target::Version => left.version.cmp(&right.version),
        Target::Create => left.create_sequence.cmp(&right.create_sequence),
        Target::Modify => left.last_sequence.cmp(&right.last_sequence),
        Target::Value => left.value.cmp(&right.value),
    };
    let directed = |ordering: Ordering| if order == Order::Descending { ordering.reverse() } else { ordering };
    found.sort_by(|left, right| directed(compare(left, right)));
}

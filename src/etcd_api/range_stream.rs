//! `KV/RangeStream`, new in etcd 3.7: a list at one revision in chunks. The last has the header, and how many keys there are
//! (`server/etcdserver/v3_server.go`).

use std::sync::Arc;

use etcd_client::proto::{PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbResponseHeader};
use futures_util::stream;
use tonic::Status;

use super::answers::{Messages, Room};
use super::face::Given;
use super::moment::Moment;
use super::range::{self, Bounds};

/// How many keys a chunk has: some 300 KB of ip entries, a few milliseconds of work, of which one is made when the last is taken.
const CHUNK_KEYS: i64 = 1_000;

/// A stream between two chunks.
struct Rest {
    moment: Arc<Moment>,
    request: PbRangeRequest,
    header: Option<PbResponseHeader>,
    room: Room,
    limit: i64,
    sent: i64,
    count: i64,
    is_over: bool,
}

/// Refuses what etcd refuses of a stream.
pub(super) fn check(request: &PbRangeRequest) -> Result<(), Status> {
    range::check(request)?;
    if !range::is_default_order(request) {
        return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
    }
    if range::has_revision_filters(request) {
        return Err(Status::unimplemented("RangeStream does not support revision filters"));
    }
    Ok(())
}

/// The chunks, each made when the one before it is taken.
pub(super) fn answer(
    moment: Arc<Moment>,
    request: PbRangeRequest,
    header: Option<PbResponseHeader>,
    room: Room,
) -> Messages<PbRangeStreamResponse> {
    let limit = if request.limit > 0 { request.limit } else { i64::MAX };
    let rest = Rest { moment, request, header, room, limit, sent: 0, count: 0, is_over: false };
    Box::pin(stream::try_unfold(rest, |rest| async move {
        if rest.is_over {
            return Ok(None);
        }
        let made = tokio::task::spawn_blocking(move || rest.next()).await;
        made.unwrap_or_else(|_| Err(Status::internal("this is a fault in meshkeep: its log has the details"))).map(Some)
    }))
}

impl Rest {
    fn next(mut self) -> Result<(PbRangeStreamResponse, Self), Status> {
        let given = Given::default();
        let is_first = self.sent == 0;
        self.request.limit = CHUNK_KEYS.min(self.limit - self.sent);
        let mut chunk_room = self.room.another();
        let mut chunk = range::answer(&self.moment, &self.request, &mut Bounds { room: &mut chunk_room, given: &given })?;
        // it stands until the next is made
        self.room = chunk_room;
        if is_first {
            self.count = chunk.count;
        }
        self.sent += i64::try_from(chunk.kvs.len()).unwrap_or(i64::MAX);
        self.is_over = self.request.count_only || !chunk.more || self.sent >= self.limit;
        if let Some(last) = chunk.kvs.last() {
            self.request.key = [last.key.as_slice(), &[0]].concat();
        }
        chunk = if self.is_over {
            PbRangeResponse { header: self.header, count: self.count, ..chunk }
        } else {
            PbRangeResponse { count: 0, more: false, ..chunk }
        };
        Ok((PbRangeStreamResponse { range_response: Some(chunk) }, self))
    }
}

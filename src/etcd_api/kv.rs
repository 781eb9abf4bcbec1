//! The `KV` service: reads only. Writes are refused with the error of an etcd whose user may only
//! read.

mod moment;
mod range;
mod range_stream;
mod sorted;
mod txn;

use std::ops::ControlFlow;
use std::sync::Arc;

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbRangeStreamResponse, PbResponseHeader, PbTxnRequest, PbTxnResponse,
};
use tonic::{Request, Response, Status};

use self::range::{Ended, Ranging};
use self::txn::Transacting;
use super::answers::writing::Writing;
use super::answers::{Messages, Room, written};
use super::face::{Face, client_of, header_at};
use super::refusal;
use super::span::Span;
use crate::admission::Client;
use crate::handle::Slice;

/// Maximum limit of a range that is answered at once, in about ten microseconds. Ranges of one key
/// are answered at once too.
const QUICK_LIMIT: i64 = 8;

/// The `KV` service.
#[derive(Debug)]
pub(super) struct Keys(pub(super) Arc<Face>);

#[tonic::async_trait]
impl PbKvService for Keys {
    type RangeStreamStream = Messages<PbRangeStreamResponse>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        self.0.counted(self.ranged(client_of(&request), request.into_inner()).await)
    }

    async fn range_stream(&self, request: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.0.counted(self.streamed(client_of(&request), request.into_inner()).await)
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        Err(refusal::permission_denied())
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        Err(refusal::permission_denied())
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        self.0.counted(self.transacted(client_of(&request), request.into_inner()).await)
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        Err(refusal::permission_denied())
    }
}

/// A request that is answered in slices.
trait Work: Send + 'static {
    /// Result that is known at the end of the answer.
    type Ended: Send + 'static;

    /// Continues until the slice is over.
    fn advance(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> ControlFlow<Result<Self::Ended, Status>>;
}

impl Work for Ranging {
    type Ended = Ended;

    fn advance(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> ControlFlow<Result<Ended, Status>> {
        Self::advance(self, slice, room, out)
    }
}

impl Work for Transacting {
    type Ended = ();

    fn advance(&mut self, slice: &mut Slice, room: &mut Room, out: &mut Writing) -> ControlFlow<Result<(), Status>> {
        Self::advance(self, slice, room, out)
    }
}

/// A partial answer.
struct Answering<W> {
    work: W,
    room: Room,
    out: Writing,
}

impl<W: Work> Answering<W> {
    fn new(work: W, room: Room, header: &PbResponseHeader) -> Self {
        let mut out = Writing::default();
        out.header(header);
        Self { work, room, out }
    }

    fn advance(&mut self, slice: &mut Slice) -> ControlFlow<Result<W::Ended, Status>> {
        self.work.advance(slice, &mut self.room, &mut self.out)
    }

    /// Completes the answer in slices, in turns with the requests of other clients.
    async fn in_turns(mut self, face: &Face, client: Client) -> Result<(W::Ended, Self), Status> {
        let scanner = face.enter(client)?;
        loop {
            let outcome;
            (outcome, self) = scanner.slice(self, Self::advance).await;
            if let ControlFlow::Break(ended) = outcome {
                return ended.map(|ended| (ended, self));
            }
        }
    }
}

impl Keys {
    async fn ranged(&self, client: Client, request: PbRangeRequest) -> Result<Response<PbRangeResponse>, Status> {
        range::check(&request)?;
        let key_bytes = range::key_bytes([(&request.key[..], &request.range_end[..])])?;
        let span = Span::new(&request.key, &request.range_end);
        self.0.may_read(&span)?;
        let is_newest = request.revision <= 0;
        let reading = if span.is_single && is_newest { self.0.reading_for(&request.key).await? } else { self.0.reading().await? };
        let is_few = span.is_single || (1..=QUICK_LIMIT).contains(&request.limit);
        let is_plain = range::is_default_order(&request) && !range::has_revision_filters(&request);
        let is_quick = is_few && is_newest && is_plain && span.is_text();
        let room = Room::new(if is_quick { &self.0.quick_answers } else { &self.0.answers }, client, key_bytes)?;
        let ranging = Ranging::new(&self.0, &reading, &request)?;
        let mut answering = Answering::new(ranging, room, &header_at(&reading));
        // a quick request waits for no other
        let at_once = is_quick.then(|| answering.advance(&mut Slice::begin(self.0.options.scans.pace().slice)));
        let (ended, Answering { room, mut out, .. }) = match at_once {
            Some(ControlFlow::Break(ended)) => (ended?, answering),
            _ => answering.in_turns(&self.0, client).await?,
        };
        if let Ended::All { more, count } = ended {
            out.end_of_range(more, count);
            if more && is_newest {
                self.0.pins.keep(client, &reading);
            }
        }
        Ok(written(room.pieces(out)))
    }

    async fn streamed(&self, client: Client, request: PbRangeRequest) -> Result<Response<Messages<PbRangeStreamResponse>>, Status> {
        range_stream::check(&request)?;
        let key_bytes = range::key_bytes([(&request.key[..], &request.range_end[..])])?;
        let span = Span::new(&request.key, &request.range_end);
        self.0.may_read(&span)?;
        let reading = self.0.reading().await?;
        let header = header_at(&reading);
        let (ranging, kept) = (Ranging::new(&self.0, &reading, &request)?, Room::new(&self.0.answers, client, key_bytes)?);
        range_stream::answer(Arc::clone(&self.0), client, ranging, kept, header).await
    }

    async fn transacted(&self, client: Client, request: PbTxnRequest) -> Result<Response<PbTxnResponse>, Status> {
        txn::check(&request)?;
        let room = Room::new(&self.0.answers, client, txn::key_bytes(&request)?)?;
        txn::spans(&request).iter().try_for_each(|span| self.0.may_read(span))?;
        let reading = self.0.reading().await?;
        let transacting = Transacting::new(&self.0, &reading, request)?;
        let answering = Answering::new(transacting, room, &header_at(&reading));
        let ((), Answering { room, out, .. }) = answering.in_turns(&self.0, client).await?;
        Ok(written(room.pieces(out)))
    }
}

//! `KV`: reads. What writes is refused as by an etcd whose user may only read.

use std::sync::Arc;

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbRangeStreamResponse, PbTxnRequest, PbTxnResponse,
};
use tonic::{Request, Response, Status};

use super::answers::Messages;
use super::face::{Face, Given, header};
use super::range::{self, Bounds};
use super::revisions::revision;
use super::span::Span;
use super::{range_stream, refusal, txn};

/// Ranges of one key, and pages of so few, are answered at once: some ten microseconds.
const QUICK_LIMIT: i64 = 8;

/// The service.
#[derive(Debug)]
pub(super) struct Keys(pub(super) Arc<Face>);

#[tonic::async_trait]
impl PbKvService for Keys {
    type RangeStreamStream = Messages<PbRangeStreamResponse>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        self.0.counted(self.ranged(request.into_inner()).await)
    }

    async fn range_stream(&self, request: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.0.counted(self.streamed(request.into_inner()).await)
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        Err(refusal::permission_denied())
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        Err(refusal::permission_denied())
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        self.0.counted(self.transacted(request.into_inner()).await)
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        Err(refusal::permission_denied())
    }
}

impl Keys {
    async fn ranged(&self, request: PbRangeRequest) -> Result<Response<PbRangeResponse>, Status> {
        range::check(&request)?;
        let span = Span::new(&request.key, &request.range_end);
        self.0.may_read(&span)?;
        let is_newest = request.revision <= 0;
        let reading = if span.is_single && is_newest { self.0.reading_for(&request.key).await? } else { self.0.reading().await? };
        let head = revision(reading.position().sequence);
        let is_few = span.is_single || (1..=QUICK_LIMIT).contains(&request.limit);
        let is_plain = range::is_default_order(&request) && !range::has_revision_filters(&request);
        let is_quick = is_few && is_newest && is_plain && span.is_text();
        let mut room = self.0.answers.room();
        let (mut answer, room) = if is_quick {
            let moment = self.0.moment(&reading, 0, |_| true)?;
            let answer = range::answer(&moment, &request, &mut Bounds { room: &mut room, given: &Given::default() })?;
            (answer, room)
        } else {
            let (face, reading) = (Arc::clone(&self.0), reading.clone());
            self.0
                .work(move |given| {
                    let moment = face.moment(&reading, request.revision, |key| span.holds(key))?;
                    let answer = range::answer(&moment, &request, &mut Bounds { room: &mut room, given })?;
                    Ok((answer, room))
                })
                .await?
        };
        if answer.more && is_newest {
            self.0.pins.keep(&reading);
        }
        answer.header = Some(header(&reading, head));
        Ok(room.hold(answer))
    }

    async fn streamed(&self, request: PbRangeRequest) -> Result<Response<Messages<PbRangeStreamResponse>>, Status> {
        range_stream::check(&request)?;
        let span = Span::new(&request.key, &request.range_end);
        self.0.may_read(&span)?;
        let reading = self.0.reading().await?;
        let (face, then, at) = (Arc::clone(&self.0), reading.clone(), request.revision);
        let moment = Arc::new(self.0.work(move |_| face.moment(&then, at, |key| span.holds(key))).await?);
        let header = Some(header(&reading, revision(reading.position().sequence)));
        Ok(Response::new(range_stream::answer(moment, request, header, self.0.answers.room())))
    }

    async fn transacted(&self, request: PbTxnRequest) -> Result<Response<PbTxnResponse>, Status> {
        txn::check(&request)?;
        txn::spans(&request).iter().try_for_each(|span| self.0.may_read(span))?;
        let reading = self.0.reading().await?;
        let (mut answer, room) = {
            let (face, reading, mut room) = (Arc::clone(&self.0), reading.clone(), self.0.answers.room());
            self.0
                .work(move |given| {
                    let moments = txn::Moments::of(&face, &reading, &request)?;
                    let answer = moments.answer(&request, &mut Bounds { room: &mut room, given })?;
                    Ok((answer, room))
                })
                .await?
        };
        answer.header = Some(header(&reading, revision(reading.position().sequence)));
        Ok(room.hold(answer))
    }
}

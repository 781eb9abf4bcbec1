//! The `KV` service: reads only. Writes are refused with the error of an etcd whose user may only
//! read.

mod range;
mod range_stream;
mod revision_view;
mod sorting;
mod txn;

use std::ops::ControlFlow;
use std::sync::Arc;

use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbRangeStreamResponse, PbResponseHeader, PbTxnRequest, PbTxnResponse,
};
use tonic::{Request, Response, Status};

use self::range::{RangeExecutor, RangeStop};
use self::txn::TxnExecutor;
use super::errors;
use super::key_interval::KeyInterval;
use super::responses::encoder::ResponseEncoder;
use super::responses::{MessageStream, ResponseMemory, encoded_response};
use super::state::{EtcdApi, client_of, newest_header};
use crate::admission::Client;
use crate::handle::WorkSlice;

/// Largest limit of a range that is answered immediately instead of in slices. Such an answer takes
/// about ten microseconds. Ranges of a single key are answered immediately too.
const QUICK_RANGE_KEYS_MAX: i64 = 8;

#[derive(Debug)]
pub(super) struct KvService(pub(super) Arc<EtcdApi>);

#[tonic::async_trait]
impl PbKvService for KvService {
    type RangeStreamStream = MessageStream<PbRangeStreamResponse>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Result<Response<PbRangeResponse>, Status> {
        self.0.count_outcome(self.answer_range(client_of(&request), request.into_inner()).await)
    }

    async fn range_stream(&self, request: Request<PbRangeRequest>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.0.count_outcome(self.answer_range_stream(client_of(&request), request.into_inner()).await)
    }

    async fn put(&self, _: Request<PbPutRequest>) -> Result<Response<PbPutResponse>, Status> {
        Err(errors::permission_denied())
    }

    async fn delete_range(&self, _: Request<PbDeleteRequest>) -> Result<Response<PbDeleteResponse>, Status> {
        Err(errors::permission_denied())
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Result<Response<PbTxnResponse>, Status> {
        self.0.count_outcome(self.answer_txn(client_of(&request), request.into_inner()).await)
    }

    async fn compact(&self, _: Request<PbCompactionRequest>) -> Result<Response<PbCompactionResponse>, Status> {
        Err(errors::permission_denied())
    }
}

/// A request that is answered in slices.
trait SlicedRequest: Send + 'static {
    /// Result of the request, known once the answer is complete.
    type Output: Send + 'static;

    /// Continues until the slice is over.
    fn advance(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> ControlFlow<Result<Self::Output, Status>>;
}

impl SlicedRequest for RangeExecutor {
    type Output = RangeStop;

    fn advance(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> ControlFlow<Result<RangeStop, Status>> {
        Self::advance(self, slice, memory, out)
    }
}

impl SlicedRequest for TxnExecutor {
    type Output = ();

    fn advance(
        &mut self,
        slice: &mut WorkSlice,
        memory: &mut ResponseMemory,
        out: &mut ResponseEncoder,
    ) -> ControlFlow<Result<(), Status>> {
        Self::advance(self, slice, memory, out)
    }
}

/// An answer in progress.
struct PartialResponse<R> {
    request: R,
    memory: ResponseMemory,
    out: ResponseEncoder,
}

impl<R: SlicedRequest> PartialResponse<R> {
    fn new(request: R, memory: ResponseMemory, header: &PbResponseHeader) -> Self {
        let mut out = ResponseEncoder::default();
        out.put_header(header);
        Self { request, memory, out }
    }

    fn advance(&mut self, slice: &mut WorkSlice) -> ControlFlow<Result<R::Output, Status>> {
        self.request.advance(slice, &mut self.memory, &mut self.out)
    }

    /// Completes the answer in slices, taking turns with the requests of other clients.
    async fn complete_in_slices(mut self, api: &EtcdApi, client: Client) -> Result<(R::Output, Self), Status> {
        let scanner = api.acquire_scanner(client)?;
        loop {
            let outcome;
            (outcome, self) = scanner.run_slice(self, Self::advance).await;
            if let ControlFlow::Break(stop) = outcome {
                return stop.map(|stop| (stop, self));
            }
        }
    }
}

impl KvService {
    async fn answer_range(&self, client: Client, request: PbRangeRequest) -> Result<Response<PbRangeResponse>, Status> {
        range::check(&request)?;
        let key_bytes = range::key_bytes([(&request.key[..], &request.range_end[..])])?;
        let interval = KeyInterval::new(&request.key, &request.range_end);
        self.0.check_read_permission(&interval)?;
        let is_newest = request.revision <= 0;
        let reading = if interval.is_single && is_newest { self.0.reading_for(&request.key).await? } else { self.0.reading().await? };
        let is_short = interval.is_single || (1..=QUICK_RANGE_KEYS_MAX).contains(&request.limit);
        let is_plain = range::is_default_order(&request) && !range::has_revision_filters(&request);
        let is_quick = is_short && is_newest && is_plain && interval.has_utf8_bounds();
        let memory =
            ResponseMemory::new(if is_quick { &self.0.quick_response_budget } else { &self.0.response_budget }, client, key_bytes)?;
        let executor = RangeExecutor::new(&self.0, &reading, &request)?;
        let mut response = PartialResponse::new(executor, memory, &newest_header(&reading));
        // a quick request does not wait for other requests
        let immediate_outcome = is_quick.then(|| response.advance(&mut WorkSlice::begin(self.0.options.scans.limits().slice)));
        let (stop, PartialResponse { memory, mut out, .. }) = match immediate_outcome {
            Some(ControlFlow::Break(stop)) => (stop?, response),
            _ => response.complete_in_slices(&self.0, client).await?,
        };
        if let RangeStop::Complete { more, count } = stop {
            out.put_range_end(more, count);
            if more && is_newest {
                self.0.pinned_snapshots.pin(client, &reading);
            }
        }
        Ok(encoded_response(memory.into_pieces(out)))
    }

    async fn answer_range_stream(
        &self,
        client: Client,
        request: PbRangeRequest,
    ) -> Result<Response<MessageStream<PbRangeStreamResponse>>, Status> {
        range_stream::check(&request)?;
        let key_bytes = range::key_bytes([(&request.key[..], &request.range_end[..])])?;
        let interval = KeyInterval::new(&request.key, &request.range_end);
        self.0.check_read_permission(&interval)?;
        let reading = self.0.reading().await?;
        let header = newest_header(&reading);
        let (executor, memory) =
            (RangeExecutor::new(&self.0, &reading, &request)?, ResponseMemory::new(&self.0.response_budget, client, key_bytes)?);
        range_stream::stream_chunks(Arc::clone(&self.0), client, executor, memory, header).await
    }

    async fn answer_txn(&self, client: Client, request: PbTxnRequest) -> Result<Response<PbTxnResponse>, Status> {
        txn::check(&request)?;
        let memory = ResponseMemory::new(&self.0.response_budget, client, txn::key_bytes(&request)?)?;
        txn::intervals(&request).iter().try_for_each(|interval| self.0.check_read_permission(interval))?;
        let reading = self.0.reading().await?;
        let executor = TxnExecutor::new(&self.0, &reading, request)?;
        let response = PartialResponse::new(executor, memory, &newest_header(&reading));
        let ((), PartialResponse { memory, out, .. }) = response.complete_in_slices(&self.0, client).await?;
        Ok(encoded_response(memory.into_pieces(out)))
    }
}

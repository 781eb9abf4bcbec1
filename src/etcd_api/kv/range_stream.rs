//! `KV/RangeStream`, new in etcd 3.7: a list at one revision in chunks.
//!
//! The last chunk has the header and the number of keys (`server/etcdserver/v3_server.go`).

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use etcd_client::proto::{PbRangeRequest, PbRangeStreamResponse, PbResponseHeader};
use futures_util::{StreamExt, TryStreamExt, stream};
use tonic::{Response, Status};

use super::range::{self, ChunkLimits, RangeExecutor, RangeStop};
use crate::admission::{Client, Scanner};
use crate::etcd_api::responses::encoder::ResponseEncoder;
use crate::etcd_api::responses::{MessageStream, ResponseMemory, streaming_response};
use crate::etcd_api::state::EtcdApi;

/// Maximum size of a chunk. 1,000 ipcache entries are about 300 KB and need a few slices of work.
const CHUNK_LIMITS: ChunkLimits = ChunkLimits { keys: 1_000, bytes: 512 << 10 };

/// State of a stream between two chunks.
struct ChunkStream {
    api: Arc<EtcdApi>,
    client: Client,
    scanner: Scanner,
    executor: RangeExecutor,
    _request_memory: ResponseMemory,
    header: PbResponseHeader,
    is_complete: bool,
}

/// Refuses the requests that etcd refuses for a stream.
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

/// Returns the stream of chunks. Each is built when the client has read the previous one.
///
/// The first chunk is built before this returns, so that an unavailable revision fails the call
/// itself.
pub(super) async fn stream_chunks(
    api: Arc<EtcdApi>,
    client: Client,
    executor: RangeExecutor,
    request_memory: ResponseMemory,
    header: PbResponseHeader,
) -> Result<Response<MessageStream<PbRangeStreamResponse>>, Status> {
    let scanner = api.acquire_scanner(client)?;
    let chunks = ChunkStream {
        api,
        client,
        scanner,
        executor: executor.in_chunks(CHUNK_LIMITS),
        _request_memory: request_memory,
        header,
        is_complete: false,
    };
    let (first, chunks) = chunks.next_chunk().await?;
    let following =
        stream::try_unfold(chunks, |chunks| async move { if chunks.is_complete { Ok(None) } else { chunks.next_chunk().await.map(Some) } });
    let all = stream::iter([Ok(first)]).chain(following);
    let pieces = all.map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok))).try_flatten();
    Ok(streaming_response(Box::pin(stream::empty()), Box::pin(pieces)))
}

impl ChunkStream {
    async fn next_chunk(mut self) -> Result<(Vec<Bytes>, Self), Status> {
        let (mut memory, mut out) = (ResponseMemory::new(&self.api.response_budget, self.client, 0)?, ResponseEncoder::default());
        let start = out.begin_message();
        let mut response = (self.executor, memory, out);
        let stop = loop {
            let outcome;
            (outcome, response) =
                self.scanner.run_slice(response, |(executor, memory, out), slice| executor.advance(slice, memory, out)).await;
            if let ControlFlow::Break(stop) = outcome {
                break stop?;
            }
        };
        (self.executor, memory, out) = response;
        if let RangeStop::Complete { more, count } = stop {
            out.put_header(&self.header);
            out.put_range_end(more, count);
            self.is_complete = true;
        }
        out.end_chunk(&start);
        Ok((memory.into_pieces(out), self))
    }
}

//! `KV/RangeStream`, new in etcd 3.7: a list at one revision in chunks.
//!
//! The last chunk has the header and the number of keys (`server/etcdserver/v3_server.go`).

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use etcd_client::proto::{PbRangeRequest, PbRangeStreamResponse, PbResponseHeader};
use futures_util::{StreamExt, TryStreamExt, stream};
use tonic::{Response, Status};

use super::range::{self, Chunk, Ended, Ranging};
use crate::admission::{Client, Scanner};
use crate::etcd_api::answers::writing::Writing;
use crate::etcd_api::answers::{Messages, Room, streamed};
use crate::etcd_api::face::Face;

/// Size of a chunk: about 300 KB of ipcache entries, or a few slices of work.
const CHUNK: Chunk = Chunk { keys: 1_000, bytes: 512 << 10 };

/// State of a stream between two chunks.
struct Rest {
    face: Arc<Face>,
    client: Client,
    scanner: Scanner,
    ranging: Ranging,
    /// Memory of the request.
    _kept: Room,
    header: PbResponseHeader,
    is_over: bool,
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

/// Returns the stream of chunks. Each is made when the client has read the previous one.
///
/// The first chunk is made before this returns, so that an unavailable revision fails the call
/// itself.
pub(super) async fn answer(
    face: Arc<Face>,
    client: Client,
    ranging: Ranging,
    kept: Room,
    header: PbResponseHeader,
) -> Result<Response<Messages<PbRangeStreamResponse>>, Status> {
    let scanner = face.enter(client)?;
    let rest = Rest { face, client, scanner, ranging: ranging.in_chunks(CHUNK), _kept: kept, header, is_over: false };
    let (first, rest) = rest.next().await?;
    let following = stream::try_unfold(rest, |rest| async move { if rest.is_over { Ok(None) } else { rest.next().await.map(Some) } });
    let chunks = stream::iter([Ok(first)]).chain(following);
    let pieces = chunks.map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok))).try_flatten();
    Ok(streamed(Box::pin(stream::empty()), Box::pin(pieces)))
}

impl Rest {
    async fn next(mut self) -> Result<(Vec<Bytes>, Self), Status> {
        let (mut room, mut out) = (Room::new(&self.face.answers, self.client, 0)?, Writing::default());
        let mark = out.open();
        let mut making = (self.ranging, room, out);
        let ended = loop {
            let outcome;
            (outcome, making) = self.scanner.slice(making, |(ranging, room, out), slice| ranging.advance(slice, room, out)).await;
            if let ControlFlow::Break(ended) = outcome {
                break ended?;
            }
        };
        (self.ranging, room, out) = making;
        if let Ended::All { more, count } = ended {
            out.header(&self.header);
            out.end_of_range(more, count);
            self.is_over = true;
        }
        out.close_chunk(&mark);
        Ok((room.pieces(out), self))
    }
}

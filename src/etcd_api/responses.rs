//! Memory of answers, limited per client, and the HTTP bodies that send them.

pub(super) mod encoder;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::errors;
use crate::admission::{Client, MemoryBudget, MemoryPermit};
use encoder::ResponseEncoder;

/// Maximum bytes of all answers together. One client can use two thirds, which is enough for a list
/// of the largest mesh (1,000,000 keys, 330 MB).
pub(super) const RESPONSE_BYTES_MAX: usize = 512 << 20;

/// Maximum bytes of all quick answers (one key, or a short page) together: about 200,000 answers.
///
/// Their budget is separate, so that a client with unread lists can still request a key.
pub(super) const QUICK_RESPONSE_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes by which the reservation for an answer grows in one step. Below this size, a
/// reservation roughly doubles with each step.
const GROWTH_BYTES_MAX: usize = 64 << 10;

/// Stream of messages, or of bytes, that can end with an error.
pub(super) type MessageStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Memory of one answer, reserved as the answer grows.
#[derive(Debug)]
pub(super) struct ResponseMemory {
    permit: MemoryPermit,
    used: usize,
}

/// Response extension with encoded pieces, which replace the body that tonic created.
#[derive(Clone)]
struct EncodedPieces(Arc<Mutex<Option<MessageStream<Bytes>>>>);

/// Body of a response: created by tonic, or encoded by this module in pieces.
pub struct ResponseBody(BodySource);

enum BodySource {
    Tonic(Body),
    Encoded(MessageStream<Bytes>),
    Finished,
}

impl ResponseMemory {
    /// Reserves the bytes of the request, which stay in memory while it is answered.
    pub(super) fn new(budget: &Arc<MemoryBudget>, client: Client, request_bytes: usize) -> Result<Self, Status> {
        let permit = MemoryBudget::try_acquire(budget, client, request_bytes).map_err(errors::response_budget_exhausted)?;
        Ok(Self { permit, used: request_bytes })
    }

    /// Reserves more bytes for the response.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if the budget or the client's share is used up.
    pub(super) fn charge(&mut self, bytes: usize) -> Result<(), Status> {
        self.used += bytes;
        let missing = self.used.saturating_sub(self.permit.bytes());
        if missing == 0 {
            return Ok(());
        }
        let step = missing.max(self.used.min(GROWTH_BYTES_MAX));
        self.permit.grow(step).or_else(|_| self.permit.grow(missing)).map_err(errors::response_budget_exhausted)
    }

    /// Subtracts bytes that the response released.
    pub(super) const fn release(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Returns the encoded pieces. Each frees its share of the memory once it is sent.
    pub(super) fn into_pieces(mut self, response: ResponseEncoder) -> Vec<Bytes> {
        let frames = response.into_frames().into_iter();
        frames.map(|piece| self.permit.split(piece.capacity()).attach_to(piece)).collect()
    }
}

/// Creates a response from encoded pieces. They replace tonic's encoding of the message.
pub(super) fn encoded_response<T: Default>(pieces: Vec<Bytes>) -> tonic::Response<T> {
    streaming_response(T::default(), Box::pin(stream::iter(pieces.into_iter().map(Ok))))
}

/// Creates a response from a stream of encoded pieces. They replace tonic's encoding of `message`.
pub(super) fn streaming_response<T>(message: T, pieces: MessageStream<Bytes>) -> tonic::Response<T> {
    let mut response = tonic::Response::new(message);
    response.extensions_mut().insert(EncodedPieces(Arc::new(Mutex::new(Some(pieces)))));
    response
}

impl ResponseBody {
    /// Replaces the response's body with the encoded pieces from its extensions, if there are any.
    pub(super) fn from_response(mut response: Response<Body>) -> Response<Self> {
        let encoded = response.extensions_mut().remove::<EncodedPieces>();
        let encoded = encoded.and_then(|encoded| encoded.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        response.map(|body| Self(encoded.map_or(BodySource::Tonic(body), BodySource::Encoded)))
    }
}

/// Returns the gRPC trailers for the end of a stream.
fn grpc_trailers(end: Result<(), Status>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    match end {
        Ok(()) => drop(trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"))),
        Err(status) => drop(status.add_header(&mut trailers)),
    }
    trailers
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = match &mut self.0 {
            BodySource::Tonic(body) => return Pin::new(body).poll_frame(context),
            BodySource::Encoded(pieces) => ready!(pieces.as_mut().poll_next(context)),
            BodySource::Finished => return Poll::Ready(None),
        };
        let end = match next {
            Some(Ok(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
            Some(Err(status)) => Err(status),
            None => Ok(()),
        };
        self.0 = BodySource::Finished;
        Poll::Ready(Some(Ok(Frame::trailers(grpc_trailers(end)))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            BodySource::Tonic(body) => body.is_end_stream(),
            BodySource::Encoded(_) => false,
            BodySource::Finished => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodySource::Tonic(body) => body.size_hint(),
            BodySource::Encoded(_) | BodySource::Finished => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::ClientShare;

    #[test]
    fn memory_grows_with_a_response_and_is_released_once_it_is_sent() {
        let budget = MemoryBudget::new(RESPONSE_BYTES_MAX, ClientShare::TimesFree(2));
        let memory = || ResponseMemory::new(&budget, Client::Local, 0).unwrap();
        let can_reserve_all_but = |bytes: usize| memory().charge(RESPONSE_BYTES_MAX - bytes).is_ok();
        let mut memory = memory();
        (0..100).for_each(|_| memory.charge(1_000).unwrap());
        assert!(can_reserve_all_but(128 << 10) && !can_reserve_all_but(99_999), "the reservation grows with the response");
        let mut response = ResponseEncoder::default();
        response.put_range_end(true, 1);
        let pieces = memory.into_pieces(response);
        assert_eq!(pieces.concat(), [0, 0, 0, 0, 4, 3 << 3, 1, 4 << 3, 1]);
        assert!(can_reserve_all_but(9) && !can_reserve_all_but(8), "a small response reserves only its own bytes");
        drop(pieces);
        assert!(can_reserve_all_but(0));
    }
}

//! Memory of answers, limited per client, and the HTTP bodies that send them.

pub(super) mod writing;

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use super::refusal;
use crate::admission::{Budget, Client, Held};
use writing::Writing;

/// Maximum bytes of all answers together. One client can use two thirds: a list of the largest mesh
/// (1,000,000 keys, 330 MB).
pub(super) const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Maximum bytes of all quick answers (one key, or a short page) together: about 200,000 answers.
///
/// Their budget is separate, so that a client with unread lists can still request a key.
pub(super) const QUICK_BYTES_MAX: usize = 64 << 20;

/// Upper bound on the growth step of an answer's memory, in bytes. Below it, the reservation about
/// doubles.
const STEP_BYTES_MAX: usize = 64 << 10;

/// Stream of messages, or of bytes, that can end with an error.
pub(super) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Memory of one answer, reserved as the answer grows.
#[derive(Debug)]
pub(super) struct Room {
    held: Held,
    used: usize,
}

/// Response extension that replaces the body that tonic made.
#[derive(Clone)]
struct Written(Arc<Mutex<Option<Messages<Bytes>>>>);

/// Body of an answer: made by tonic, or encoded by this module in pieces.
pub struct AnswerBody(Kind);

enum Kind {
    Tonic(Body),
    Written(Messages<Bytes>),
    Over,
}

impl Room {
    /// Reserves the bytes of the request, which stay in memory while it is answered.
    pub(super) fn new(budget: &Arc<Budget>, client: Client, request_bytes: usize) -> Result<Self, Status> {
        let held = Budget::take(budget, client, request_bytes).map_err(refusal::no_room)?;
        Ok(Self { held, used: request_bytes })
    }

    /// Adds bytes to the answer.
    ///
    /// # Errors
    /// Returns `ResourceExhausted` if the budget or the client's share is used up.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Status> {
        self.used += bytes;
        let lacking = self.used.saturating_sub(self.held.bytes());
        if lacking == 0 {
            return Ok(());
        }
        let step = lacking.max(self.used.min(STEP_BYTES_MAX));
        self.held.grow(step).or_else(|_| self.held.grow(lacking)).map_err(refusal::no_room)
    }

    /// Subtracts bytes that the answer released.
    pub(super) const fn give(&mut self, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Returns the encoded pieces. Each frees its share of the memory once it is sent.
    pub(super) fn pieces(mut self, written: Writing) -> Vec<Bytes> {
        let framed = written.framed().into_iter();
        framed.map(|piece| self.held.split(piece.capacity()).with(piece)).collect()
    }
}

/// Creates a response from encoded pieces. They replace tonic's encoding of the message.
pub(super) fn written<T: Default>(pieces: Vec<Bytes>) -> tonic::Response<T> {
    streamed(T::default(), Box::pin(stream::iter(pieces.into_iter().map(Ok))))
}

/// Creates a response from a stream of encoded pieces. They replace tonic's encoding of `message`.
pub(super) fn streamed<T>(message: T, pieces: Messages<Bytes>) -> tonic::Response<T> {
    let mut response = tonic::Response::new(message);
    response.extensions_mut().insert(Written(Arc::new(Mutex::new(Some(pieces)))));
    response
}

impl AnswerBody {
    /// Replaces the response's body with the encoded pieces from its extensions, if there are any.
    pub(super) fn of(mut response: Response<Body>) -> Response<Self> {
        let written = response.extensions_mut().remove::<Written>();
        let written = written.and_then(|written| written.0.lock().unwrap_or_else(PoisonError::into_inner).take());
        response.map(|body| Self(written.map_or(Kind::Tonic(body), Kind::Written)))
    }
}

/// Returns the gRPC trailers for the end of a stream.
fn trailers(end: Result<(), Status>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    match end {
        Ok(()) => drop(trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"))),
        Err(status) => drop(status.add_header(&mut trailers)),
    }
    trailers
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = match &mut self.0 {
            Kind::Tonic(body) => return Pin::new(body).poll_frame(context),
            Kind::Written(pieces) => ready!(pieces.as_mut().poll_next(context)),
            Kind::Over => return Poll::Ready(None),
        };
        let end = match next {
            Some(Ok(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
            Some(Err(status)) => Err(status),
            None => Ok(()),
        };
        self.0 = Kind::Over;
        Poll::Ready(Some(Ok(Frame::trailers(trailers(end)))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Tonic(body) => body.is_end_stream(),
            Kind::Written(_) => false,
            Kind::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Tonic(body) => body.size_hint(),
            Kind::Written(_) | Kind::Over => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Share;

    #[test]
    fn room_is_taken_as_an_answer_grows_and_free_when_it_is_sent() {
        let budget = Budget::new(ANSWER_BYTES_MAX, Share::TimesFree(2));
        let room = || Room::new(&budget, Client::Local, 0).unwrap();
        let is_all_but = |bytes: usize| room().take(ANSWER_BYTES_MAX - bytes).is_ok();
        let mut held = room();
        (0..100).for_each(|_| held.take(1_000).unwrap());
        assert!(is_all_but(128 << 10) && !is_all_but(99_999), "it is taken as it grows");
        let mut writing = Writing::default();
        writing.end_of_range(true, 1);
        let pieces = held.pieces(writing);
        assert_eq!(pieces.concat(), [0, 0, 0, 0, 4, 3 << 3, 1, 4 << 3, 1]);
        assert!(is_all_but(9) && !is_all_but(8), "a small answer takes what it has");
        drop(pieces);
        assert!(is_all_but(0));
    }
}

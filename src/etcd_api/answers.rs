//! The room that answers take while they are made and sent: a list of a million keys without a limit is one answer of 330 MB.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::Stream;
use http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;

use super::refusal;

/// What all answers together may take: one list of the largest mesh that there is (1,000,000 keys), and half as much again for others.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Room is taken in pieces of so many bytes: small answers take one.
const PIECE_BYTES: usize = 64 << 10;

/// Messages of a stream, or its end.
pub(super) type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The room of all answers.
#[derive(Debug)]
pub(super) struct Answers(Arc<Semaphore>);

/// The room of one answer, taken as it grows.
#[derive(Debug)]
pub(super) struct Room {
    all: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

/// Room that is free again once the last of these is gone.
#[derive(Debug, Clone)]
pub(super) struct Held(#[expect(dead_code, reason = "it is held, not read")] Arc<OwnedSemaphorePermit>);

/// An answer's body with the room that it takes.
#[derive(Debug)]
pub struct HeldBody {
    body: Body,
    _held: Option<Held>,
}

impl Default for Answers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(ANSWER_BYTES_MAX / PIECE_BYTES)))
    }
}

impl Answers {
    pub(super) fn room(&self) -> Room {
        Room { all: Arc::clone(&self.0), permit: None, bytes: 0 }
    }
}

impl Room {
    /// Takes so many bytes more.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Status> {
        self.bytes += bytes;
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let lacking = self.bytes.div_ceil(PIECE_BYTES).saturating_sub(held);
        if lacking == 0 {
            return Ok(());
        }
        let more = u32::try_from(lacking).map_err(|_| refusal::too_many_requests())?;
        let more = Arc::clone(&self.all).try_acquire_many_owned(more).map_err(|_| refusal::too_many_requests())?;
        match &mut self.permit {
            Some(permit) => permit.merge(more),
            None => self.permit = Some(more),
        }
        Ok(())
    }

    /// Room for another answer.
    pub(super) fn another(&self) -> Self {
        Self { all: Arc::clone(&self.all), permit: None, bytes: 0 }
    }

    /// Keeps what was taken for as long as the answer is sent.
    pub(super) fn hold<T>(self, answer: T) -> tonic::Response<T> {
        let mut response = tonic::Response::new(answer);
        if let Some(permit) = self.permit {
            response.extensions_mut().insert(Held(Arc::new(permit)));
        }
        response
    }
}

impl HeldBody {
    /// The answer, with the room that its extensions hold.
    pub(super) fn of(mut response: Response<Body>) -> Response<Self> {
        let held = response.extensions_mut().remove::<Held>();
        response.map(|body| Self { body, _held: held })
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_as_an_answer_grows_and_free_when_it_is_sent() {
        let answers = Answers::default();
        let mut room = answers.room();
        (0..100).for_each(|_| room.take(1_000).unwrap());
        assert_eq!(answers.0.available_permits(), ANSWER_BYTES_MAX / PIECE_BYTES - 2);
        assert!(answers.room().take(ANSWER_BYTES_MAX).is_err());
        let response = room.hold(());
        assert!(answers.room().take(ANSWER_BYTES_MAX).is_err(), "it is not sent yet");
        drop(response);
        answers.room().take(ANSWER_BYTES_MAX).unwrap();
    }
}

//! One request on its connection: the time limit of its body, and the delivery of its answer.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::seats::Seat;

/// Transport of a request. Each connection adds it to the extensions of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// TCP: the `Host` header is checked.
    Tcp,
    /// Unix socket: browsers cannot connect to it.
    Unix,
}

/// A request from its headers to the last byte of its answer. Each connection adds it to its
/// requests' extensions.
#[derive(Debug)]
pub(crate) struct Visit {
    seat: Arc<Seat>,
    let_in: AtomicBool,
}

/// Body of a request with a deadline.
struct TimedBody {
    incoming: Incoming,
    allowed: Duration,
    deadline: Pin<Box<Sleep>>,
    visit: Arc<Visit>,
}

/// Error: the body did not arrive within its time limit.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive within {0:?}")]
pub(crate) struct BodyOverdue(Duration);

impl BodyOverdue {
    /// Returns whether `error` or one of its sources is a [`BodyOverdue`].
    pub(crate) fn caused(error: &(dyn Error + 'static)) -> bool {
        error.is::<Self>() || error.source().is_some_and(Self::caused)
    }
}

/// Body of an answer that is being sent.
pub(super) struct Answer {
    body: Body,
    visit: Arc<Visit>,
    /// Set while a piece is in delivery: the connection has not asked for the next one yet.
    is_given: bool,
}

impl Visit {
    pub(super) fn begin(seat: &Arc<Seat>) -> Arc<Self> {
        seat.request_begins();
        Arc::new(Self { seat: Arc::clone(seat), let_in: AtomicBool::new(false) })
    }

    /// Records that the request passed the access checks, and whether it presented a token.
    pub(crate) fn let_in(&self, shows_token: bool) {
        if !self.let_in.swap(true, Ordering::Relaxed) {
            self.seat.request_is_let_in(shows_token);
        }
    }

    /// Wraps the body of the request with a deadline of `allowed` from now.
    pub(super) fn body(self: &Arc<Self>, incoming: Incoming, allowed: Duration) -> Body {
        if incoming.is_end_stream() {
            return Body::empty();
        }
        let deadline = Box::pin(sleep_until(Instant::now() + allowed));
        Body::new(TimedBody { incoming, allowed, deadline, visit: Arc::clone(self) })
    }

    pub(super) fn answer(self: Arc<Self>, body: Body) -> Answer {
        Answer { body, visit: self, is_given: false }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.seat.request_ends(*self.let_in.get_mut());
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(BodyOverdue(self.allowed)))));
        }
        Pin::new(&mut self.incoming).poll_frame(context).map_err(axum::Error::new)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for TimedBody {
    fn drop(&mut self) {
        if !self.incoming.is_end_stream() {
            self.visit.seat.leaves_unread();
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.is_given) {
            self.visit.seat.answer_is_asked();
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            self.is_given = true;
            self.visit.seat.answer_is_given();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.is_given {
            self.visit.seat.answer_is_asked();
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("visit", &self.visit).finish_non_exhaustive()
    }
}

//! One HTTP exchange on a connection: the time limit of the request body, and the delivery of the
//! response body.

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

use super::connection_limiter::ConnectionPermit;

/// Transport of a request. Each connection adds it to the extensions of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// TCP: the `Host` header is checked.
    Tcp,
    /// Unix socket: browsers cannot connect to it.
    Unix,
}

/// A request from its headers to the last byte of its response. Each connection adds it to the
/// extensions of its requests.
#[derive(Debug)]
pub(crate) struct HttpExchange {
    permit: Arc<ConnectionPermit>,
    is_admitted: AtomicBool,
}

/// Body of a request with a deadline.
struct TimedBody {
    incoming: Incoming,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
    exchange: Arc<HttpExchange>,
}

/// Error: the body did not arrive within its time limit.
#[derive(Debug, thiserror::Error)]
#[error("the body did not arrive within {0:?}")]
pub(crate) struct BodyTimeout(Duration);

impl BodyTimeout {
    /// Returns whether `error` or one of its sources is a [`BodyTimeout`].
    pub(crate) fn is_cause_of(error: &(dyn Error + 'static)) -> bool {
        error.is::<Self>() || error.source().is_some_and(Self::is_cause_of)
    }
}

/// Body of a response that is being sent.
pub(super) struct TrackedResponseBody {
    body: Body,
    exchange: Arc<HttpExchange>,
    /// Set while a frame is in delivery: the connection has not polled for the next one yet.
    is_frame_pending: bool,
}

impl HttpExchange {
    pub(super) fn start(permit: &Arc<ConnectionPermit>) -> Arc<Self> {
        permit.request_started();
        Arc::new(Self { permit: Arc::clone(permit), is_admitted: AtomicBool::new(false) })
    }

    /// Records that the request passed the access checks, and whether it presented a token.
    pub(crate) fn admit(&self, shows_token: bool) {
        if !self.is_admitted.swap(true, Ordering::Relaxed) {
            self.permit.request_admitted(shows_token);
        }
    }

    /// Wraps the body of the request with a deadline of `limit` from now.
    pub(super) fn wrap_request(self: &Arc<Self>, incoming: Incoming, limit: Duration) -> Body {
        if incoming.is_end_stream() {
            return Body::empty();
        }
        let deadline = Box::pin(sleep_until(Instant::now() + limit));
        Body::new(TimedBody { incoming, limit, deadline, exchange: Arc::clone(self) })
    }

    pub(super) fn wrap_response(self: Arc<Self>, body: Body) -> TrackedResponseBody {
        TrackedResponseBody { body, exchange: self, is_frame_pending: false }
    }
}

impl Drop for HttpExchange {
    fn drop(&mut self) {
        self.permit.request_ended(*self.is_admitted.get_mut());
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.deadline.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(axum::Error::new(BodyTimeout(self.limit)))));
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
            self.exchange.permit.mark_undrained();
        }
    }
}

impl HttpBody for TrackedResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.is_frame_pending) {
            self.exchange.permit.frame_written();
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(Some(Ok(_)))) {
            self.is_frame_pending = true;
            self.exchange.permit.frame_passed();
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

impl Drop for TrackedResponseBody {
    fn drop(&mut self) {
        if self.is_frame_pending {
            self.exchange.permit.frame_written();
        }
    }
}

impl fmt::Debug for TrackedResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrackedResponseBody").field("exchange", &self.exchange).finish_non_exhaustive()
    }
}

//! Write time-out for each HTTP/2 stream.
//!
//! A body is passed to hyper in pieces, one at a time. The connection drops a piece once it has
//! written it. If a client gives no flow-control window for too long, its stream is reset.
//! [`super::stall`] cannot notice this, because the socket still accepts the data of other streams.
//! HTTP/1.1 bodies are passed through: there, [`super::stall`] suffices.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;

/// Maximum size of a piece in bytes: the default HTTP/2 flow-control window (RFC 9113 §6.9.2).
///
/// A client that reads 1 KB/s accepts such a piece about once a minute, and large answers still
/// keep the connection busy.
const PIECE_BYTES_MAX: usize = 64 << 10;

tokio::task_local! {
    /// State of the stream that the current task serves.
    static TAKING: Arc<Taking>;
}

/// Executor for hyper's tasks, one per HTTP/2 stream. It tracks them, so that shutdown waits for
/// them.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    tasks: TaskTracker,
    stall_max: Duration,
}

/// Delivery state of a stream: whether a piece waits to be written.
#[derive(Debug)]
struct Taking {
    stall_max: Duration,
    state: Mutex<State>,
    given: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Time at which the pending piece was passed to the connection; `None` without one.
    since: Option<Instant>,
    /// Task that waits to pass the next piece.
    next: Option<Waker>,
}

/// Body of an answer that passes its next piece only after the last one was written.
pub(super) struct Pieces {
    body: Body,
    /// Rest of the last chunk of the body.
    rest: Bytes,
    taking: Arc<Taking>,
}

/// Bytes passed to the connection. Its drop marks them as written.
struct Piece {
    bytes: Bytes,
    taking: Arc<Taking>,
}

impl Tracked {
    pub(super) const fn new(tasks: TaskTracker, stall_max: Duration) -> Self {
        Self { tasks, stall_max }
    }
}

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let taking = Arc::new(Taking { stall_max: self.stall_max, state: Mutex::default(), given: Notify::new() });
        // boxed here because the async block would reserve space for the task twice
        let (mut task, stalls) = (Box::pin(task), Arc::clone(&taking));
        self.tasks.spawn(TAKING.scope(taking, async move {
            tokio::select! {
                _ = &mut task => {}
                // dropping the task resets the stream and frees its data in the connection
                () = stalls.overdue() => tracing::debug!("reset a stream whose client did not read"),
            }
        }));
    }
}

impl Taking {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a piece has been pending for longer than `stall_max`.
    async fn overdue(&self) {
        loop {
            let since = self.state().since;
            match since {
                None => self.given.notified().await,
                Some(since) if since.elapsed() >= self.stall_max => return,
                Some(since) => sleep_until(since + self.stall_max).await,
            }
        }
    }

    /// Waits until the last piece was written.
    fn poll_taken(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.since.is_none() {
            return Poll::Ready(());
        }
        state.next = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Pieces {
    /// Splits the body of an HTTP/2 answer into pieces. Returns any other body unchanged.
    pub(super) fn of(body: Body) -> Body {
        match TAKING.try_with(Arc::clone) {
            Ok(taking) if !body.is_end_stream() => Body::new(Self { body, rest: Bytes::new(), taking }),
            _ => body,
        }
    }

    fn give(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(PIECE_BYTES_MAX));
        self.taking.state().since = Some(Instant::now());
        self.taking.given.notify_one();
        Bytes::from_owner(Piece { bytes, taking: Arc::clone(&self.taking) })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut state = self.taking.state();
        state.since = None;
        let next = state.next.take();
        drop(state);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // also after the last piece: otherwise that one could wait in the connection without a
        // time-out
        ready!(self.taking.poll_taken(context));
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.give()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream() && self.taking.state().since.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

//! Answers over HTTP/2, piece by piece: a stream whose client takes none for too long is reset, whatever the others of its connection do.
//!
//! Owns: when a piece counts as taken, which is when the connection has written it and lets go of it. It holds what its client has given no window
//! for, while the socket takes what other streams have, so that [`super::stall`] never sees it. Deliberately lacks: HTTP/1.1, where that does.

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

/// How large a piece is at most: the window that a client gives unless it says otherwise (RFC 9113 §6.9.2), so that within a minute whoever
/// reads 1 KB/s takes one, and slices of a large answer keep the connection busy.
const PIECE_BYTES_MAX: usize = 64 << 10;

tokio::task_local! {
    /// That of the stream whose task this is.
    static TAKING: Arc<Taking>;
}

/// Runs hyper's own tasks, one for each HTTP/2 stream, where they are waited for.
#[derive(Debug, Clone)]
pub(super) struct Tracked {
    tasks: TaskTracker,
    stall_max: Duration,
}

/// Whether a piece of a stream waits to be taken.
#[derive(Debug)]
struct Taking {
    stall_max: Duration,
    state: Mutex<State>,
    given: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// When the piece was given that is not taken yet.
    since: Option<Instant>,
    /// Whoever wants to give the next.
    next: Option<Waker>,
}

/// An answer's body, of which the next piece is given once the last is taken.
pub(super) struct Pieces {
    body: Body,
    /// What is left of the last chunk.
    rest: Bytes,
    taking: Arc<Taking>,
}

/// A piece on its way.
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
        // boxed here and not in the block, which would have room for it twice
        let (mut task, stalls) = (Box::pin(task), Arc::clone(&taking));
        self.tasks.spawn(TAKING.scope(taking, async move {
            tokio::select! {
                _ = &mut task => {}
                // dropped, the stream is reset, and what the connection has of it is gone
                () = stalls.overdue() => tracing::debug!("reset a stream of which nothing was taken"),
            }
        }));
    }
}

impl Taking {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a piece was not taken for too long.
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

    /// Waits until the last piece is taken.
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
    /// A body of an answer over HTTP/2 by its pieces; any other as it is.
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
        // also behind the last, which would otherwise wait in the connection with nobody to ask how long
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

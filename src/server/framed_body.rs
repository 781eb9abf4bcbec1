//! Write time-out for each HTTP/2 stream.
//!
//! A body is passed to hyper in frames, one at a time. The connection drops a frame once it has
//! written it. If a client gives no flow-control window for too long, its stream is reset.
//! [`super::write_timeout`] cannot notice this, because the socket still accepts the data of other
//! streams. HTTP/1.1 bodies are passed through: there, [`super::write_timeout`] suffices.

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

/// Maximum size of a frame in bytes: about the default HTTP/2 flow-control window of 65,535 bytes
/// (RFC 9113 §6.9.2).
///
/// A client that reads 1 KB/s accepts such a frame about once a minute, and large answers still
/// keep the connection busy.
const FRAME_BYTES_MAX: usize = 64 << 10;

tokio::task_local! {
    /// Delivery state of the stream that the current task serves.
    static DELIVERY: Arc<FrameDelivery>;
}

/// Executor for hyper's tasks, one per HTTP/2 stream. It tracks them, so that shutdown waits for
/// them.
#[derive(Debug, Clone)]
pub(super) struct StreamExecutor {
    tasks: TaskTracker,
    write_timeout: Duration,
}

/// Delivery state of one stream, with its write time-out.
#[derive(Debug)]
struct FrameDelivery {
    write_timeout: Duration,
    state: Mutex<DeliveryState>,
    frame_passed: Notify,
}

#[derive(Debug, Default)]
struct DeliveryState {
    /// Time at which the pending frame was passed to the connection; `None` without one.
    pending_since: Option<Instant>,
    /// Task that waits to pass the next frame.
    waker: Option<Waker>,
}

/// Body of a response that passes its next frame only after the last one was written.
pub(super) struct FramedBody {
    body: Body,
    /// Rest of the last chunk of the body.
    rest: Bytes,
    delivery: Arc<FrameDelivery>,
}

/// Data frame passed to the connection. Dropping it marks it as written.
struct PendingFrame {
    bytes: Bytes,
    delivery: Arc<FrameDelivery>,
}

impl StreamExecutor {
    pub(super) const fn new(tasks: TaskTracker, write_timeout: Duration) -> Self {
        Self { tasks, write_timeout }
    }
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, task: F) {
        let delivery = Arc::new(FrameDelivery { write_timeout: self.write_timeout, state: Mutex::default(), frame_passed: Notify::new() });
        // boxed here because the async block would reserve space for the task twice
        let (mut task, watched) = (Box::pin(task), Arc::clone(&delivery));
        self.tasks.spawn(DELIVERY.scope(delivery, async move {
            tokio::select! {
                           _ = &mut task => {}
                           // dropping the task resets the stream and frees its data in the
                           // connection
            () = watched.timed_out() => tracing::debug!("reset a stream whose client did not read"),
                       }
        }));
    }
}

impl FrameDelivery {
    fn state(&self) -> MutexGuard<'_, DeliveryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a frame has been pending for longer than `write_timeout`.
    async fn timed_out(&self) {
        loop {
            let pending_since = self.state().pending_since;
            match pending_since {
                None => self.frame_passed.notified().await,
                Some(since) if since.elapsed() >= self.write_timeout => return,
                Some(since) => sleep_until(since + self.write_timeout).await,
            }
        }
    }

    /// Waits until the last frame was written.
    fn poll_written(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.pending_since.is_none() {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl FramedBody {
    /// Splits the body of an HTTP/2 response into frames. Returns any other body unchanged.
    pub(super) fn wrap(body: Body) -> Body {
        match DELIVERY.try_with(Arc::clone) {
            Ok(delivery) if !body.is_end_stream() => Body::new(Self { body, rest: Bytes::new(), delivery }),
            _ => body,
        }
    }

    fn next_frame(&mut self) -> Bytes {
        let bytes = self.rest.split_to(self.rest.len().min(FRAME_BYTES_MAX));
        self.delivery.state().pending_since = Some(Instant::now());
        self.delivery.frame_passed.notify_one();
        Bytes::from_owner(PendingFrame { bytes, delivery: Arc::clone(&self.delivery) })
    }
}

impl AsRef<[u8]> for PendingFrame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PendingFrame {
    fn drop(&mut self) {
        let mut state = self.delivery.state();
        state.pending_since = None;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl HttpBody for FramedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        // also after the last frame, which could otherwise wait in the connection without a
        // time-out
        ready!(self.delivery.poll_written(context));
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        Poll::Ready(Some(Ok(Frame::data(self.next_frame()))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream() && self.delivery.state().pending_since.is_none()
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

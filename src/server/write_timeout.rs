//! Write time-out for a socket: closes a connection whose client no longer reads.
//!
//! Without it, a client that vanished would keep its stream open.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Maximum time that a write may stay pending before the connection is closed
/// (docs/use/api/streams.md).
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time to read and discard the rest of a request after its answer.
///
/// If the socket were closed earlier, the kernel would send a reset, which can discard the answer
/// before the client reads it (RFC 9112 §9.6). One second is one and a half round trips over the
/// longest lines.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// Socket with a deadline for each write.
#[derive(Debug)]
pub(super) struct WriteTimeout<T> {
    io: T,
    /// Deadline of the pending write. Most connections never need one.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Set if the client may still be sending a body that nobody reads.
    is_undrained: Arc<AtomicBool>,
    /// End of the drain phase, which begins once the writing side is shut down.
    drain_deadline: Option<Pin<Box<Sleep>>>,
}

impl<T> WriteTimeout<T> {
    pub(super) const fn new(io: T, is_undrained: Arc<AtomicBool>) -> Self {
        Self { io, deadline: None, is_undrained, drain_deadline: None }
    }

    /// Returns the outcome of a write unchanged, or `TimedOut` after [`WRITE_TIMEOUT`] without
    /// progress.
    fn check_write<R>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if outcome.is_ready() {
            self.deadline = None;
            return outcome;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeout<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeout<T> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, bytes);
        self.check_write(context, outcome)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.check_write(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(context);
        self.check_write(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.drain_deadline.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
            if !self.is_undrained.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let this = &mut *self;
        let deadline = this.drain_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(DRAIN_MAX)));
        let mut discarded = [0; 4096];
        loop {
            if deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut buffer = ReadBuf::new(&mut discarded);
            match ready!(Pin::new(&mut this.io).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_after_a_minute_without_progress() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut ours = WriteTimeout::new(ours, Arc::default());
        ours.write_all(b"full").await.unwrap();
        let began = Instant::now();
        let stalled = tokio::time::timeout(2 * WRITE_TIMEOUT, ours.write_all(b"more"));
        assert_eq!(stalled.await.expect("must give up").unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= WRITE_TIMEOUT);
        theirs.read_exact(&mut [0; 4]).await.unwrap();
        ours.write_all(b"more").await.unwrap();
    }
}

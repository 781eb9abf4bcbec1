//! One open stream: pulls from its subscription whenever the socket takes more.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use super::encode::{Encoder, Encoding};
use crate::api::problem::{Code, Problem};
use crate::api::state::ApiState;
use crate::handle::{Reading, Subscription};
use crate::model::Sequence;

/// A bookmark at least this often (api.md): well below the 60 s after which proxies drop a silent connection.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(15);

/// The state of one open stream.
#[derive(Debug)]
pub(super) struct Reader {
    state: ApiState,
    subscription: Subscription,
    /// Changes with every new snapshot.
    signal: watch::Receiver<Sequence>,
    encoding: Encoding,
    /// Encoded and not taken yet: at most what one look at a snapshot gave.
    ready: VecDeque<Bytes>,
    next_bookmark: Instant,
    ended: bool,
    /// The writer is gone: the process is about to end.
    writer_gone: bool,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    pub(super) fn new(
        state: ApiState,
        subscription: Subscription,
        signal: watch::Receiver<Sequence>,
        encoding: Encoding,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let ready = encoding.preamble().into_iter().collect();
        let next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
        Self { state, subscription, signal, encoding, ready, next_bookmark, ended: false, writer_gone: false, _permit: permit }
    }

    /// The body of the response.
    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        unfold(self, |mut reader| async move { reader.chunk().await.map(|chunk| (Ok(chunk), reader)) })
    }

    async fn chunk(&mut self) -> Option<Bytes> {
        loop {
            if let Some(chunk) = self.ready.pop_front() {
                return Some(chunk);
            }
            if self.ended {
                return None;
            }
            if !self.fill() {
                self.wait().await;
            }
            // a long scan that matches nothing must not hold the thread
            tokio::task::yield_now().await;
        }
    }

    /// Looks at the newest snapshot once. False when there is nothing to do but wait.
    fn fill(&mut self) -> bool {
        // before the snapshot is taken, so that what comes after it wakes the reader
        self.signal.borrow_and_update();
        let mut encoder = Encoder::new(self.encoding);
        let Some(reading) = self.state.handle.try_reading() else {
            encoder.error(Problem::new(Code::Loading, "the store is loading again: connect again in a moment"));
            self.ended = true;
            self.ready.extend(encoder.finish());
            return true;
        };
        if self.state.stop.is_cancelled() || self.writer_gone {
            self.bookmark(&mut encoder, &reading);
            self.ended = true;
            self.ready.extend(encoder.finish());
            return true;
        }
        let items = self.subscription.next(&reading);
        encoder.items(&items, &reading);
        if Instant::now() >= self.next_bookmark {
            self.bookmark(&mut encoder, &reading);
        }
        self.ready.extend(encoder.finish());
        !self.ready.is_empty() || !self.subscription.is_current(&reading)
    }

    fn bookmark(&mut self, encoder: &mut Encoder, reading: &Reading) {
        self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
        if let Some(position) = self.subscription.bookmark(reading) {
            encoder.bookmark(position, reading);
        }
    }

    async fn wait(&mut self) {
        tokio::select! {
            changed = self.signal.changed() => self.writer_gone = changed.is_err(),
            () = tokio::time::sleep_until(self.next_bookmark) => {}
            () = self.state.stop.cancelled() => {}
        }
    }
}

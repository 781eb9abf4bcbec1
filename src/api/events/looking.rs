//! Scans of a stream that is behind: of the newest snapshot, at once if it lacks little, otherwise
//! in turns with other [scans](crate::admission).
//!
//! A stream that is closed while it waits gets no turn. If it is closed during a scan, the scan is
//! its last.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::sync::WaitForCancellationFutureOwned;

use super::Streams;
use super::encode::Encoder;
use super::group::GroupKey;
use super::hub::Member;
use super::meter::{Made, Room};
use crate::handle::{LookBounds, Reading, Slice, Subscription};

/// A stream that reads from snapshots, without a group.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) key: GroupKey,
    pub(super) subscription: Subscription,
}

/// Result of a scan.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Encoded events, and the membership in a group if the stream is now current.
    Told(Made, Option<Member>),
    /// There is no more memory for encoded events.
    NoRoom,
    /// The store is no longer loaded.
    NotLoaded,
}

/// A scan that waits for its turn or runs.
pub(super) struct Looking {
    look: Pin<Box<dyn Future<Output = (Outcome, Box<Alone>)> + Send>>,
    /// Wakes the stream when the process stops, because the stream then has to send its end.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Alone {
    /// Scans once.
    pub(super) fn look(&mut self, streams: &Streams, room: &Room, bounds: LookBounds, reading: &Reading) -> Outcome {
        let Self { key, subscription } = self;
        let chunks = subscription.tell_up_to(reading, bounds, |items, bytes| {
            streams.meters.counted(items, |items| Encoder::encoded(key.encoding, items, bytes, reading))
        });
        let made = room.made(chunks.into_iter().flatten().collect());
        let member = if subscription.is_current(reading) { streams.hub.join(key, subscription.sent(), reading) } else { None };
        Outcome::Told(made, member)
    }

    /// Scans once when it is the client's turn, with the newest snapshot and the free memory of
    /// that moment.
    pub(super) fn look_in_turn(self: Box<Self>, streams: &Streams, room: &Room) -> Looking {
        let (streams, room) = (streams.clone(), room.clone());
        let stop = Box::pin(streams.stop.clone().cancelled_owned());
        let scanner = streams.scans.enter_stream(room.client());
        let look = move |alone: &mut Box<Self>, slice: &mut Slice| {
            slice.look();
            let Some(reading) = streams.handle.try_reading() else { return Outcome::NotLoaded };
            let Some(bounds) = room.look_bounds() else { return Outcome::NoRoom };
            alone.look(&streams, &room, bounds, &reading)
        };
        Looking { look: Box::pin(async move { scanner.slice(self, look).await }), stop }
    }
}

impl Looking {
    /// Polls the scan. The task is also woken when the process stops.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Outcome, Box<Alone>)> {
        let _ = self.stop.as_mut().poll(context);
        self.look.as_mut().poll(context)
    }
}

impl fmt::Debug for Looking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Looking").finish_non_exhaustive()
    }
}

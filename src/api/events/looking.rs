//! What a stream that is behind does: one look at the newest snapshot, on the spot where it lacks little, else when it is its client's turn
//! among [scans](crate::admission).
//!
//! Owns: when a stream waits and when it looks. A stream that is closed meanwhile gets no turn, and a look that works then is its last. Deliberately lacks: what
//! becomes of the bytes (`reader`).

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

/// A stream that reads by itself.
#[derive(Debug)]
pub(super) struct Alone {
    pub(super) key: GroupKey,
    pub(super) subscription: Subscription,
}

/// What came of a look.
#[derive(Debug)]
pub(super) enum Outcome {
    /// What it made, and a seat among others if nothing is lacking behind it.
    Told(Made, Option<Member>),
    /// There is no room for what it would make any more.
    NoRoom,
    /// There is no snapshot any more.
    NotLoaded,
}

/// A look that waits for its turn or works.
pub(super) struct Looking {
    look: Pin<Box<dyn Future<Output = (Outcome, Box<Alone>)> + Send>>,
    /// The stream has something else to say then.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Alone {
    /// Looks once.
    pub(super) fn look(&mut self, streams: &Streams, room: &Room, bounds: LookBounds, reading: &Reading) -> Outcome {
        let Self { key, subscription } = self;
        let chunks = subscription.tell_up_to(reading, bounds, |items, bytes| {
            streams.meters.counted(items, |items| Encoder::encoded(key.encoding, items, bytes, reading))
        });
        let made = room.made(chunks.into_iter().flatten().collect());
        let member = if subscription.is_current(reading) { streams.hub.join(key, subscription.sent(), reading) } else { None };
        Outcome::Told(made, member)
    }

    /// Looks once when it is its turn, at what is the newest snapshot then and within the room that there is then.
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
    /// The task is also woken when the process ends.
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

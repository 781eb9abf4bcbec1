//! Scan of the newest snapshot for a stream that is behind.
//!
//! A stream that lacks only a few changes scans at once. Any other stream queues its scan among the
//! other long [scans](crate::admission). A stream that is closed while its scan is queued does not
//! scan. If it is closed during a scan, that scan is its last.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_util::sync::WaitForCancellationFutureOwned;

use super::StreamContext;
use super::change_router::GroupMember;
use super::encode::Encoder;
use super::group::GroupKey;
use super::stream_metrics::{ClientBacklog, EncodedScan};
use crate::handle::{BatchLimits, Reading, Subscription, WorkSlice};

/// A stream that reads from snapshots, without a group.
#[derive(Debug)]
pub(super) struct CatchUp {
    pub(super) key: GroupKey,
    pub(super) subscription: Subscription,
}

/// Result of a scan.
#[derive(Debug)]
pub(super) enum CatchUpOutcome {
    /// Encoded events, and the membership in a group if the stream is now current.
    Encoded(EncodedScan, Option<GroupMember>),
    /// The memory for encoded events is full.
    NoMemory,
    /// The store is no longer loaded.
    NotLoaded,
}

/// A scan that is queued or runs.
pub(super) struct PendingScan {
    scan: Pin<Box<dyn Future<Output = (CatchUpOutcome, Box<CatchUp>)> + Send>>,
    /// Wakes the stream when the process stops, because the stream then has to send its last event.
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl CatchUp {
    /// Scans a snapshot once.
    pub(super) fn scan(
        &mut self,
        streams: &StreamContext,
        backlog: &ClientBacklog,
        bounds: BatchLimits,
        reading: &Reading,
    ) -> CatchUpOutcome {
        let Self { key, subscription } = self;
        let chunks = subscription.encode_next(reading, bounds, |items, bytes| {
            streams.stream_metrics.count_items(items, |items| Encoder::encoded(key.encoding, items, bytes, reading))
        });
        let encoded = backlog.charge(chunks.into_iter().flatten().collect());
        let member = if subscription.is_current(reading) { streams.change_router.join(key, subscription.sent(), reading) } else { None };
        CatchUpOutcome::Encoded(encoded, member)
    }

    /// Queues one scan, which runs as one of the client's slices. Only when it starts does the scan
    /// read the newest snapshot and check the free memory.
    pub(super) fn schedule_scan(self: Box<Self>, streams: &StreamContext, backlog: &ClientBacklog) -> PendingScan {
        let (streams, backlog) = (streams.clone(), backlog.clone());
        let stop = Box::pin(streams.stop.clone().cancelled_owned());
        let scanner = streams.scans.admit_stream(backlog.client());
        let scan = move |catch_up: &mut Box<Self>, slice: &mut WorkSlice| {
            slice.count_row();
            let Some(reading) = streams.handle.try_reading() else { return CatchUpOutcome::NotLoaded };
            let Some(bounds) = backlog.scan_bounds() else { return CatchUpOutcome::NoMemory };
            catch_up.scan(&streams, &backlog, bounds, &reading)
        };
        PendingScan { scan: Box::pin(async move { scanner.run_slice(self, scan).await }), stop }
    }
}

impl PendingScan {
    /// Polls the scan. The task is also woken when the process stops.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<(CatchUpOutcome, Box<CatchUp>)> {
        let _ = self.stop.as_mut().poll(context);
        self.scan.as_mut().poll(context)
    }
}

impl fmt::Debug for PendingScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PendingScan").finish_non_exhaustive()
    }
}

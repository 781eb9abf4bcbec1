//! How many bytes of large decoded values are held at one time in the whole process, by requests and by what comes from remotes.
//!
//! A value may be many times as large once it is decoded, and the writers of a remote decide how many times. Code that decodes a large one takes
//! room here first; what is small takes none. Room is taken once for each piece of work and given back when that is done, and nobody who has some
//! waits for more, so that all get on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What is smaller takes no room. A thousand of them at one time, one for each request that may be under way, are 256 MiB.
const SMALL_BYTES: u64 = 256 << 10;

/// Room is counted in KiB, so that it fits the semaphore's numbers.
const UNIT: u64 = 1 << 10;

/// How long a request waits for room: others have it for as long as they decode and write a value, some 100 ms for the largest.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The room for decoded values. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DecodedBudget {
    room: Arc<Semaphore>,
    units: u32,
    /// How long a request waits.
    wait: Duration,
}

/// Room for something decoded; free again when dropped.
#[derive(Debug)]
pub struct DecodedRoom(#[expect(dead_code, reason = "held for its end")] Option<OwnedSemaphorePermit>);

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoDecodedRoom {
    /// It would not fit, however much room others have.
    #[error(
        "it takes some {bytes} bytes once it is decoded, and all that is decoded at one time may take {bytes_max} (--decoded-max-bytes)"
    )]
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What there is.
        bytes_max: u64,
    },
    /// Others have it.
    #[error("too much is being decoded at the moment: ask again in a moment, or allow more (--decoded-max-bytes)")]
    Taken,
}

impl Default for DecodedBudget {
    /// Three of the largest endpoint slices at one time; the same as the ring of changes may take.
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

impl DecodedBudget {
    /// Room for so many bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        // 4 TiB at most
        let units = u32::try_from(bytes_max / UNIT).unwrap_or(u32::MAX).max(1);
        let permits = usize::try_from(units).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(permits)), units, wait: WAIT_MAX }
    }

    /// The number of bytes that everything may take together.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        u64::from(self.units) * UNIT
    }

    /// Waits for room, for as long as it takes. What is larger than all of it gets all of it: it has come already.
    pub async fn hold(&self, bytes: u64) -> DecodedRoom {
        if bytes < SMALL_BYTES {
            return DecodedRoom(None);
        }
        // it is never closed
        DecodedRoom(Arc::clone(&self.room).acquire_many_owned(units_of(bytes).min(self.units)).await.ok())
    }

    /// Waits for room for a request, on a thread that may block.
    ///
    /// # Errors
    /// [`NoDecodedRoom`] where there is none for too long, or never.
    pub fn hold_blocking(&self, bytes: u64) -> Result<DecodedRoom, NoDecodedRoom> {
        if bytes < SMALL_BYTES {
            return Ok(DecodedRoom(None));
        }
        let units = units_of(bytes);
        if units > self.units {
            return Err(NoDecodedRoom::TooLarge { bytes, bytes_max: self.bytes_max() });
        }
        let waiting = async { tokio::time::timeout(self.wait, Arc::clone(&self.room).acquire_many_owned(units)).await };
        let room = match Arc::clone(&self.room).try_acquire_many_owned(units) {
            Ok(room) => Some(room),
            Err(_) => tokio::runtime::Handle::current().block_on(waiting).ok().and_then(Result::ok),
        };
        room.map(|room| DecodedRoom(Some(room))).ok_or(NoDecodedRoom::Taken)
    }
}

fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn large_values_wait_for_each_other_and_small_ones_for_nobody() {
        let budget = DecodedBudget::new(1 << 20);
        let first = budget.hold(600 << 10).await;
        assert!(budget.hold(600 << 10).now_or_never().is_none());
        assert!(budget.hold(SMALL_BYTES - 1).now_or_never().is_some());
        drop(first);
        // what is larger than all has all, alone
        let all = budget.hold(1 << 30).await;
        assert!(budget.hold(SMALL_BYTES).now_or_never().is_none());
        drop(all);
        assert!(budget.hold(SMALL_BYTES).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_request_waits_for_a_while_and_is_told_why() {
        let budget = DecodedBudget::new(1 << 20);
        assert!(matches!(budget.hold_blocking(2 << 20), Err(NoDecodedRoom::TooLarge { bytes: 2_097_152, bytes_max: 1_048_576 })));
        let held = budget.hold_blocking(1 << 20).unwrap();
        let other = DecodedBudget { wait: Duration::from_millis(20), ..budget.clone() };
        let asking = tokio::task::spawn_blocking(move || other.hold_blocking(1 << 20).map(drop));
        assert_eq!(asking.await.unwrap(), Err(NoDecodedRoom::Taken));
        drop(held);
        assert!(budget.hold_blocking(1 << 20).is_ok());
    }
}

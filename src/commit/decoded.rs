//! Limit on the memory for large decoded values in the whole process, for requests and for data
//! from remotes.
//!
//! A decoded value can be many times larger than its encoding, and a remote cluster controls by how
//! much. Code that decodes a large value first acquires a permit here; small values need none. A
//! permit is acquired once per piece of work and released at its end. A holder of a permit never
//! waits for a second one, so there is no deadlock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Size below which a value needs no permit. A thousand such values, one for each concurrent
/// request, are 256 MiB.
const SMALL_BYTES: u64 = 256 << 10;

/// Number of bytes per semaphore permit. Counted in KiB, a budget of up to 4 TiB fits the `u32`
/// that the semaphore accepts.
const PERMIT_BYTES: u64 = 1 << 10;

/// Maximum time that a request waits for a permit. The other requests hold their permits while they
/// decode and write a value, which takes about 100 ms for the largest.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Memory for decoded values. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DecodedBudget {
    permits: Arc<Semaphore>,
    units: u32,
    /// Maximum time that a request waits.
    wait: Duration,
}

/// Permit for the memory of decoded values. Dropping it releases the memory.
#[derive(Debug)]
pub struct DecodedPermit(#[expect(dead_code, reason = "releases the memory when it is dropped")] Option<OwnedSemaphorePermit>);

/// Reason why a permit is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodedBudgetError {
    /// The value is larger than the whole budget.
    #[error("it needs about {bytes} bytes when decoded, and the limit for all decoded values is {bytes_max} (--decoded-max-bytes)")]
    TooLarge {
        /// Size of the decoded value.
        bytes: u64,
        /// Size of the budget.
        bytes_max: u64,
    },
    /// Other requests and clusters use too much of the budget.
    #[error("other requests use the memory for decoded values: try again in a few seconds, or raise --decoded-max-bytes")]
    Exhausted,
}

impl Default for DecodedBudget {
    /// Enough for three of the largest endpoint slices at a time, and four times the limit of the
    /// ring of changes ([`crate::feed::RING_BYTES_MAX`]).
    fn default() -> Self {
        Self::new(256 << 20)
    }
}

impl DecodedBudget {
    /// Creates a budget of this number of bytes, rounded down to KiB.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        // saturates at 4 TiB
        let units = u32::try_from(bytes_max / PERMIT_BYTES).unwrap_or(u32::MAX).max(1);
        let permits = usize::try_from(units).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { permits: Arc::new(Semaphore::new(permits)), units, wait: WAIT_MAX }
    }

    /// Returns the size of the budget in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> u64 {
        u64::from(self.units) * PERMIT_BYTES
    }

    /// Waits for a permit without a time limit. A value larger than the whole budget gets all of
    /// it, because it has already been received.
    pub async fn reserve(&self, bytes: u64) -> DecodedPermit {
        if bytes < SMALL_BYTES {
            return DecodedPermit(None);
        }
        // the semaphore is never closed
        DecodedPermit(Arc::clone(&self.permits).acquire_many_owned(units_of(bytes).min(self.units)).await.ok())
    }

    /// Waits for a permit for a request. Must be called on a thread that may block.
    ///
    /// # Errors
    /// [`DecodedBudgetError`] if the value is larger than the budget, or the wait takes too long.
    pub fn reserve_blocking(&self, bytes: u64) -> Result<DecodedPermit, DecodedBudgetError> {
        if bytes < SMALL_BYTES {
            return Ok(DecodedPermit(None));
        }
        let units = units_of(bytes);
        if units > self.units {
            return Err(DecodedBudgetError::TooLarge { bytes, bytes_max: self.bytes_max() });
        }
        let waiting = async { tokio::time::timeout(self.wait, Arc::clone(&self.permits).acquire_many_owned(units)).await };
        let permit = match Arc::clone(&self.permits).try_acquire_many_owned(units) {
            Ok(permit) => Some(permit),
            Err(_) => tokio::runtime::Handle::current().block_on(waiting).ok().and_then(Result::ok),
        };
        permit.map(|permit| DecodedPermit(Some(permit))).ok_or(DecodedBudgetError::Exhausted)
    }
}

fn units_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn only_large_values_wait_for_permits() {
        let budget = DecodedBudget::new(1 << 20);
        let first = budget.reserve(600 << 10).await;
        assert!(budget.reserve(600 << 10).now_or_never().is_none());
        assert!(budget.reserve(SMALL_BYTES - 1).now_or_never().is_some());
        drop(first);
        // a value larger than the budget gets all of it, alone
        let all = budget.reserve(1 << 30).await;
        assert!(budget.reserve(SMALL_BYTES).now_or_never().is_none());
        drop(all);
        assert!(budget.reserve(SMALL_BYTES).now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_request_fails_if_too_large_or_after_the_maximum_wait() {
        let budget = DecodedBudget::new(1 << 20);
        assert!(matches!(budget.reserve_blocking(2 << 20), Err(DecodedBudgetError::TooLarge { bytes: 2_097_152, bytes_max: 1_048_576 })));
        let permit = budget.reserve_blocking(1 << 20).unwrap();
        let other = DecodedBudget { wait: Duration::from_millis(20), ..budget.clone() };
        let request = tokio::task::spawn_blocking(move || other.reserve_blocking(1 << 20).map(drop));
        assert_eq!(request.await.unwrap(), Err(DecodedBudgetError::Exhausted));
        drop(permit);
        assert!(budget.reserve_blocking(1 << 20).is_ok());
    }
}

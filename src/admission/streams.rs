//! Limits on open streams: in total and per client.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::client::Client;

/// Maximum number of open streams. At 12 KiB each (docs/develop/http.md §5.2) they use 120 MB.
pub const STREAM_COUNT_MAX: usize = 10_000;

/// Maximum number of open streams per client: a tenth of all, so that one client that leaks streams
/// does not lock out the others. It is also enough for an ingress with many readers behind it.
const STREAMS_PER_CLIENT_MAX: usize = STREAM_COUNT_MAX / 10;

/// Limiter of the open streams of one API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StreamLimiter {
    total: Arc<Semaphore>,
    per_client: Arc<Mutex<HashMap<Client, usize>>>,
}

/// Permit for one open stream. Dropping it frees the slot.
#[derive(Debug)]
pub struct StreamPermit {
    limiter: StreamLimiter,
    client: Client,
    _permit: OwnedSemaphorePermit,
}

/// Reason why a stream is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamLimitError {
    /// [`STREAM_COUNT_MAX`] streams are open.
    #[error("too many streams are open: close some, or try again later")]
    Total,
    /// The client has reached its own limit.
    #[error("this client has {STREAMS_PER_CLIENT_MAX} streams open, which is the limit: close some, or try again later")]
    PerClient,
}

impl StreamLimiter {
    /// Creates a limiter without open streams.
    #[must_use]
    pub fn new() -> Self {
        Self { total: Arc::new(Semaphore::new(STREAM_COUNT_MAX)), per_client: Arc::default() }
    }

    /// Counts one more open stream of `client`.
    ///
    /// # Errors
    /// [`StreamLimitError`] if a limit is reached.
    pub fn try_acquire(&self, client: Client) -> Result<StreamPermit, StreamLimitError> {
        let permit = Arc::clone(&self.total).try_acquire_owned().map_err(|_| StreamLimitError::Total)?;
        let mut per_client = self.per_client.lock().unwrap_or_else(PoisonError::into_inner);
        let count = per_client.entry(client).or_default();
        if *count >= STREAMS_PER_CLIENT_MAX {
            return Err(StreamLimitError::PerClient);
        }
        *count += 1;
        Ok(StreamPermit { limiter: self.clone(), client, _permit: permit })
    }
}

impl StreamPermit {
    /// Returns the client that the stream counts for.
    #[must_use]
    pub const fn client(&self) -> Client {
        self.client
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        let mut per_client = self.limiter.per_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = per_client.entry(self.client) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        Client::from_ip(text.parse().unwrap())
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:0:0:9"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.7"), client("192.0.2.7"));
        assert_ne!(client("192.0.2.7"), client("192.0.2.8"));
        assert_ne!(client("::1"), Client::Local);
    }

    #[test]
    fn one_client_may_open_a_tenth_of_all_streams() {
        let limiter = StreamLimiter::new();
        let mut permits: Vec<StreamPermit> =
            (0..STREAMS_PER_CLIENT_MAX).map(|_| limiter.try_acquire(client("192.0.2.1")).unwrap()).collect();
        assert_eq!(limiter.try_acquire(client("192.0.2.1")).unwrap_err(), StreamLimitError::PerClient);
        for last in 2..=10 {
            permits.extend((0..STREAMS_PER_CLIENT_MAX).map(|_| limiter.try_acquire(client(&format!("192.0.2.{last}"))).unwrap()));
        }
        assert_eq!(limiter.try_acquire(Client::Local).unwrap_err(), StreamLimitError::Total);
        permits.remove(0);
        assert!(limiter.try_acquire(client("192.0.2.1")).is_ok());
        permits.clear();
        assert_eq!((limiter.total.available_permits(), limiter.per_client.lock().unwrap().len()), (STREAM_COUNT_MAX, 0));
    }
}

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

/// Counter of open streams of one API. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Places {
    all: Arc<Semaphore>,
    taken: Arc<Mutex<HashMap<Client, usize>>>,
}

/// Permit for one open stream. Dropping it frees the slot.
#[derive(Debug)]
pub struct StreamPermit {
    places: Places,
    client: Client,
    _permit: OwnedSemaphorePermit,
}

/// Reason why a stream is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// [`STREAM_COUNT_MAX`] streams are open.
    #[error("too many streams are open: close some, or try again later")]
    InAll,
    /// The client has reached its own limit.
    #[error("this client has {STREAMS_PER_CLIENT_MAX} streams open, which is the limit: close some, or try again later")]
    OfClient,
}

impl Places {
    /// Creates a counter without open streams.
    #[must_use]
    pub fn new() -> Self {
        Self { all: Arc::new(Semaphore::new(STREAM_COUNT_MAX)), taken: Arc::default() }
    }

    /// Counts one more open stream of `client`.
    ///
    /// # Errors
    /// [`NoPlace`] if a limit is reached.
    pub fn take(&self, client: Client) -> Result<StreamPermit, NoPlace> {
        let permit = Arc::clone(&self.all).try_acquire_owned().map_err(|_| NoPlace::InAll)?;
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(client).or_default();
        if *count >= STREAMS_PER_CLIENT_MAX {
            return Err(NoPlace::OfClient);
        }
        *count += 1;
        Ok(StreamPermit { places: self.clone(), client, _permit: permit })
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
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = taken.entry(self.client) {
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
        Client::at(text.parse().unwrap())
    }

    #[test]
    fn a_client_is_an_address_or_an_ipv6_network() {
        assert_eq!(client("2001:db8::1"), client("2001:db8::ffff:0:0:9"));
        assert_ne!(client("2001:db8::1"), client("2001:db8:0:1::1"));
        assert_eq!(client("::ffff:192.0.2.7"), client("192.0.2.7"));
        assert_ne!(client("192.0.2.7"), client("192.0.2.8"));
        assert_ne!(client("::1"), Client::Local);
    }

    #[test]
    fn one_client_gets_a_tenth_and_ten_get_all() {
        let places = Places::new();
        let mut held: Vec<StreamPermit> = (0..STREAMS_PER_CLIENT_MAX).map(|_| places.take(client("192.0.2.1")).unwrap()).collect();
        assert_eq!(places.take(client("192.0.2.1")).unwrap_err(), NoPlace::OfClient);
        for last in 2..=10 {
            held.extend((0..STREAMS_PER_CLIENT_MAX).map(|_| places.take(client(&format!("192.0.2.{last}"))).unwrap()));
        }
        assert_eq!(places.take(Client::Local).unwrap_err(), NoPlace::InAll);
        held.remove(0);
        assert!(places.take(client("192.0.2.1")).is_ok());
        held.clear();
        assert_eq!((places.all.available_permits(), places.taken.lock().unwrap().len()), (STREAM_COUNT_MAX, 0));
    }
}

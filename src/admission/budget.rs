//! Memory that clients share, counted in bytes.
//!
//! The memory is for answers that are being written or sent, and for values that requests keep. A
//! [`Held`] is a client's permit for some bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::client::Client;

/// Part of a budget that one client may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// A multiple of the bytes that are free.
    ///
    /// With 1, a single client gets half of the budget and two clients get a third each. With 2, a
    /// single client gets two thirds and two clients get two fifths each. A new client always finds
    /// some memory. See Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
    /// packet switches", 1998.
    TimesFree(usize),
    /// A fixed number of bytes.
    Bytes(usize),
}

/// Number of bytes that all clients together may hold, with the bytes that each client holds now.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    share: Share,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    by_client: HashMap<Client, usize>,
}

/// Permit for some bytes. Dropping it returns them to the budget.
#[derive(Debug)]
pub struct Held {
    budget: Arc<Budget>,
    client: Client,
    bytes: usize,
}

/// Reason why a client gets no more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoom {
    /// The client has its share.
    OfClient,
    /// The budget has fewer free bytes than requested.
    InAll,
}

/// Bytes of an answer with their permit.
struct Owned {
    bytes: Vec<u8>,
    _held: Held,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Budget {
    /// Creates a budget of `bytes_max`, of which one client may have `share`.
    #[must_use]
    pub fn new(bytes_max: usize, share: Share) -> Arc<Self> {
        Arc::new(Self { bytes_max, share, state: Mutex::default(), freed: Notify::new() })
    }

    /// Takes bytes from the budget without waiting.
    ///
    /// # Errors
    /// [`NoRoom`] if the budget or the client's share has fewer bytes left.
    pub fn take(budget: &Arc<Self>, client: Client, bytes: usize) -> Result<Held, NoRoom> {
        budget.add(client, bytes)?;
        Ok(Held { budget: Arc::clone(budget), client, bytes })
    }

    /// Creates a permit for zero bytes, which can grow.
    #[must_use]
    pub fn none(budget: &Arc<Self>, client: Client) -> Held {
        Held { budget: Arc::clone(budget), client, bytes: 0 }
    }

    /// Waits until `bytes` are free for this client.
    ///
    /// The caller must not have a permit of this budget, otherwise two callers could wait for each
    /// other.
    pub async fn wait(budget: &Arc<Self>, client: Client, bytes: usize) -> Held {
        loop {
            let freed = budget.freed.notified();
            tokio::pin!(freed);
            // from here on no notification is missed
            freed.as_mut().enable();
            if let Ok(held) = Self::take(budget, client, bytes) {
                return held;
            }
            freed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: Client, bytes: usize) -> Result<(), NoRoom> {
        let mut state = self.state();
        let (free, own) = (self.bytes_max.saturating_sub(state.taken), state.by_client.get(&client).copied().unwrap_or(0));
        if bytes > free {
            return Err(NoRoom::InAll);
        }
        let share = match self.share {
            Share::TimesFree(times) => free.saturating_mul(times),
            Share::Bytes(bytes) => bytes,
        };
        if own.saturating_add(bytes) > share {
            return Err(NoRoom::OfClient);
        }
        state.taken += bytes;
        *state.by_client.entry(client).or_default() += bytes;
        Ok(())
    }

    fn resize(&self, client: Client, before: usize, after: usize) {
        let mut state = self.state();
        state.taken = state.taken - before + after;
        let own = state.by_client.entry(client).or_default();
        *own = *own - before + after;
        if *own == 0 {
            state.by_client.remove(&client);
        }
        drop(state);
        if after < before {
            self.freed.notify_waiters();
        }
    }
}

impl Held {
    /// Returns the number of bytes of the permit.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes to the permit.
    ///
    /// # Errors
    /// [`NoRoom`] if the budget or the client's share has fewer bytes left; the permit then stays
    /// as it is.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        self.budget.add(self.client, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Returns the bytes above `bytes` to the budget.
    pub fn shrink_to(&mut self, bytes: usize) {
        if bytes < self.bytes {
            self.budget.resize(self.client, self.bytes, bytes);
            self.bytes = bytes;
        }
    }

    /// Moves up to `bytes` bytes to a new permit.
    #[must_use]
    pub fn split(&mut self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { budget: Arc::clone(&self.budget), client: self.client, bytes }
    }

    /// Binds the permit to an answer. It then covers the capacity of `bytes`, and is dropped with
    /// the last clone of the answer.
    #[must_use]
    pub fn with(mut self, bytes: Vec<u8>) -> Bytes {
        let length = bytes.capacity();
        self.budget.resize(self.client, self.bytes, length);
        self.bytes = length;
        Bytes::from_owner(Owned { bytes, _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.resize(self.client, self.bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const ONE: usize = 4 << 20;

    fn client(last: u8) -> Client {
        Client::at(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn fill(budget: &Arc<Budget>, client: Client) -> Vec<Held> {
        std::iter::from_fn(|| Budget::take(budget, client, ONE).ok()).collect()
    }

    #[tokio::test]
    async fn one_client_alone_gets_half_and_leaves_room_for_others_until_it_is_sent() {
        let budget = Budget::new(64 * ONE, Share::TimesFree(1));
        let mut held = fill(&budget, client(1));
        assert_eq!((held.len(), Budget::take(&budget, client(1), ONE).unwrap_err()), (32, NoRoom::OfClient));
        // an answer occupies its own size, not what was reserved for it
        let made: Vec<Bytes> = held.drain(1..).map(|held| held.with(vec![7; 100])).collect();
        assert_eq!((budget.state().taken, &*made[0]), (ONE + 31 * 100, &[7; 100][..]));
        let mut others: Vec<Held> = Vec::new();
        for number in 2..=20 {
            others.extend(fill(&budget, client(number)));
            assert!(others.iter().any(|held| held.client == client(number)) || others.len() >= 62, "{number} finds room");
        }
        // a waiting request gets the bytes that become free
        let waiting = Budget::wait(&budget, client(30), ONE);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop((others, held));
        drop(waiting.await);
        let last = made[3].clone();
        drop(made);
        assert_eq!(budget.state().taken, 100);
        drop(last);
        let state = budget.state();
        assert_eq!((state.taken, state.by_client.len()), (0, 0));
    }

    #[test]
    fn a_share_is_two_thirds_or_so_many_bytes_and_moves_with_what_it_is_for() {
        let budget = Budget::new(60 * ONE, Share::TimesFree(2));
        assert_eq!(fill(&budget, client(1)).len(), 40);
        let budget = Budget::new(4 * ONE, Share::Bytes(3 * ONE));
        let mut all = fill(&budget, client(1));
        assert_eq!((all.len(), all[0].grow(1)), (3, Err(NoRoom::OfClient)));
        let _other = Budget::take(&budget, client(2), ONE - 1).unwrap();
        assert_eq!(Budget::take(&budget, client(3), 2).unwrap_err(), NoRoom::InAll);
        let part = all[0].split(ONE / 4);
        all[0].shrink_to(ONE / 2);
        assert_eq!((all[0].bytes(), part.bytes(), budget.state().by_client[&client(1)]), (ONE / 2, ONE / 4, 2 * ONE + ONE * 3 / 4));
        drop((part, all));
        assert_eq!(budget.state().taken, ONE - 1);
    }
}

//! Memory that clients share, counted in bytes.
//!
//! The memory is for answers that are being written or sent, and for values that requests retain. A
//! [`MemoryPermit`] is a client's permit for some bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::client::Client;

/// Part of a budget that one client may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientShare {
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

/// Memory limit for all clients together, with the bytes that each client uses now.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: usize,
    share: ClientShare,
    state: Mutex<BudgetState>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct BudgetState {
    used: usize,
    by_client: HashMap<Client, usize>,
}

/// Permit for some bytes. Dropping it returns them to the budget.
#[derive(Debug)]
pub struct MemoryPermit {
    budget: Arc<MemoryBudget>,
    client: Client,
    bytes: usize,
}

/// Error: a client cannot reserve more bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetExceeded {
    /// The client has used up its share.
    PerClient,
    /// The budget has fewer free bytes than requested.
    Total,
}

/// Bytes of an answer with their permit.
struct ResponseBytes {
    bytes: Vec<u8>,
    _permit: MemoryPermit,
}

impl AsRef<[u8]> for ResponseBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl MemoryBudget {
    /// Creates a budget of `bytes_max` bytes, of which one client may use `share`.
    #[must_use]
    pub fn new(bytes_max: usize, share: ClientShare) -> Arc<Self> {
        Arc::new(Self { bytes_max, share, state: Mutex::default(), freed: Notify::new() })
    }

    /// Reserves bytes for a client without waiting.
    ///
    /// # Errors
    /// [`BudgetExceeded`] if the budget or the client's share has fewer bytes left.
    pub fn try_acquire(budget: &Arc<Self>, client: Client, bytes: usize) -> Result<MemoryPermit, BudgetExceeded> {
        budget.reserve(client, bytes)?;
        Ok(MemoryPermit { budget: Arc::clone(budget), client, bytes })
    }

    /// Creates a permit for zero bytes, which can grow.
    #[must_use]
    pub fn empty_permit(budget: &Arc<Self>, client: Client) -> MemoryPermit {
        MemoryPermit { budget: Arc::clone(budget), client, bytes: 0 }
    }

    /// Waits until `bytes` are free for this client.
    ///
    /// The caller must not have a permit of this budget, otherwise two callers could wait for each
    /// other.
    pub async fn acquire(budget: &Arc<Self>, client: Client, bytes: usize) -> MemoryPermit {
        loop {
            let freed = budget.freed.notified();
            tokio::pin!(freed);
            // from here on no notification is missed
            freed.as_mut().enable();
            if let Ok(permit) = Self::try_acquire(budget, client, bytes) {
                return permit;
            }
            freed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, client: Client, bytes: usize) -> Result<(), BudgetExceeded> {
        let mut state = self.state();
        let (free, used_by_client) = (self.bytes_max.saturating_sub(state.used), state.by_client.get(&client).copied().unwrap_or(0));
        if bytes > free {
            return Err(BudgetExceeded::Total);
        }
        let share = match self.share {
            ClientShare::TimesFree(times) => free.saturating_mul(times),
            ClientShare::Bytes(bytes) => bytes,
        };
        if used_by_client.saturating_add(bytes) > share {
            return Err(BudgetExceeded::PerClient);
        }
        state.used += bytes;
        *state.by_client.entry(client).or_default() += bytes;
        Ok(())
    }

    fn resize(&self, client: Client, before: usize, after: usize) {
        let mut state = self.state();
        state.used = state.used - before + after;
        let client_bytes = state.by_client.entry(client).or_default();
        *client_bytes = *client_bytes - before + after;
        if *client_bytes == 0 {
            state.by_client.remove(&client);
        }
        drop(state);
        if after < before {
            self.freed.notify_waiters();
        }
    }
}

impl MemoryPermit {
    /// Returns the number of bytes of the permit.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes to the permit.
    ///
    /// # Errors
    /// [`BudgetExceeded`] if the budget or the client's share has fewer bytes left; the permit then
    /// does not change.
    pub fn grow(&mut self, bytes: usize) -> Result<(), BudgetExceeded> {
        self.budget.reserve(self.client, bytes)?;
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

    /// Attaches the permit to the bytes of an answer. It then covers their capacity, and is dropped
    /// with the last clone of the answer.
    #[must_use]
    pub fn attach_to(mut self, bytes: Vec<u8>) -> Bytes {
        let length = bytes.capacity();
        self.budget.resize(self.client, self.bytes, length);
        self.bytes = length;
        Bytes::from_owner(ResponseBytes { bytes, _permit: self })
    }
}

impl Drop for MemoryPermit {
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
        Client::from_ip(std::net::IpAddr::from([192, 0, 2, last]))
    }

    fn fill(budget: &Arc<MemoryBudget>, client: Client) -> Vec<MemoryPermit> {
        std::iter::from_fn(|| MemoryBudget::try_acquire(budget, client, ONE).ok()).collect()
    }

    #[tokio::test]
    async fn a_single_client_gets_half_and_leaves_bytes_for_others() {
        let budget = MemoryBudget::new(64 * ONE, ClientShare::TimesFree(1));
        let mut permits = fill(&budget, client(1));
        assert_eq!((permits.len(), MemoryBudget::try_acquire(&budget, client(1), ONE).unwrap_err()), (32, BudgetExceeded::PerClient));
        // an answer uses its own size, not the reserved bytes
        let answers: Vec<Bytes> = permits.drain(1..).map(|permit| permit.attach_to(vec![7; 100])).collect();
        assert_eq!((budget.state().used, &*answers[0]), (ONE + 31 * 100, &[7; 100][..]));
        let mut others: Vec<MemoryPermit> = Vec::new();
        for number in 2..=20 {
            others.extend(fill(&budget, client(number)));
            assert!(others.iter().any(|permit| permit.client == client(number)) || others.len() >= 62, "client {number} gets no bytes");
        }
        // a waiting request gets the bytes that become free
        let waiting = MemoryBudget::acquire(&budget, client(30), ONE);
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop((others, permits));
        drop(waiting.await);
        let last = answers[3].clone();
        drop(answers);
        assert_eq!(budget.state().used, 100);
        drop(last);
        let state = budget.state();
        assert_eq!((state.used, state.by_client.len()), (0, 0));
    }

    #[test]
    fn a_share_is_a_multiple_of_the_free_bytes_or_a_fixed_number() {
        let budget = MemoryBudget::new(60 * ONE, ClientShare::TimesFree(2));
        assert_eq!(fill(&budget, client(1)).len(), 40);
        let budget = MemoryBudget::new(4 * ONE, ClientShare::Bytes(3 * ONE));
        let mut all = fill(&budget, client(1));
        assert_eq!((all.len(), all[0].grow(1)), (3, Err(BudgetExceeded::PerClient)));
        let _other = MemoryBudget::try_acquire(&budget, client(2), ONE - 1).unwrap();
        assert_eq!(MemoryBudget::try_acquire(&budget, client(3), 2).unwrap_err(), BudgetExceeded::Total);
        let part = all[0].split(ONE / 4);
        all[0].shrink_to(ONE / 2);
        assert_eq!((all[0].bytes(), part.bytes(), budget.state().by_client[&client(1)]), (ONE / 2, ONE / 4, 2 * ONE + ONE * 3 / 4));
        drop((part, all));
        assert_eq!(budget.state().used, ONE - 1);
    }
}

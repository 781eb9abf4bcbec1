//! Room for answers that are made, or made and not read yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::api::client::Client;
use crate::api::paging::PAGE_BYTES_MAX;

/// How many bytes all of them may take: 64 of the largest.
const BYTES_MAX: usize = 64 * PAGE_BYTES_MAX;

/// How long a request waits for room: longer than readers take that read at all, 4 MiB at 10 Mbit/s being 3.4 s.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What answers take, by client.
#[derive(Debug, Default)]
pub(super) struct Answers {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    by_client: HashMap<Client, usize>,
}

/// Room for one answer; free again when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    answers: Arc<Answers>,
    client: Client,
    bytes: usize,
}

/// The bytes of an answer, and their room.
struct Owned {
    bytes: Vec<u8>,
    _held: Held,
}

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl State {
    /// Takes room for the largest answer. A client may have as much as is free: alone it gets half of all, of two each a third, and whoever
    /// comes finds some (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).
    fn take(&mut self, client: Client) -> bool {
        let (free, own) = (BYTES_MAX.saturating_sub(self.taken), self.by_client.get(&client).copied().unwrap_or(0));
        let fits = own + PAGE_BYTES_MAX <= free;
        if fits {
            self.taken += PAGE_BYTES_MAX;
            *self.by_client.entry(client).or_default() += PAGE_BYTES_MAX;
        }
        fits
    }

    fn resize(&mut self, client: Client, before: usize, after: usize) {
        self.taken = self.taken - before + after;
        let own = self.by_client.entry(client).or_default();
        *own = *own - before + after;
        if *own == 0 {
            self.by_client.remove(&client);
        }
    }
}

impl Answers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room; `None` where there is none for too long.
    pub(super) async fn hold(answers: &Arc<Self>, client: Client) -> Option<Held> {
        let taking = async {
            loop {
                let freed = answers.freed.notified();
                tokio::pin!(freed);
                // from here on nothing that becomes free is missed
                freed.as_mut().enable();
                if answers.state().take(client) {
                    return Held { answers: Arc::clone(answers), client, bytes: PAGE_BYTES_MAX };
                }
                freed.await;
            }
        };
        tokio::time::timeout(WAIT_MAX, taking).await.ok()
    }
}

impl Held {
    /// The answer, which takes as much room as it has bytes until the last of them is sent.
    pub(crate) fn with(mut self, bytes: Vec<u8>) -> Bytes {
        let length = bytes.capacity();
        self.answers.state().resize(self.client, self.bytes, length);
        self.bytes = length;
        self.answers.freed.notify_waiters();
        Bytes::from_owner(Owned { bytes, _held: self })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.answers.state().resize(self.client, self.bytes, 0);
        self.answers.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn client(last: u8) -> Client {
        Client::at(std::net::IpAddr::from([192, 0, 2, last]))
    }

    #[tokio::test]
    async fn one_client_alone_gets_half_and_leaves_room_for_others_until_it_is_sent() {
        let answers = Arc::new(Answers::default());
        let mut held = Vec::new();
        while let Some(Some(one)) = Answers::hold(&answers, client(1)).now_or_never() {
            held.push(one);
        }
        assert_eq!(held.len(), 32);
        // small answers take what they are
        let made: Vec<Bytes> = held.drain(1..).map(|held| held.with(vec![7; 100])).collect();
        assert_eq!((answers.state().taken, &*made[0]), (PAGE_BYTES_MAX + 31 * 100, &[7; 100][..]));
        let mut others: Vec<Held> = Vec::new();
        for number in 2..=20 {
            while let Some(Some(one)) = Answers::hold(&answers, client(number)).now_or_never() {
                others.push(one);
            }
            assert!(others.iter().any(|held| held.client == client(number)) || others.len() >= 62, "{number} finds room");
        }
        // a request that waits gets what becomes free
        let waiting = Answers::hold(&answers, client(30));
        tokio::pin!(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop((others, held));
        assert!(waiting.await.is_some());
        let last = made[3].clone();
        drop(made);
        assert_eq!(answers.state().taken, 100);
        drop(last);
        let state = answers.state();
        assert_eq!((state.taken, state.by_client.len()), (0, 0));
    }
}

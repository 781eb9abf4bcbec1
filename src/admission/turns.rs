//! Turns of the clients, one after the other: a round robin over clients with a queue for each
//! client.
//!
//! [`Scans`](super::Scans) acquires a [`Turn`] for each slice of work.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::client::Client;
use crate::handle::Spent;

/// Maximum number of admitted requests. If each needs a slice of 1 ms, the last one starts after
/// 1 s on one thread. A waiting request uses about 16 KiB with its connection, 16 MB in total.
pub(super) const PLACES_MAX: usize = 1_024;

/// Maximum number of admitted requests per client: half of all, so that one client cannot use up
/// all slots.
pub(super) const PLACES_PER_CLIENT_MAX: usize = PLACES_MAX / 2;

/// Scheduler of the turns: which work runs, and which waits.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Number of unused turns. It is zero while anything waits.
    free: usize,
    /// Number of admitted requests by client.
    places: HashMap<Client, usize>,
    count: usize,
    /// The queues that are not empty, each once; the first one gets the next turn.
    order: VecDeque<Waiting>,
    waiting: HashMap<Waiting, VecDeque<oneshot::Sender<Turn>>>,
    spent: Spent,
}

/// A queue of work: the requests or the streams of one client. With a common queue, a list would
/// wait behind up to a thousand streams of its client when all of them catch up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Waiting {
    Requests(Client),
    Streams(Client),
}

/// Admission of a request or a stream. Dropping it frees the slot of the request.
#[derive(Debug)]
pub(super) struct Admission {
    turns: Arc<Turns>,
    waiting: Waiting,
}

/// The right to run one slice. Dropping it passes the turn on.
#[derive(Debug)]
pub(super) struct Turn(Option<Arc<Turns>>);

/// Reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTurn {
    /// `PLACES_MAX` requests are admitted.
    #[error("{PLACES_MAX} long requests are in progress, which is the limit: try again in a few seconds")]
    InAll,
    /// The client has reached its own limit.
    #[error("this client has {PLACES_PER_CLIENT_MAX} long requests in progress, which is the limit: try again in a few seconds")]
    OfClient,
}

impl Turns {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let (places, waiting) = (HashMap::new(), HashMap::new());
        let state = State { free: count, places, count: 0, order: VecDeque::new(), waiting, spent: Spent::default() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Admits a request.
    ///
    /// # Errors
    /// [`NoTurn`] if a limit is reached.
    pub(super) fn enter(turns: &Arc<Self>, client: Client) -> Result<Admission, NoTurn> {
        let mut state = turns.state();
        if state.count >= PLACES_MAX {
            return Err(NoTurn::InAll);
        }
        let taken = state.places.entry(client).or_default();
        if *taken >= PLACES_PER_CLIENT_MAX {
            return Err(NoTurn::OfClient);
        }
        *taken += 1;
        state.count += 1;
        Ok(Admission { turns: Arc::clone(turns), waiting: Waiting::Requests(client) })
    }

    /// Admits a stream. [`super::Places`] counts streams, so there is no limit here.
    pub(super) fn enter_stream(turns: &Arc<Self>, client: Client) -> Admission {
        Admission { turns: Arc::clone(turns), waiting: Waiting::Streams(client) }
    }

    pub(super) fn spent(&self) -> Spent {
        self.state().spent
    }

    pub(super) fn count(&self) -> usize {
        self.state().count
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a turn to the longest-waiting work of the next client, or marks it as free.
    fn pass_on(turns: Arc<Self>) {
        let mut turn = Turn(Some(Arc::clone(&turns)));
        loop {
            let next = turns.state().next();
            let Some(next) = next else { break };
            match next.send(turn) {
                Ok(()) => return,
                // the waiting request was dropped
                Err(back) => turn = back,
            }
        }
        // the turn is marked as free now: dropping it must not pass it on again
        turn.0 = None;
    }
}

impl State {
    /// Removes the next waiter from its queue. Marks the turn as free if nothing waits.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let Some(first) = self.order.pop_front() else {
            self.free += 1;
            return None;
        };
        let mut queue = self.waiting.remove(&first).unwrap_or_default();
        let next = queue.pop_front();
        if !queue.is_empty() {
            self.waiting.insert(first, queue);
            self.order.push_back(first);
        }
        // a queue in the order is never empty, so there is a waiter
        next
    }
}

impl Admission {
    /// Waits for a turn, behind the earlier waiters of the same queue and one waiter of each other
    /// queue.
    pub(super) async fn turn(&self) -> Turn {
        let receiver = {
            let mut state = self.turns.state();
            if state.free > 0 {
                state.free -= 1;
                return Turn(Some(Arc::clone(&self.turns)));
            }
            let (sender, receiver) = oneshot::channel();
            let queue = state.waiting.entry(self.waiting).or_default();
            queue.push_back(sender);
            if queue.len() == 1 {
                state.order.push_back(self.waiting);
            }
            receiver
        };
        match receiver.await {
            Ok(turn) => turn,
            // a waiting sender is never dropped
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let Waiting::Requests(client) = self.waiting else { return };
        let mut state = self.turns.state();
        state.count -= 1;
        if let Some(taken) = state.places.get_mut(&client) {
            *taken -= 1;
            if *taken == 0 {
                state.places.remove(&client);
            }
        }
    }
}

impl Turn {
    /// Ends the turn and counts the work that was done in it.
    pub(super) fn end(self, spent: Spent) {
        if let Some(turns) = &self.0 {
            turns.state().spent += spent;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            Turns::pass_on(turns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use futures_util::FutureExt;

    use super::*;

    fn client(last: u8) -> Client {
        Client::at(IpAddr::from([192, 0, 2, last]))
    }

    /// One client with a hundred requests, and another one with a single request.
    #[tokio::test]
    async fn clients_have_turns_one_after_the_other_whoever_asks_for_more() {
        let turns = Turns::new(1);
        let places: Vec<Admission> = (0..100).map(|_| Turns::enter(&turns, client(1)).unwrap()).collect();
        let other = Turns::enter(&turns, client(2)).unwrap();
        let first = places[0].turn().await;
        let mut greedy: Vec<_> = places[1..].iter().map(|place| Box::pin(place.turn())).collect();
        assert!(greedy.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let mut small = Box::pin(other.turn());
        assert!((&mut small).now_or_never().is_none());
        drop(first);
        let second = (&mut greedy[0]).now_or_never().unwrap();
        assert!((&mut small).now_or_never().is_none());
        drop(second);
        let third = (&mut small).now_or_never().unwrap();
        // dropped waiters are skipped
        drop(greedy.drain(1..98));
        drop(third);
        assert!((&mut greedy[1]).now_or_never().is_some());
        drop(greedy);
        let state = turns.state();
        assert_eq!((state.free, state.waiting.len(), state.order.len()), (1, 0, 0));
    }

    #[tokio::test]
    async fn a_request_waits_for_one_stream_of_its_client_not_for_each() {
        let turns = Turns::new(1);
        let first = Turns::enter_stream(&turns, client(1)).turn().await;
        let places: Vec<Admission> = (0..1_000).map(|_| Turns::enter_stream(&turns, client(1))).collect();
        let mut streams: Vec<_> = places.iter().map(|place| Box::pin(place.turn())).collect();
        assert!(streams.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let request = Turns::enter(&turns, client(1)).unwrap();
        let mut list = Box::pin(request.turn());
        assert!((&mut list).now_or_never().is_none());
        drop(first);
        drop((&mut streams[0]).now_or_never().unwrap());
        assert!((&mut list).now_or_never().is_some());
        assert_eq!(turns.count(), 1, "streams take no places of requests");
    }

    #[test]
    fn one_client_has_half_of_the_places_and_none_is_lost() {
        let turns = Turns::new(1);
        let mut held: Vec<Admission> = (0..PLACES_PER_CLIENT_MAX).map(|_| Turns::enter(&turns, client(1)).unwrap()).collect();
        assert_eq!(Turns::enter(&turns, client(1)).unwrap_err(), NoTurn::OfClient);
        held.extend((0..PLACES_PER_CLIENT_MAX).map(|_| Turns::enter(&turns, client(2)).unwrap()));
        assert_eq!(Turns::enter(&turns, client(3)).unwrap_err(), NoTurn::InAll);
        held.clear();
        let state = turns.state();
        assert_eq!((state.count, state.places.len()), (0, 0));
    }
}

//! Turns, one client after the other.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::client::Client;
use crate::handle::Spent;

/// How many requests may have a place at once. With a slice of 4 ms for each, the last of them begins after 4 s on one thread; a waiting one takes
/// some 16 KiB with its connection, 16 MB in all.
pub(super) const PLACES_MAX: usize = 1_024;

/// How many of them one client may have: half, so that another one finds a place beside it.
pub(super) const PLACES_PER_CLIENT_MAX: usize = PLACES_MAX / 2;

/// Which clients' work runs, and which waits.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// How many turns nobody has; there are none while somebody waits.
    free: usize,
    /// Requests that have a place, by client.
    places: HashMap<Client, usize>,
    count: usize,
    /// Who waits, the next one first; each once.
    order: VecDeque<Waiting>,
    waiting: HashMap<Waiting, VecDeque<oneshot::Sender<Turn>>>,
    spent: Spent,
}

/// Who has turns one after the other. A client's streams wait apart from its requests, so that a list never waits behind each of the thousand
/// streams that one client may have, should all of them catch up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Waiting {
    Requests(Client),
    Streams(Client),
}

/// A place; free again when dropped.
#[derive(Debug)]
pub(super) struct Admission {
    turns: Arc<Turns>,
    waiting: Waiting,
}

/// A turn; the next one's when dropped.
#[derive(Debug)]
pub(super) struct Turn(Option<Arc<Turns>>);

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTurn {
    /// As many as there may be.
    #[error("{PLACES_MAX} requests that take long are being answered, which is the limit: ask again in a moment")]
    InAll,
    /// As many as one client may have.
    #[error("{PLACES_PER_CLIENT_MAX} requests of this client that take long are being answered, which is the limit: ask again in a moment")]
    OfClient,
}

impl Turns {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let (places, waiting) = (HashMap::new(), HashMap::new());
        let state = State { free: count, places, count: 0, order: VecDeque::new(), waiting, spent: Spent::default() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Takes a place.
    ///
    /// # Errors
    /// [`NoTurn`] where there is none.
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

    /// A place for a stream, of which there are as many as there may be streams ([`super::Places`]): it is counted there.
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

    /// Takes a turn back: of the client that is next, what waits longest gets it.
    fn pass_on(turns: Arc<Self>) {
        let mut turn = Turn(Some(Arc::clone(&turns)));
        loop {
            let next = turns.state().next();
            let Some(next) = next else { break };
            match next.send(turn) {
                Ok(()) => return,
                // the request that waited is gone
                Err(back) => turn = back,
            }
        }
        // it is free: nobody is to get it again
        turn.0 = None;
    }
}

impl State {
    /// The request whose turn it is; where nobody waits the turn is free.
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
        // a client in the order has work that waits, so there is one
        next
    }
}

impl Admission {
    /// Waits for a turn, behind those of this client that wait already and one of each other client.
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
            // nobody drops a sender that waits
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
    /// Ends it, and says what it took.
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

    /// A client that asks for a hundred things and one that asks for one.
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
        // those that went are passed over
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

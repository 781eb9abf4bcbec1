//! The places that connections take: how many there are, who gives way, and how long one may do nothing.
//!
//! A connection is a stranger until it has shown a token or a certificate. The bound per client counts strangers only, and where places run
//! out the strangers that have waited longest are closed, some ahead of need, so that whoever comes waits for none to go: strangers can hold as
//! many as they like and lock out nobody. One in the middle of a request that was let in is left alone; where neither token nor client CA is
//! asked for, that is what protects streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::stall::STALL_MAX;
use crate::admission::{Client, STREAM_COUNT_MAX};

/// How many connections may be open: one for each stream, and some for everything else.
const CONNECTION_COUNT_MAX: usize = STREAM_COUNT_MAX + 2_000;

/// How many connections `--health-listen` takes beside those: three probes of a kubelet and a few Prometheus open one each, and what else comes
/// gives way to them after a moment.
pub const HEALTH_CONNECTION_COUNT_MAX: usize = 32;

/// What part of all places the strangers of one client may have: as with streams a tenth, so that nine others find places beside one that
/// leaks them, and so that one has room for its streams (a tenth of theirs) where nobody shows anything.
const PER_CLIENT_PART: usize = 10;

/// Strangers of one client where the places are few (a small limit of descriptors): the six connections of a browser, for ten of them.
const PER_CLIENT_MIN: usize = 60;

/// How many places are kept free as long as there are strangers to close: what comes at once must find them before the closed ones have run
/// to their end. An accept loop takes 128 connections before it lets other tasks run (tokio's budget of a poll); those that it told to go
/// have their turn before its next. More would be more strangers that come back, and everybody waits behind those.
const FREE: usize = 128;

/// Where places are few, not more than this part of them is kept free: they are there to be used.
const FREE_PART: usize = 20;

/// How long to wait for the place of a connection that was told to give way. It does so as soon as its task runs; then the next is told.
const GIVING_WAY: Duration = Duration::from_millis(100);

/// How many connections, and how long each may do nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// How many may be open at once.
    pub count_max: usize,
    /// How long a TLS handshake may take, the first byte after it, and the headers of the first request, each: Go's clients give up a handshake
    /// after the same 10 s (`net/http`, `TLSHandshakeTimeout`), and 8 KiB of headers need no more over any line.
    pub first: Duration,
    /// How long a connection may stand without a request, and so how long further headers may take: hyper's default. A client that keeps
    /// connections for longer finds them closed, and opens another.
    pub idle: Duration,
    /// How long a request's body may take as a whole, so that one that drips ends too: 1 MiB, the longest, in 30 s is 280 kbit/s.
    pub body: Duration,
    /// How long a piece of an answer may wait for the other side to take it (`server/stall.rs`).
    pub stall: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let (first, idle, body) = (Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(30));
        Self { count_max: CONNECTION_COUNT_MAX, first, idle, body, stall: STALL_MAX }
    }
}

impl ConnectionLimits {
    /// How many strangers one client may have.
    fn per_client_max(self) -> usize {
        (self.count_max / PER_CLIENT_PART).max(PER_CLIENT_MIN).min(self.count_max)
    }

    /// How many places strangers are kept from.
    fn free(self) -> usize {
        FREE.min(self.count_max / FREE_PART)
    }
}

/// All places of a face. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Seats {
    limits: ConnectionLimits,
    free: Arc<Semaphore>,
    book: Arc<Mutex<Book>>,
    evicted: Arc<AtomicUsize>,
}

/// Who may be told to give way, in the order of how long they have waited, and how many strangers each client has.
#[derive(Default)]
struct Book {
    next_ticket: u64,
    waiting: BTreeMap<u64, Arc<Occupant>>,
    clients: HashMap<Client, Strangers>,
    /// How many were told to give way and have their places still.
    leaving: usize,
}

/// The strangers of one client: all, and those that may be told to give way.
#[derive(Default)]
struct Strangers {
    count: usize,
    waiting: BTreeSet<u64>,
}

/// Who has a place.
struct Occupant {
    client: Client,
    /// Counted among the strangers of its client.
    is_stranger: AtomicBool,
    /// It was told to give way.
    is_leaving: AtomicBool,
    give_way: Notify,
}

/// A place that is taken; free again when dropped.
pub(crate) struct Seat {
    seats: Seats,
    occupant: Arc<Occupant>,
    use_: Mutex<Use>,
    /// The rest of a request's body was not read.
    unread: Arc<AtomicBool>,
    _permit: OwnedSemaphorePermit,
}

/// What a connection does.
#[derive(Debug)]
struct Use {
    is_friend: bool,
    /// Set while it may be told to give way.
    ticket: Option<u64>,
    /// Requests that are answered now, and those of them that were let in.
    open: usize,
    let_in: usize,
    /// Answers of which the next piece was not asked for since the last was given out.
    unasked: usize,
    asked_once: bool,
    /// When it last began or ended something.
    since: Instant,
}

impl Seats {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, free: Arc::new(Semaphore::new(limits.count_max)), book: Arc::default(), evicted: Arc::default() }
    }

    pub(crate) fn limits(&self) -> ConnectionLimits {
        self.limits
    }

    /// How many places are taken, and how many there are.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.limits.count_max - self.free.available_permits(), self.limits.count_max)
    }

    /// How many strangers gave way to somebody so far.
    pub(crate) fn evicted_count(&self) -> usize {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Takes a place, of the stranger that has waited longest if need be. `None`: this client has as many as it may, all in use.
    pub(crate) async fn take(&self, client: Client) -> Option<Seat> {
        self.make_room();
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                break permit;
            }
            if let Ok(permit) = timeout(GIVING_WAY, Arc::clone(&self.free).acquire_owned()).await {
                break permit.ok()?;
            }
            self.evict(Book::oldest);
        };
        let is_full = || self.book().clients.get(&client).is_some_and(|strangers| strangers.count >= self.limits.per_client_max());
        if is_full() && !self.evict(|book| book.clients.get(&client)?.waiting.first().copied()) {
            return None;
        }
        let occupant =
            Arc::new(Occupant { client, is_stranger: AtomicBool::new(true), is_leaving: AtomicBool::new(false), give_way: Notify::new() });
        let mut book = self.book();
        book.clients.entry(client).or_default().count += 1;
        let ticket = Some(book.queue(&occupant));
        drop(book);
        let use_ = Use { is_friend: false, ticket, open: 0, let_in: 0, unasked: 0, asked_once: false, since: Instant::now() };
        Some(Seat { seats: self.clone(), occupant, use_: Mutex::new(use_), unread: Arc::default(), _permit: permit })
    }

    /// Tells strangers to give way until one more place than is kept free is free, or will be as soon as those that were told have gone.
    fn make_room(&self) {
        let mut book = self.book();
        while self.free.available_permits() + book.leaving <= self.limits.free() && self.evict_from(&mut book, Book::oldest) {}
    }

    /// Tells one to give way; `false` if there is none.
    fn evict(&self, choose: impl Fn(&Book) -> Option<u64>) -> bool {
        self.evict_from(&mut self.book(), choose)
    }

    fn evict_from(&self, book: &mut Book, choose: impl Fn(&Book) -> Option<u64>) -> bool {
        let Some(occupant) = choose(book).and_then(|ticket| book.unqueue(ticket)) else { return false };
        book.no_stranger(&occupant);
        book.leaving += 1;
        occupant.is_leaving.store(true, Ordering::Relaxed);
        occupant.give_way.notify_one();
        self.evicted.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// The ticket of the one that has waited longest.
    fn oldest(&self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    fn queue(&mut self, occupant: &Arc<Occupant>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        // one that was told to give way while a request came is not told, and counted, once more when that is answered
        if !occupant.is_leaving.load(Ordering::Relaxed) {
            self.waiting.insert(ticket, Arc::clone(occupant));
            self.clients.entry(occupant.client).or_default().waiting.insert(ticket);
        }
        ticket
    }

    fn unqueue(&mut self, ticket: u64) -> Option<Arc<Occupant>> {
        let occupant = self.waiting.remove(&ticket)?;
        if let Some(strangers) = self.clients.get_mut(&occupant.client) {
            strangers.waiting.remove(&ticket);
        }
        Some(occupant)
    }

    /// Counts it no more among the strangers of its client.
    fn no_stranger(&mut self, occupant: &Occupant) {
        if occupant.is_stranger.swap(false, Ordering::Relaxed)
            && let Some(strangers) = self.clients.get_mut(&occupant.client)
        {
            strangers.count -= 1;
            if strangers.count == 0 && strangers.waiting.is_empty() {
                self.clients.remove(&occupant.client);
            }
        }
    }
}

impl Seat {
    fn use_(&self) -> MutexGuard<'_, Use> {
        self.use_.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has shown a token or a certificate.
    pub(crate) fn befriend(&self) {
        let mut now = self.use_();
        if !now.is_friend {
            now.is_friend = true;
            let mut book = self.seats.book();
            now.ticket.take().and_then(|ticket| book.unqueue(ticket));
            book.no_stranger(&self.occupant);
        }
    }

    /// The handshake is over: the time for the first request begins.
    pub(crate) fn begin(&self) {
        self.use_().since = Instant::now();
    }

    /// Whether the connection should be read to its end before it is closed.
    pub(crate) fn unread(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unread)
    }

    /// Waits until it is told to give way.
    pub(crate) async fn gives_way(&self) {
        self.occupant.give_way.notified().await;
    }

    /// Waits until it has done nothing for too long.
    pub(crate) async fn overdue(&self) {
        loop {
            let deadline = self.deadline();
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }

    /// When to look again, or when it was too long already.
    fn deadline(&self) -> Instant {
        let (now, limits) = (self.use_(), self.seats.limits);
        match (now.open, now.unasked) {
            (0, _) if now.asked_once => now.since + limits.idle,
            (0, _) => now.since + limits.first,
            // as long as it has others it takes something
            (open, unasked) if unasked == open => now.since + limits.stall,
            _ => Instant::now() + limits.idle,
        }
    }

    pub(super) fn request_begins(&self) {
        let mut now = self.use_();
        now.open += 1;
        now.asked_once = true;
    }

    /// A request is let in, and whether it showed a token.
    pub(super) fn request_is_let_in(&self, shows_token: bool) {
        if shows_token {
            self.befriend();
        }
        let mut now = self.use_();
        now.let_in += 1;
        if let Some(ticket) = now.ticket.take() {
            self.seats.book().unqueue(ticket);
        }
    }

    pub(super) fn request_ends(&self, was_let_in: bool) {
        let mut now = self.use_();
        now.open -= 1;
        now.since = Instant::now();
        if was_let_in {
            now.let_in -= 1;
            if now.let_in == 0 && !now.is_friend {
                now.ticket = Some(self.seats.book().queue(&self.occupant));
            }
        }
    }

    pub(super) fn answer_is_given(&self) {
        let mut now = self.use_();
        now.unasked += 1;
        now.since = Instant::now();
    }

    pub(super) fn answer_is_asked(&self) {
        let mut now = self.use_();
        now.unasked -= 1;
        now.since = Instant::now();
    }

    pub(super) fn leaves_unread(&self) {
        self.unread.store(true, Ordering::Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let ticket = self.use_().ticket;
        let mut book = self.seats.book();
        ticket.and_then(|ticket| book.unqueue(ticket));
        book.no_stranger(&self.occupant);
        book.leaving -= usize::from(self.occupant.is_leaving.load(Ordering::Relaxed));
    }
}

impl fmt::Debug for Seats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seats").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("client", &self.occupant.client).field("use", &*self.use_()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(text: &str) -> Client {
        Client::at(text.parse().unwrap())
    }

    fn seats(count_max: usize) -> Seats {
        Seats::new(ConnectionLimits { count_max, ..ConnectionLimits::default() })
    }

    async fn told(seat: &Seat) -> bool {
        timeout(Duration::from_millis(1), seat.gives_way()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_stranger_that_has_waited_longest_gives_way_and_a_friend_never() {
        let seats = seats(3);
        let friend = seats.take(client("192.0.2.1")).await.unwrap();
        friend.befriend();
        let (first, second) = (seats.take(client("192.0.2.2")).await.unwrap(), seats.take(client("192.0.2.3")).await.unwrap());
        let leaving = async {
            first.gives_way().await;
            drop(first);
        };
        let (third, ()) = tokio::join!(seats.take(client("192.0.2.4")), leaving);
        assert!(!told(&friend).await && !told(&second).await && third.is_some());
        // one that is answered is left alone, and is the last in the queue afterwards
        second.request_begins();
        second.request_is_let_in(false);
        let third = third.unwrap();
        let (fourth, ()) = tokio::join!(seats.take(client("192.0.2.2")), async {
            third.gives_way().await;
            drop(third);
        });
        second.request_ends(true);
        assert!(!told(&second).await && seats.evicted_count() == 2);
        drop((friend, second, fourth));
        let book = seats.book();
        assert_eq!((seats.count().0, book.waiting.len(), book.clients.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_are_closed_ahead_so_that_nobody_waits_for_one_to_go() {
        let seats = seats(200);
        let mut strangers = Vec::new();
        // ten places in two hundred are kept free
        for number in 0..190 {
            strangers.push(seats.take(client(&format!("192.0.2.{number}"))).await.unwrap());
        }
        assert_eq!(seats.evicted_count(), 0);
        let began = Instant::now();
        for number in 0..10 {
            // none of those that are told has gone when the next comes
            strangers.push(seats.take(client(&format!("192.0.2.{number}"))).await.unwrap());
            assert!(told(&strangers[number]).await && !told(&strangers[number + 1]).await);
        }
        assert!(began.elapsed() < GIVING_WAY);
        assert_eq!((seats.count().0, seats.evicted_count()), (200, 10));
        strangers.drain(..10);
        assert_eq!((seats.count().0, seats.book().leaving), (190, 0));
        // friends are not closed: they have the places that are kept free too
        let mut friends = Vec::new();
        for _ in 0..200 {
            let friend = seats.take(client("192.0.2.1")).await.unwrap();
            friend.befriend();
            friends.push(friend);
            let mut stayed = Vec::new();
            for stranger in strangers {
                if !told(&stranger).await {
                    stayed.push(stranger);
                }
            }
            strangers = stayed;
        }
        assert_eq!((seats.count().0, strangers.len()), (200, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_told_to_go_in_the_middle_of_a_request_is_counted_once() {
        let seats = seats(100);
        let leaving = seats.take(client("192.0.2.1")).await.unwrap();
        assert!(seats.evict(Book::oldest));
        leaving.request_begins();
        leaving.request_is_let_in(false);
        leaving.request_ends(true);
        assert!(!seats.evict(Book::oldest), "it goes already");
        drop(leaving);
        let book = seats.book();
        assert_eq!((book.leaving, book.waiting.len(), book.clients.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_of_one_client_give_way_to_each_other_and_friends_do_not_count() {
        let seats = seats(1_000);
        let mut held = Vec::new();
        for _ in 0..150 {
            let friend = seats.take(client("192.0.2.1")).await.unwrap();
            friend.befriend();
            held.push(friend);
        }
        let mut strangers = Vec::new();
        for _ in 0..100 {
            strangers.push(seats.take(client("192.0.2.1")).await.unwrap());
        }
        let other = seats.take(client("192.0.2.9")).await.unwrap();
        assert_eq!(seats.evicted_count(), 0);
        strangers.push(seats.take(client("192.0.2.1")).await.unwrap());
        assert!(told(&strangers[0]).await && !told(&strangers[1]).await && !told(&other).await);
        for stranger in &strangers[1..] {
            stranger.request_begins();
            stranger.request_is_let_in(false);
        }
        assert!(seats.take(client("192.0.2.1")).await.is_none());
        assert!(seats.take(client("192.0.2.9")).await.is_some());
    }
}

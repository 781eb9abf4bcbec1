//! Limits on open connections: how many may exist, which one is closed for a new one, and how long
//! one may stay idle.
//!
//! A connection is *anonymous* (a stranger) until a request on it presents a valid token or its
//! handshake presents a client certificate. The limit per client counts anonymous connections only.
//! When slots run out, the anonymous connections that have waited longest are closed. A few are
//! closed ahead of need, so that a new connection finds a free slot at once. Anonymous clients can
//! therefore open any number of connections without locking out others.
//!
//! A connection is never evicted during a request that passed the access checks. Where neither a
//! token nor a client CA is configured, this protects the streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::stall::STALL_MAX;
use crate::admission::{Client, STREAM_COUNT_MAX};

/// Default maximum number of open connections: one for each stream, and 2,000 for other requests.
const CONNECTION_COUNT_MAX: usize = STREAM_COUNT_MAX + 2_000;

/// Maximum number of connections to `--health-listen`, in addition to those of the API.
///
/// Three probes of a kubelet and a few Prometheus servers open one each. Other connections are
/// evicted for them after a moment.
pub const HEALTH_CONNECTION_COUNT_MAX: usize = 32;

/// Divisor of all slots for the anonymous connections of one client.
///
/// A tenth, as for streams: nine other clients still find slots if one leaks connections, and one
/// client can open its share of the streams even without a token.
const PER_CLIENT_PART: usize = 10;

/// Minimum number of anonymous connections per client when the limit is small (few file
/// descriptors): six connections of a browser, for ten browsers.
const PER_CLIENT_MIN: usize = 60;

/// Number of slots kept free while anonymous connections can be evicted.
///
/// An accept loop accepts up to 128 connections before other tasks run (tokio's cooperative
/// budget). The evicted connections then run to their end before its next turn. A larger number
/// would evict more clients, which all reconnect and make others wait.
const FREE: usize = 128;

/// Divisor of all slots: bounds the free slots when the limit is small.
const FREE_PART: usize = 20;

/// Maximum time to wait for the slot of an evicted connection before the next one is evicted. A
/// slot is usually free as soon as the evicted task runs.
const GIVING_WAY: Duration = Duration::from_millis(100);

/// Maximum number of connections, and time-outs of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    pub count_max: usize,
    /// Time limit for a TLS handshake, then for the first byte, then for the headers of the first
    /// request.
    ///
    /// 10 s, as Go's clients wait for a handshake (`net/http`, `TLSHandshakeTimeout`). 8 KiB of
    /// headers arrive in less time over any line.
    pub first: Duration,
    /// Maximum time that a connection may stay open without a request, and time limit for later
    /// headers.
    ///
    /// Same as hyper's default. A client that keeps connections for longer finds them closed and
    /// opens another.
    pub idle: Duration,
    /// Time limit for the whole body of a request, so that a slow sender ends too. The longest
    /// body, 1 MiB, needs 280 kbit/s at 30 s.
    pub body: Duration,
    /// Maximum time that a piece of an answer may wait for the client to accept it
    /// (`server/stall.rs`).
    pub stall: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let (first, idle, body) = (Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(30));
        Self { count_max: CONNECTION_COUNT_MAX, first, idle, body, stall: STALL_MAX }
    }
}

impl ConnectionLimits {
    /// Returns the maximum number of anonymous connections per client.
    fn per_client_max(self) -> usize {
        (self.count_max / PER_CLIENT_PART).max(PER_CLIENT_MIN).min(self.count_max)
    }

    /// Returns the number of slots to keep free for new connections.
    fn free(self) -> usize {
        FREE.min(self.count_max / FREE_PART)
    }
}

/// Connection slots of an API. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Seats {
    limits: ConnectionLimits,
    free: Arc<Semaphore>,
    book: Arc<Mutex<Book>>,
    evicted: Arc<AtomicUsize>,
}

/// Evictable connections, the longest-waiting first, and the anonymous connections of each client.
#[derive(Default)]
struct Book {
    next_ticket: u64,
    waiting: BTreeMap<u64, Arc<Occupant>>,
    clients: HashMap<Client, Strangers>,
    /// Number of evicted connections that still occupy their slots.
    leaving: usize,
}

/// Anonymous connections of one client: their number, and the tickets of the evictable ones.
#[derive(Default)]
struct Strangers {
    count: usize,
    waiting: BTreeSet<u64>,
}

/// The shared state of a connection that occupies a slot.
struct Occupant {
    client: Client,
    /// Set while the connection counts as an anonymous one of its client.
    is_stranger: AtomicBool,
    /// Set once the connection was evicted.
    is_leaving: AtomicBool,
    give_way: Notify,
}

/// An occupied slot. Dropping it frees the slot.
pub(crate) struct Seat {
    seats: Seats,
    occupant: Arc<Occupant>,
    use_: Mutex<Use>,
    /// Set if the rest of a request's body was left unread.
    unread: Arc<AtomicBool>,
    _permit: OwnedSemaphorePermit,
}

/// Current activity of a connection.
#[derive(Debug)]
struct Use {
    is_friend: bool,
    /// Position in the eviction queue; `None` while the connection must not be evicted.
    ticket: Option<u64>,
    /// Number of requests in progress, and of those that passed the access checks.
    open: usize,
    let_in: usize,
    /// Number of answers with a piece in delivery: the connection has not asked for the next one
    /// yet.
    unasked: usize,
    asked_once: bool,
    /// Time of the last activity.
    since: Instant,
}

impl Seats {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, free: Arc::new(Semaphore::new(limits.count_max)), book: Arc::default(), evicted: Arc::default() }
    }

    pub(crate) fn limits(&self) -> ConnectionLimits {
        self.limits
    }

    /// Returns the number of occupied slots and of all slots.
    pub(crate) fn count(&self) -> (usize, usize) {
        (self.limits.count_max - self.free.available_permits(), self.limits.count_max)
    }

    /// Returns the number of evictions since the start.
    pub(crate) fn evicted_count(&self) -> usize {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Occupies a slot, evicting the longest-waiting anonymous connection if necessary.
    ///
    /// Returns `None` if this client has reached its limit and none of its connections can be
    /// evicted.
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

    /// Evicts anonymous connections until more slots than [`ConnectionLimits::free`] are free or
    /// about to be.
    fn make_room(&self) {
        let mut book = self.book();
        while self.free.available_permits() + book.leaving <= self.limits.free() && self.evict_from(&mut book, Book::oldest) {}
    }

    /// Evicts the connection that `choose` selects. Returns `false` if there is none.
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
    /// Returns the ticket of the connection that has waited longest.
    fn oldest(&self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    fn queue(&mut self, occupant: &Arc<Occupant>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        // a connection evicted while a request arrived is not queued again after the answer, or it
        // would be evicted and counted twice
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

    /// Stops counting the connection as an anonymous one of its client.
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

    /// Marks the connection as authenticated: it has presented a token or a certificate.
    pub(crate) fn befriend(&self) {
        let mut now = self.use_();
        if !now.is_friend {
            now.is_friend = true;
            let mut book = self.seats.book();
            now.ticket.take().and_then(|ticket| book.unqueue(ticket));
            book.no_stranger(&self.occupant);
        }
    }

    /// Starts the time limit for the first request, after the TLS handshake.
    pub(crate) fn begin(&self) {
        self.use_().since = Instant::now();
    }

    /// Returns the flag that asks to drain the connection before it is closed.
    pub(crate) fn unread(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.unread)
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn gives_way(&self) {
        self.occupant.give_way.notified().await;
    }

    /// Waits until the connection has been idle for too long.
    pub(crate) async fn overdue(&self) {
        loop {
            let deadline = self.deadline();
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }

    /// Returns when the connection will be overdue, or when to check again while it makes progress.
    fn deadline(&self) -> Instant {
        let (now, limits) = (self.use_(), self.seats.limits);
        match (now.open, now.unasked) {
            (0, _) if now.asked_once => now.since + limits.idle,
            (0, _) => now.since + limits.first,
            // all open answers wait for the client; with one that does not, the connection makes
            // progress
            (open, unasked) if unasked == open => now.since + limits.stall,
            _ => Instant::now() + limits.idle,
        }
    }

    pub(super) fn request_begins(&self) {
        let mut now = self.use_();
        now.open += 1;
        now.asked_once = true;
    }

    /// Records that a request passed the access checks, and whether it presented a token.
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
        // a connection with a request in progress is not evicted, and is the last in the queue
        // afterwards
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
        // ten of two hundred slots are kept free
        for number in 0..190 {
            strangers.push(seats.take(client(&format!("192.0.2.{number}"))).await.unwrap());
        }
        assert_eq!(seats.evicted_count(), 0);
        let began = Instant::now();
        for number in 0..10 {
            // none of the evicted connections has ended when the next one arrives
            strangers.push(seats.take(client(&format!("192.0.2.{number}"))).await.unwrap());
            assert!(told(&strangers[number]).await && !told(&strangers[number + 1]).await);
        }
        assert!(began.elapsed() < GIVING_WAY);
        assert_eq!((seats.count().0, seats.evicted_count()), (200, 10));
        strangers.drain(..10);
        assert_eq!((seats.count().0, seats.book().leaving), (190, 0));
        // authenticated connections are not evicted: they may use the slots that are kept free too
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

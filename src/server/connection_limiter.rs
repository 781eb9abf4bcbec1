//! Limits on open connections: how many may exist, which one is closed for a new one, and how long
//! a connection may stay idle.
//!
//! A connection is *anonymous* until a request on it presents a valid token or its handshake
//! presents a client certificate. The limit per client counts anonymous connections only. When
//! slots run out, the anonymous connections that have waited longest are closed: the time counts
//! from their start or from the end of their last request that passed the access checks. A few are
//! closed ahead of need, so that a new connection finds a free slot immediately. Anonymous clients
//! can therefore open any number of connections without locking out others.
//!
//! A connection is never evicted during a request that passed the access checks. If neither a token
//! nor a client CA is configured, all connections are anonymous, and this rule protects their
//! streams.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use super::write_timeout::WRITE_TIMEOUT;
use crate::admission::{Client, STREAM_COUNT_MAX};

/// Default maximum number of open connections: one for each stream, and 2,000 for other requests.
const CONNECTION_COUNT_MAX: usize = STREAM_COUNT_MAX + 2_000;

/// Maximum number of connections to `--health-listen`, in addition to those of the API.
///
/// A kubelet's three probes and a few Prometheus servers open one connection each. Other
/// connections are evicted for them after a moment.
pub const HEALTH_CONNECTION_COUNT_MAX: usize = 32;

/// Divisor for the share of one client: its anonymous connections may use all slots divided by
/// this.
///
/// A tenth, as for streams: nine other clients still find slots if one leaks connections, and one
/// client can open its share of the streams even without a token.
const PER_CLIENT_DIVISOR: usize = 10;

/// Minimum number of anonymous connections per client when the limit is small (few file
/// descriptors): six connections of a browser, for ten browsers.
const PER_CLIENT_MIN: usize = 60;

/// Number of slots kept free while anonymous connections can be evicted.
///
/// An accept loop accepts up to 128 connections before other tasks run (tokio's cooperative
/// budget). The evicted connections then run to their end before the loop continues. A larger
/// number would evict more clients, which all reconnect and make others wait.
const FREE_SLOTS_MAX: usize = 128;

/// Divisor for the number of free slots when the limit is small: at most all slots divided by this.
const FREE_SLOTS_DIVISOR: usize = 20;

/// Maximum time to wait for the slot of an evicted connection before the next one is evicted. A
/// slot is usually free as soon as the evicted task runs.
const EVICTION_WAIT_MAX: Duration = Duration::from_millis(100);

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
    pub first_request: Duration,
    /// Maximum time that a connection may stay open without a request, and time limit for later
    /// headers.
    ///
    /// Same as hyper's default. A client that keeps connections for longer finds them closed and
    /// opens another.
    pub idle: Duration,
    /// Time limit for the whole body of a request, so that a slow sender is cut off too. The
    /// longest body, 1 MiB, needs 280 kbit/s at 30 s.
    pub body: Duration,
    /// Maximum time that the client may take to accept a frame of a response
    /// (`server/write_timeout.rs`).
    pub write: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let (first_request, idle, body) = (Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(30));
        Self { count_max: CONNECTION_COUNT_MAX, first_request, idle, body, write: WRITE_TIMEOUT }
    }
}

impl ConnectionLimits {
    /// Returns the maximum number of anonymous connections per client.
    fn per_client_max(self) -> usize {
        (self.count_max / PER_CLIENT_DIVISOR).max(PER_CLIENT_MIN).min(self.count_max)
    }

    /// Returns the number of slots to keep free for new connections.
    fn free_slots(self) -> usize {
        FREE_SLOTS_MAX.min(self.count_max / FREE_SLOTS_DIVISOR)
    }
}

/// Connection slots of an API. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ConnectionLimiter {
    limits: ConnectionLimits,
    free: Arc<Semaphore>,
    queue: Arc<Mutex<EvictionQueue>>,
    eviction_count: Arc<AtomicUsize>,
}

/// Evictable connections, the longest-waiting first, and the anonymous connections of each client.
#[derive(Default)]
struct EvictionQueue {
    next_ticket: u64,
    waiting: BTreeMap<u64, Arc<OpenConnection>>,
    clients: HashMap<Client, AnonymousConnections>,
    /// Number of evicted connections that still occupy their slots.
    closing: usize,
}

/// Anonymous connections of one client: their number, and the tickets of the evictable ones.
#[derive(Default)]
struct AnonymousConnections {
    count: usize,
    waiting: BTreeSet<u64>,
}

/// Connection that occupies a slot, shared by its permit and the eviction queue.
struct OpenConnection {
    client: Client,
    /// Set while the connection counts as an anonymous one of its client.
    is_anonymous: AtomicBool,
    /// Set once the connection was evicted.
    is_evicted: AtomicBool,
    eviction: Notify,
}

/// An occupied slot. Dropping it frees the slot.
pub(crate) struct ConnectionPermit {
    limiter: ConnectionLimiter,
    connection: Arc<OpenConnection>,
    activity: Mutex<ConnectionActivity>,
    /// Set if the rest of a request's body was left unread.
    is_undrained: Arc<AtomicBool>,
    _permit: OwnedSemaphorePermit,
}

/// Current activity of a connection.
#[derive(Debug)]
struct ConnectionActivity {
    is_authenticated: bool,
    /// Position in the eviction queue; `None` while the connection must not be evicted.
    ticket: Option<u64>,
    /// Number of requests in progress.
    open_requests: usize,
    /// Number of requests in progress that passed the access checks.
    admitted_requests: usize,
    /// Number of responses with a frame in delivery: the connection has not polled for the next one
    /// yet.
    undelivered_frames: usize,
    had_request: bool,
    /// Time of the last activity.
    last_active: Instant,
}

impl ConnectionLimiter {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { limits, free: Arc::new(Semaphore::new(limits.count_max)), queue: Arc::default(), eviction_count: Arc::default() }
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
        self.eviction_count.load(Ordering::Relaxed)
    }

    /// Occupies a slot, evicting the longest-waiting anonymous connection if necessary.
    ///
    /// Returns `None` if this client has reached its limit and none of its connections can be
    /// evicted.
    pub(crate) async fn acquire(&self, client: Client) -> Option<ConnectionPermit> {
        self.evict_to_free_slots();
        let permit = loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                break permit;
            }
            if let Ok(permit) = timeout(EVICTION_WAIT_MAX, Arc::clone(&self.free).acquire_owned()).await {
                break permit.ok()?;
            }
            self.evict(EvictionQueue::oldest);
        };
        let is_full = || self.queue().clients.get(&client).is_some_and(|anonymous| anonymous.count >= self.limits.per_client_max());
        if is_full() && !self.evict(|queue| queue.clients.get(&client)?.waiting.first().copied()) {
            return None;
        }
        let connection = Arc::new(OpenConnection {
            client,
            is_anonymous: AtomicBool::new(true),
            is_evicted: AtomicBool::new(false),
            eviction: Notify::new(),
        });
        let mut queue = self.queue();
        queue.clients.entry(client).or_default().count += 1;
        let ticket = Some(queue.push(&connection));
        drop(queue);
        let activity = ConnectionActivity {
            is_authenticated: false,
            ticket,
            open_requests: 0,
            admitted_requests: 0,
            undelivered_frames: 0,
            had_request: false,
            last_active: Instant::now(),
        };
        Some(ConnectionPermit {
            limiter: self.clone(),
            connection,
            activity: Mutex::new(activity),
            is_undrained: Arc::default(),
            _permit: permit,
        })
    }

    /// Evicts anonymous connections until more slots than [`ConnectionLimits::free_slots`] are free
    /// or about to be.
    fn evict_to_free_slots(&self) {
        let mut queue = self.queue();
        while self.free.available_permits() + queue.closing <= self.limits.free_slots()
            && self.evict_from(&mut queue, EvictionQueue::oldest)
        {}
    }

    /// Evicts the connection that `choose` selects. Returns `false` if there is none.
    fn evict(&self, choose: impl Fn(&EvictionQueue) -> Option<u64>) -> bool {
        self.evict_from(&mut self.queue(), choose)
    }

    fn evict_from(&self, queue: &mut EvictionQueue, choose: impl Fn(&EvictionQueue) -> Option<u64>) -> bool {
        let Some(connection) = choose(queue).and_then(|ticket| queue.remove(ticket)) else { return false };
        queue.uncount_anonymous(&connection);
        queue.closing += 1;
        connection.is_evicted.store(true, Ordering::Relaxed);
        connection.eviction.notify_one();
        self.eviction_count.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn queue(&self) -> MutexGuard<'_, EvictionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EvictionQueue {
    /// Returns the ticket of the connection that has waited longest.
    fn oldest(&self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    fn push(&mut self, connection: &Arc<OpenConnection>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        // a connection evicted while a request arrived is not queued again after the answer, or it
        // would be evicted and counted twice
        if !connection.is_evicted.load(Ordering::Relaxed) {
            self.waiting.insert(ticket, Arc::clone(connection));
            self.clients.entry(connection.client).or_default().waiting.insert(ticket);
        }
        ticket
    }

    fn remove(&mut self, ticket: u64) -> Option<Arc<OpenConnection>> {
        let connection = self.waiting.remove(&ticket)?;
        if let Some(anonymous) = self.clients.get_mut(&connection.client) {
            anonymous.waiting.remove(&ticket);
        }
        Some(connection)
    }

    /// Stops counting the connection as an anonymous one of its client.
    fn uncount_anonymous(&mut self, connection: &OpenConnection) {
        if connection.is_anonymous.swap(false, Ordering::Relaxed)
            && let Some(anonymous) = self.clients.get_mut(&connection.client)
        {
            anonymous.count -= 1;
            if anonymous.count == 0 && anonymous.waiting.is_empty() {
                self.clients.remove(&connection.client);
            }
        }
    }
}

impl ConnectionPermit {
    fn activity(&self) -> MutexGuard<'_, ConnectionActivity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the connection as authenticated: it has presented a token or a certificate.
    pub(crate) fn authenticate(&self) {
        let mut activity = self.activity();
        if !activity.is_authenticated {
            activity.is_authenticated = true;
            let mut queue = self.limiter.queue();
            activity.ticket.take().and_then(|ticket| queue.remove(ticket));
            queue.uncount_anonymous(&self.connection);
        }
    }

    /// Starts the time limit for the first request, after the TLS handshake.
    pub(crate) fn handshake_done(&self) {
        self.activity().last_active = Instant::now();
    }

    /// Returns the flag that asks to drain the connection before it is closed.
    pub(crate) fn drain_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_undrained)
    }

    /// Waits until the connection is evicted.
    pub(crate) async fn evicted(&self) {
        self.connection.eviction.notified().await;
    }

    /// Waits until the connection has been idle for too long.
    pub(crate) async fn timed_out(&self) {
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
        let (activity, limits) = (self.activity(), self.limiter.limits);
        match (activity.open_requests, activity.undelivered_frames) {
            (0, _) if activity.had_request => activity.last_active + limits.idle,
            (0, _) => activity.last_active + limits.first_request,
            // every response waits for the client; otherwise the connection makes progress
            (open, undelivered) if undelivered == open => activity.last_active + limits.write,
            _ => Instant::now() + limits.idle,
        }
    }

    pub(super) fn request_started(&self) {
        let mut activity = self.activity();
        activity.open_requests += 1;
        activity.had_request = true;
    }

    /// Records that a request passed the access checks, and whether it presented a token.
    pub(super) fn request_admitted(&self, shows_token: bool) {
        if shows_token {
            self.authenticate();
        }
        let mut activity = self.activity();
        activity.admitted_requests += 1;
        if let Some(ticket) = activity.ticket.take() {
            self.limiter.queue().remove(ticket);
        }
    }

    pub(super) fn request_ended(&self, was_admitted: bool) {
        let mut activity = self.activity();
        activity.open_requests -= 1;
        activity.last_active = Instant::now();
        if was_admitted {
            activity.admitted_requests -= 1;
            if activity.admitted_requests == 0 && !activity.is_authenticated {
                activity.ticket = Some(self.limiter.queue().push(&self.connection));
            }
        }
    }

    pub(super) fn frame_passed(&self) {
        let mut activity = self.activity();
        activity.undelivered_frames += 1;
        activity.last_active = Instant::now();
    }

    pub(super) fn frame_written(&self) {
        let mut activity = self.activity();
        activity.undelivered_frames -= 1;
        activity.last_active = Instant::now();
    }

    pub(super) fn mark_undrained(&self) {
        self.is_undrained.store(true, Ordering::Relaxed);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let ticket = self.activity().ticket;
        let mut queue = self.limiter.queue();
        ticket.and_then(|ticket| queue.remove(ticket));
        queue.uncount_anonymous(&self.connection);
        queue.closing -= usize::from(self.connection.is_evicted.load(Ordering::Relaxed));
    }
}

impl fmt::Debug for ConnectionLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionLimiter").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl fmt::Debug for ConnectionPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionPermit").field("client", &self.connection.client).field("use", &*self.activity()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

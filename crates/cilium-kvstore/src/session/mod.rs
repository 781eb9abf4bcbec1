//! A session: one etcd for as long as the program wants it, above connections that end.
//!
//! A [`Connection`] is one etcd process and dies with it. A session opens the next one, over the endpoints in turn, and keeps what outlives a
//! connection: leases and their observers, locks, watches, and whether etcd can still agree on something. Invariant: a lease of a
//! history that is gone (another cluster id, an older revision) is lost, whatever that etcd says. Deliberately lacks: retries of operations (who
//! asks knows what to do), any meaning of keys and values.

mod deletes;
mod in_process;
mod interval;
mod leases;
mod life;
mod lock;
mod locked;
mod mutex;
mod operations;
mod status;
mod transaction;
mod users;
mod watcher;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::in_process::PathLocks;
use self::leases::Leases;
use self::lock::Janitor;
use crate::{ClientOptions, Connection, EtcdConfig, KvstoreError, LeaseId};

pub use self::deletes::{DeleteWatcher, Deleted};
pub use self::interval::status_check_interval;
pub use self::leases::LostKeys;
pub use self::lock::KvLocker;
pub use self::mutex::LockKey;
pub use self::operations::Life;
pub use self::status::{EndpointStatus, SessionStatus};
pub use self::transaction::{Condition, Write};
pub use self::watcher::{EventKind, KeyValueEvent, Watcher};

/// How many nodes there are, which scales the interval of status checks.
pub type ClusterSize = Arc<dyn Fn() -> u64 + Send + Sync>;

/// How a session is kept. The defaults are Cilium's (`pkg/kvstore/etcd.go`, `pkg/kvstore/config.go`).
#[derive(Clone)]
pub struct SessionOptions {
    /// The limits of each connection: pace, calls in flight, pages, times.
    pub client: ClientOptions,
    /// How long keys live without this session. Cilium (`--kvstore-lease-ttl`): 15 min, from 25 s to 24 h.
    pub lease_ttl: Duration,
    /// How long locks do. Cilium: 25 s.
    pub lock_ttl: Duration,
    /// How many keys hang on one lease at most: etcd deletes all of an expired one in one go. Cilium: 1,000.
    pub keys_per_lease_max: u32,
    /// Whether a close takes its leases, and with them its keys, away at once (old releases) or lets them run out, so that a restart takes
    /// nothing from readers (the default, as Cilium's today).
    pub revoke_on_close: bool,
    /// Whether each status check takes a lock for a moment, to see that etcd has a quorum.
    pub quorum_check: bool,
    /// Whether each status check asks each endpoint for its status, and gives the connection up if none answers.
    pub endpoint_check: bool,
    /// How many checks of the quorum in a row may fail before the connection counts as broken. Cilium (`--kvstore-max-consecutive-quorum-errors`): 2.
    pub quorum_errors_max: u32,
    /// Whether single reads and lists are answered by the member that is asked, without asking the others: they may be old, and cost no quorum.
    pub serializable_reads: bool,
    /// The number of nodes, which spreads status checks out; `None`: no spreading, as in KVStoreMesh.
    pub cluster_size: Option<ClusterSize>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            client: ClientOptions::default(),
            lease_ttl: Duration::from_secs(15 * 60),
            lock_ttl: Duration::from_secs(25),
            keys_per_lease_max: 1000,
            revoke_on_close: false,
            quorum_check: true,
            endpoint_check: true,
            quorum_errors_max: 2,
            serializable_reads: false,
            cluster_size: None,
        }
    }
}

impl fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions").field("client", &self.client).field("lease_ttl", &self.lease_ttl).finish_non_exhaustive()
    }
}

/// One etcd, written to and read. Clones share it. [`Session::close`] or its cancellation token end it.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionState>,
}

struct SessionState {
    file: EtcdConfig,
    options: SessionOptions,
    cancel: CancellationToken,
    tasks: TaskTracker,
    link: watch::Sender<Link>,
    keys: Leases,
    locks: Leases,
    paths: PathLocks,
    janitor: Janitor,
    caught_up: AtomicBool,
    status: Mutex<SessionStatus>,
}

/// The connection that there is.
#[derive(Clone, Default)]
struct Link {
    connection: Option<Connection>,
    /// The heartbeat was listed: operations may count on it.
    ready: bool,
    /// Why there is none.
    cause: Option<String>,
}

impl Session {
    /// Begins a session, which connects in the background, again and again. Needs a tokio runtime.
    #[must_use]
    pub fn start(file: EtcdConfig, options: SessionOptions, cancel: CancellationToken) -> Self {
        let keys = Leases::new(options.lease_ttl, options.keys_per_lease_max);
        let locks = Leases::new(options.lock_ttl, options.keys_per_lease_max);
        let shared = Arc::new(SessionState {
            file,
            options,
            cancel,
            tasks: TaskTracker::new(),
            link: watch::Sender::new(Link::default()),
            keys,
            locks,
            paths: PathLocks::default(),
            janitor: Janitor::default(),
            caught_up: AtomicBool::new(false),
            status: Mutex::new(SessionStatus::default()),
        });
        shared.tasks.spawn(life::run(Arc::clone(&shared)));
        Self { shared }
    }

    /// Waits until there is a connection, with its heartbeat's range listed and, unless that is off, a lease for locks.
    ///
    /// # Errors
    /// `Closed`, if the session ends before.
    pub async fn connected(&self) -> Result<(), KvstoreError> {
        let mut link = self.shared.link.subscribe();
        tokio::select! {
            biased;
            () = self.shared.cancel.cancelled() => Err(closed("connecting")),
            _ = link.wait_for(|link| link.ready) => Ok(()),
        }
    }

    /// Waits until a connection that stood is lost, or the session ends. Begins by waiting for one.
    pub async fn disconnected(&self) {
        if self.connected().await.is_err() {
            return;
        }
        let mut link = self.shared.link.subscribe();
        tokio::select! {
            _ = link.wait_for(|link| !link.ready) => {}
            () = self.shared.cancel.cancelled() => {}
        }
    }

    /// Whether there is a connection now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.link.borrow().ready
    }

    /// How the session is.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let link = self.shared.link.borrow();
        status.connected = link.ready;
        status.cause = link.cause.clone();
        status.leases = self.shared.keys.count();
        status.lock_leases = self.shared.locks.count();
        status
    }

    /// All that was to be done at the start is done: requests are paced as usual from now on, also over later connections.
    pub fn caught_up(&self) {
        self.shared.caught_up.store(true, Ordering::Relaxed);
        if let Some(connection) = &self.shared.link.borrow().connection {
            connection.caught_up();
        }
    }

    /// Sets the observer that is called when keys with this prefix lose their lease, in place of the one before. It must be quick: leases are not renewed
    /// meanwhile. Of several prefixes that a key begins with the longest counts.
    pub fn on_lease_lost(&self, prefix: &[u8], observer: impl Fn(&LostKeys) + Send + Sync + 'static) {
        self.shared.keys.observe(prefix, Some(Arc::new(observer)));
    }

    /// Nobody is told any more.
    pub fn forget_lease_observer(&self, prefix: &[u8]) {
        self.shared.keys.observe(prefix, None);
    }

    /// The lease of this session that a key hangs on.
    #[must_use]
    pub fn lease_of(&self, key: &[u8]) -> Option<LeaseId> {
        self.shared.keys.lease_of(key)
    }

    /// Takes over a key that hangs on the lease of another session: that lease is renewed from now on, and the key counted on it. Where the lease
    /// is gone, the observers of lost leases are called.
    pub fn adopt(&self, key: &[u8], lease: LeaseId) {
        if lease.0 != 0 {
            self.shared.keys.adopt(key, lease);
        }
    }

    /// Waits until the session is closed.
    pub async fn closed(&self) {
        self.shared.cancel.cancelled().await;
    }

    /// Runs something for as long as the session, or until it is stopped.
    pub(crate) fn spawn(&self, stop: CancellationToken, run: impl Future<Output = ()> + Send + 'static) {
        let cancel = self.shared.cancel.clone();
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = cancel.cancelled() => {}
                () = run => {}
            }
        });
    }

    /// Ends the session: watches end, operations fail. Its keys stay until their leases run out, unless it is to revoke them, which is tried
    /// once.
    pub async fn close(&self) {
        let connection = self.shared.link.borrow().connection.clone();
        self.shared.cancel.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        let Some(connection) = connection.filter(|_| self.shared.options.revoke_on_close) else { return };
        for lease in self.shared.keys.ids().into_iter().chain(self.shared.locks.ids()) {
            if let Err(error) = connection.revoke(lease).await {
                tracing::warn!(%error, "a lease is not revoked: its keys stay until it runs out");
            }
        }
    }
}

impl SessionState {
    /// The connection, waited for as long as a call may take.
    async fn connection(&self, what: impl Fn() -> String) -> Result<Connection, KvstoreError> {
        let limit = self.options.client.request_timeout;
        let mut link = self.link.subscribe();
        let waiting = async { link.wait_for(|link| link.ready).await.ok().and_then(|link| link.connection.clone()) };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(KvstoreError::Closed { what: what() }),
            found = tokio::time::timeout(limit, waiting) => match found {
                Ok(Some(connection)) => Ok(connection),
                Ok(None) | Err(_) => Err(KvstoreError::NotConnected { what: what(), cause: self.link.borrow().cause.clone() }),
            },
        }
    }

    /// The connection, however long that takes; `None` once the session is closed.
    async fn connection_at_last(&self) -> Option<Connection> {
        let mut link = self.link.subscribe();
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            found = link.wait_for(|link| link.ready) => found.ok().and_then(|link| link.connection.clone()),
        }
    }
}

fn closed(what: &str) -> KvstoreError {
    KvstoreError::Closed { what: what.to_owned() }
}

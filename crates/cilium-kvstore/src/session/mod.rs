//! Sessions: long-lived access to one etcd over a series of connections.
//!
//! A [`Connection`] belongs to one etcd process and ends with it. A session then opens the next
//! connection, trying the endpoints in turn. It keeps the state that is independent of a
//! connection: leases and their observers, locks, watches, and the result of the quorum checks.
//!
//! If the etcd's history changes (another cluster id, an older revision), all leases count as lost,
//! regardless of what that etcd reports. Operations are not retried, because only the caller knows
//! how to react.

mod deletes;
mod interval;
mod leases;
mod lock;
mod locked;
mod mutex;
mod operations;
mod path_locks;
mod reconnect;
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

use self::leases::Leases;
use self::lock::LockCleaner;
use self::path_locks::PathLocks;
use crate::{ClientOptions, Connection, EtcdConfig, KvstoreError, LeaseId};

pub use self::deletes::{DeleteEvent, DeleteWatcher};
pub use self::interval::status_check_interval;
pub use self::leases::LostKeys;
pub use self::lock::KvLocker;
pub use self::mutex::LockKey;
pub use self::operations::KeyLifetime;
pub use self::status::{EndpointStatus, SessionStatus};
pub use self::transaction::{Condition, Write};
pub use self::watcher::{EventKind, KeyValueEvent, Watcher};

/// Function that returns the number of nodes, which scales the interval of status checks.
pub type ClusterSize = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Options of a session. The defaults are Cilium's (`pkg/kvstore/etcd.go`,
/// `pkg/kvstore/config.go`).
#[derive(Clone)]
pub struct SessionOptions {
    /// Limits of each connection: request rate, calls in flight, page size, timeouts.
    pub client: ClientOptions,
    /// Lifetime of keys after the session ends. Cilium (`--kvstore-lease-ttl`): 15 min, from 25 s
    /// to 24 h.
    pub lease_ttl: Duration,
    /// Lifetime of locks after the session ends. Cilium: 25 s.
    pub lock_ttl: Duration,
    /// Maximum number of keys per lease. Limited because etcd deletes all keys of an expired lease
    /// at once. Cilium: 1,000.
    pub keys_per_lease_max: u32,
    /// True if [`Session::close`] revokes the leases and thereby deletes their keys, as old
    /// releases of Cilium did. By default the leases expire, as in current Cilium, so that readers
    /// do not notice a restart.
    pub revoke_on_close: bool,
    /// True if each status check locks a path for a moment, to check that etcd has a quorum.
    pub quorum_check: bool,
    /// True if each status check requests the status of every endpoint. If no endpoint answers, the
    /// connection is dropped.
    pub endpoint_check: bool,
    /// Maximum consecutive failures of the quorum check before the connection counts as broken.
    /// Cilium (`--kvstore-max-consecutive-quorum-errors`): 2.
    pub quorum_errors_max: u32,
    /// True if the connected member may answer single reads and lists without a quorum. The answers
    /// may be stale.
    pub serializable_reads: bool,
    /// Number of nodes, which scales the interval of the status checks. `None` keeps the base
    /// interval, as in KVStoreMesh.
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

/// Session with one etcd, for reads and writes. Clones share the session. [`Session::close`] or the
/// cancellation of its token ends it.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionState>,
}

struct SessionState {
    config: EtcdConfig,
    options: SessionOptions,
    cancel: CancellationToken,
    tasks: TaskTracker,
    connection_state: watch::Sender<CurrentConnection>,
    /// Leases of keys, except the keys of locks.
    key_leases: Leases,
    /// Leases of the lock keys.
    lock_leases: Leases,
    paths: PathLocks,
    lock_cleaner: LockCleaner,
    bootstrap_ended: AtomicBool,
    status: Mutex<SessionStatus>,
}

/// State of the current connection.
#[derive(Clone, Default)]
struct CurrentConnection {
    connection: Option<Connection>,
    /// True if the heartbeat was listed, so that operations may use the connection.
    ready: bool,
    /// Reason why there is no connection.
    cause: Option<String>,
}

impl Session {
    /// Starts a session, which connects in the background and reconnects after each failure. Needs
    /// a tokio runtime.
    #[must_use]
    pub fn start(config: EtcdConfig, options: SessionOptions, cancel: CancellationToken) -> Self {
        let key_leases = Leases::new(options.lease_ttl, options.keys_per_lease_max);
        let lock_leases = Leases::new(options.lock_ttl, options.keys_per_lease_max);
        let shared = Arc::new(SessionState {
            config,
            options,
            cancel,
            tasks: TaskTracker::new(),
            connection_state: watch::Sender::new(CurrentConnection::default()),
            key_leases,
            lock_leases,
            paths: PathLocks::default(),
            lock_cleaner: LockCleaner::default(),
            bootstrap_ended: AtomicBool::new(false),
            status: Mutex::new(SessionStatus::default()),
        });
        shared.tasks.spawn(reconnect::run(Arc::clone(&shared)));
        Self { shared }
    }

    /// Waits until the session has a connection, has listed the heartbeat's range and, unless the
    /// quorum check is off, has a lease for locks.
    ///
    /// # Errors
    /// `Closed` if the session is closed first.
    pub async fn connected(&self) -> Result<(), KvstoreError> {
        let mut current = self.shared.connection_state.subscribe();
        tokio::select! {
            biased;
            () = self.shared.cancel.cancelled() => Err(closed("connecting")),
            _ = current.wait_for(|current| current.ready) => Ok(()),
        }
    }

    /// Waits for a connection, and then until it is lost or the session ends.
    pub async fn disconnected(&self) {
        if self.connected().await.is_err() {
            return;
        }
        let mut current = self.shared.connection_state.subscribe();
        tokio::select! {
            _ = current.wait_for(|current| !current.ready) => {}
            () = self.shared.cancel.cancelled() => {}
        }
    }

    /// Returns whether there is a connection now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.connection_state.borrow().ready
    }

    /// Returns the status of the session.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        let mut status = self.shared.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let current = self.shared.connection_state.borrow();
        status.connected = current.ready;
        status.cause = current.cause.clone();
        status.leases = self.shared.key_leases.count();
        status.lock_leases = self.shared.lock_leases.count();
        status
    }

    /// Ends the bootstrap phase: from now on, the requests of this and later connections use the
    /// normal rate limit.
    pub fn end_bootstrap(&self) {
        self.shared.bootstrap_ended.store(true, Ordering::Relaxed);
        if let Some(connection) = &self.shared.connection_state.borrow().connection {
            connection.end_bootstrap();
        }
    }

    /// Sets the observer that is called when keys with this prefix lose their lease, and replaces
    /// the prefix's previous observer. The observer must be fast, because no lease is renewed while
    /// it runs. If several prefixes match a key, the observer of the longest prefix is called.
    pub fn on_lease_lost(&self, prefix: &[u8], observer: impl Fn(&LostKeys) + Send + Sync + 'static) {
        self.shared.key_leases.set_observer(prefix, Some(Arc::new(observer)));
    }

    /// Removes the observer of a prefix.
    pub fn remove_lease_observer(&self, prefix: &[u8]) {
        self.shared.key_leases.set_observer(prefix, None);
    }

    /// Returns the lease of this session that a key is attached to.
    #[must_use]
    pub fn lease_of(&self, key: &[u8]) -> Option<LeaseId> {
        self.shared.key_leases.lease_of(key)
    }

    /// Adopts a key that is attached to the lease of another session: this session renews the lease
    /// from now on. If the lease no longer exists, the observers of lost leases are called.
    pub fn adopt(&self, key: &[u8], lease: LeaseId) {
        if lease.0 != 0 {
            self.shared.key_leases.adopt(key, lease);
        }
    }

    /// Waits until the session is closed.
    pub async fn closed(&self) {
        self.shared.cancel.cancelled().await;
    }

    /// Spawns a future that ends with the session or when `stop` is cancelled.
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

    /// Closes the session: watches end and operations fail. Its keys stay until their leases
    /// expire, unless [`SessionOptions::revoke_on_close`] is set; then each lease is revoked with a
    /// single attempt.
    pub async fn close(&self) {
        let connection = self.shared.connection_state.borrow().connection.clone();
        self.shared.cancel.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        let Some(connection) = connection.filter(|_| self.shared.options.revoke_on_close) else { return };
        for lease in self.shared.key_leases.ids().into_iter().chain(self.shared.lock_leases.ids()) {
            if let Err(error) = connection.revoke(lease).await {
                tracing::warn!(%error, "cannot revoke a lease: its keys stay until it expires");
            }
        }
    }
}

impl SessionState {
    /// Waits for the connection, at most as long as the request timeout.
    async fn connection(&self, operation: impl Fn() -> String) -> Result<Connection, KvstoreError> {
        let limit = self.options.client.request_timeout;
        let mut current = self.connection_state.subscribe();
        let waiting = async { current.wait_for(|current| current.ready).await.ok().and_then(|current| current.connection.clone()) };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(KvstoreError::Closed { operation: operation() }),
            result = tokio::time::timeout(limit, waiting) => match result {
                Ok(Some(connection)) => Ok(connection),
                Ok(None) | Err(_) => Err(KvstoreError::NotConnected { operation: operation(), cause: self.connection_state.borrow().cause.clone() }),
            },
        }
    }

    /// Waits for the connection without a time limit; `None` once the session is closed.
    async fn wait_for_connection(&self) -> Option<Connection> {
        let mut current = self.connection_state.subscribe();
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            state = current.wait_for(|current| current.ready) => state.ok().and_then(|current| current.connection.clone()),
        }
    }
}

fn closed(operation: &str) -> KvstoreError {
    KvstoreError::Closed { operation: operation.to_owned() }
}

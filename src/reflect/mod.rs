//! Writes the mirrored clusters into an etcd below `cilium/cache`, as a KVStoreMesh does, from a
//! mirror that survives restarts.
//!
//! Several meshkeeps may run, but only the one that has the lock `cilium/kvstoremesh-lock` writes
//! (`Term`). A KVStoreMesh uses the same lock. The leader writes entries, canaries, cluster configs
//! and the heartbeat, and withdraws removed clusters. It writes the newest raw bytes that the
//! source sent, even if meshkeep rejects the value. The rules:
//! - A key is deleted only if the source has confirmed its kind since this process started, and the
//!   confirmed kind does not have the key.
//! - While a kind is only restored from disk, a complete copy in the target stays unchanged.
//! - Keys are attached to leases that outlive this process; leases of an earlier process are
//!   adopted.

mod cluster;
mod compare;
mod target;
mod term;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::target::Target;
use self::term::Term;
use crate::handle::Handle;
use cilium_kvstore::{EtcdConfig, KvLocker, Session, SessionOptions};

/// Lock of the process that writes below `cilium/cache` (Cilium v1.20,
/// `clustermesh-apiserver/kvstoremesh`).
const LEADER_LOCK: &[u8] = b"cilium/kvstoremesh-lock";

/// Maximum time that a stop waits for the release of the lock (as in Cilium). After that the lock's
/// lease expires.
const UNLOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which a pending attempt to acquire the lock shows that another process has it.
/// Nothing else takes that long over a working connection.
const LOCK_IS_HELD_AFTER: Duration = Duration::from_secs(2);

/// Wait after a failed attempt to acquire the lock.
const LOCK_RETRY_WAIT: Duration = Duration::from_secs(1);

/// Options of the reflector.
#[derive(Debug, Clone)]
pub struct ReflectOptions {
    /// Client configuration of the target etcd.
    pub etcd: EtcdConfig,
    /// Options of the session with the target.
    pub session: SessionOptions,
    /// Time between the deletion of a removed cluster's config and of its entries, so that agents
    /// can leave the cluster (KVStoreMesh: 3 min).
    pub drain_grace: Duration,
    /// Interval after which a kind of a cluster is compared with the target again, which finds
    /// changes by other clients that no watch reported.
    pub audit_interval: Duration,
}

/// Reflects until `stop` is cancelled. Written keys stay until their leases expire.
pub async fn run(handle: Handle, options: ReflectOptions, stop: CancellationToken) {
    // if the mirror never loads, wait for `stop`
    let Some(signal) = handle.signal_once_loaded().await else { return stop.cancelled().await };
    let session = Session::start(options.etcd.clone(), options.session.clone(), CancellationToken::new());
    let target = Arc::new(Target::new(handle.clone(), session.clone(), options.session.client.requests_in_flight_max));
    // weak, because the target owns the handle: a strong reference would form a cycle
    let reported = Arc::downgrade(&target);
    handle.set_reflection_source(move || reported.upgrade().map(|target| target.reflection()).unwrap_or_default());
    while let Some(lock) = acquire_lock(&target, &stop).await {
        tracing::info!("reflecting: this meshkeep writes to the target");
        target.begin_term();
        let mut term = Term::new(Arc::clone(&target), signal.clone(), (options.drain_grace, options.audit_interval));
        tokio::select! {
            () = stop.cancelled() => {}
            () = lock.lost() => tracing::warn!("reflecting: lost the lock, another meshkeep may write now"),
            () = term.run() => {}
        }
        target.end_term();
        match timeout(UNLOCK_TIMEOUT, lock.unlock()).await {
            Ok(Ok(())) => tracing::debug!("reflecting: released the lock of the target"),
            Ok(Err(error)) => tracing::debug!(%error, "reflecting: cannot release the lock of the target, it expires with its lease"),
            Err(_) => tracing::debug!("reflecting: the lock of the target was not released in time, it expires with its lease"),
        }
    }
    session.close().await;
}

/// Waits until this process has the lock. Returns `None` when `stop` is cancelled.
async fn acquire_lock(target: &Target, stop: &CancellationToken) -> Option<KvLocker> {
    loop {
        let locking = target.session.lock_path_without_limit(LEADER_LOCK);
        let locking = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            locking = locking => locking,
            never = clear_error_while_waiting(target) => match never {},
        };
        match locking {
            Ok(lock) => return Some(lock),
            Err(error) => {
                let text = error.to_string();
                if target.record_error(Some(text.clone())) {
                    tracing::warn!(error = text, hint = error.hint(), "reflecting: cannot lock the target; trying again");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(LOCK_RETRY_WAIT) => {}
        }
    }
}

/// Clears an earlier error once the connection is up and the attempt waits for the lock's holder.
async fn clear_error_while_waiting(target: &Target) -> Infallible {
    loop {
        tokio::time::sleep(LOCK_IS_HELD_AFTER).await;
        if target.session.is_connected() && target.record_error(None) {
            tracing::info!("reflecting: another meshkeep writes to the target, this one waits");
        }
    }
}

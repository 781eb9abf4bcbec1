//! Writes the mirrored clusters into an etcd below `cilium/cache`, as a KVStoreMesh does, from a
//! mirror that survives restarts.
//!
//! Several meshkeeps may run: the one that has `cilium/kvstoremesh-lock`, which a KVStoreMesh takes
//! too, writes (`Term`). It writes entries, canaries, cluster configs and the heartbeat, and
//! withdraws removed clusters. Values are written as raw bytes, the newest that the source sent,
//! even if meshkeep rejects them. The rules:
//! - A key is deleted only if its kind was confirmed by the source since this process started and
//!   does not have the key.
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
const UNLOCKING_MAX: Duration = Duration::from_secs(2);

/// An attempt to take the lock that lasts longer than this is waiting for the lock's holder. Over a
/// working connection everything else is much faster.
const WAITING_FROM: Duration = Duration::from_secs(2);

/// Wait after a failed attempt to take the lock.
const LOCKING_INTERVAL: Duration = Duration::from_secs(1);

/// Options of the reflector.
#[derive(Debug, Clone)]
pub struct ReflectOptions {
    /// etcd of the target.
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
    // weak, because the target holds the handle
    let reported = Arc::downgrade(&target);
    handle.set_reflection_source(move || reported.upgrade().map(|target| target.reflection()).unwrap_or_default());
    while let Some(lock) = lead(&target, &stop).await {
        tracing::info!("reflecting: this meshkeep writes to the target");
        target.begin();
        let mut term = Term::new(Arc::clone(&target), signal.clone(), (options.drain_grace, options.audit_interval));
        tokio::select! {
            () = stop.cancelled() => {}
            () = lock.lost() => tracing::warn!("reflecting: lost the lock, another meshkeep may write now"),
            () = term.run() => {}
        }
        target.forget();
        let unlocked = timeout(UNLOCKING_MAX, lock.unlock()).await;
        tracing::debug!(?unlocked, "the lock was released");
    }
    session.close().await;
}

/// Waits until this process has the lock. Returns `None` when `stop` is cancelled.
async fn lead(target: &Target, stop: &CancellationToken) -> Option<KvLocker> {
    loop {
        let locking = target.session.lock_path_for_long(LEADER_LOCK);
        let locking = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            locking = locking => locking,
            never = forget_trouble(target) => match never {},
        };
        match locking {
            Ok(lock) => return Some(lock),
            Err(error) => {
                let text = error.to_string();
                if target.note_trouble(Some(text.clone())) {
                    tracing::warn!(error = text, hint = error.hint(), "reflecting: cannot lock the target; trying again");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(LOCKING_INTERVAL) => {}
        }
    }
}

/// Clears an earlier error once the connection is up and the attempt waits for the lock's holder.
async fn forget_trouble(target: &Target) -> Infallible {
    loop {
        tokio::time::sleep(WAITING_FROM).await;
        if target.session.is_connected() && target.note_trouble(None) {
            tracing::info!("reflecting: another meshkeep writes to the target, this one waits");
        }
    }
}

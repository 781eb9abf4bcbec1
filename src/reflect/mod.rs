//! Reflecting: the mirrored clusters, written into an etcd below `cilium/cache` as a KVStoreMesh writes them, from a mirror that is warm.
//!
//! Owns: which of several meshkeeps writes (`cilium/kvstoremesh-lock`, which a KVStoreMesh takes too), what of each cluster is compared, written and
//! pruned, canaries, cluster configs, the heartbeat, and how a removed cluster is withdrawn. Receives: the [`Handle`]'s readings. Emits: raw bytes, the
//! newest that came, usable or not. Invariants: nothing is pruned but what a kind does not have that the source confirmed since this process began;
//! while a kind is only restored from disk, what stands complete in the target is left alone; keys hang on leases that outlive this process, and those
//! of one before are taken over. Deliberately lacks: any other path to etcd than `kvstore`'s sessions.

mod canaries;
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
use crate::kvstore::{ClientFile, KvLocker, Session, SessionOptions};

/// The lock of whoever writes below `cilium/cache` (Cilium v1.20, `clustermesh-apiserver/kvstoremesh`).
const LEADER_LOCK: &[u8] = b"cilium/kvstoremesh-lock";

/// How long a stop waits for the lock to be let go of (as in Cilium); its lease ends it anyway.
const UNLOCKING_MAX: Duration = Duration::from_secs(2);

/// What a try for the lock takes over a connection that is sound, and much more: one that lasts longer waits for who has it.
const WAITING_FROM: Duration = Duration::from_secs(2);

/// How long after a failed try for the lock the next one comes.
const LOCKING_INTERVAL: Duration = Duration::from_secs(1);

/// Where and how to reflect.
#[derive(Debug, Clone)]
pub struct ReflectOptions {
    /// The target's client file.
    pub file: ClientFile,
    /// How it is written to.
    pub session: SessionOptions,
    /// How long a removed cluster's entries stay after its cluster config went, so that its agents may leave in order (KVStoreMesh: 3 min).
    pub drain_grace: Duration,
    /// How often everything that stands in the target is compared, a kind of a cluster at a time: what somebody else writes there is not told.
    pub audit_interval: Duration,
}

/// Reflects until it is stopped. Stopping takes nothing away: what was written stays for as long as its leases.
pub async fn run(handle: Handle, options: ReflectOptions, stop: CancellationToken) {
    // a task that waits for a mirror that never loads waits for the stop
    let Some(signal) = handle.signal_once_loaded().await else { return stop.cancelled().await };
    let session = Session::start(options.file.clone(), options.session.clone(), CancellationToken::new());
    let target = Arc::new(Target::new(handle.clone(), session.clone(), options.session.client.requests_in_flight_max));
    // the target holds the handle
    let told = Arc::downgrade(&target);
    handle.reflects(move || told.upgrade().map(|target| target.reflection()).unwrap_or_default());
    while let Some(lock) = lead(&target, &stop).await {
        tracing::info!("reflecting: this meshkeep writes to the target");
        target.begin();
        let mut term = Term::new(Arc::clone(&target), signal.clone(), (options.drain_grace, options.audit_interval));
        tokio::select! {
            () = stop.cancelled() => {}
            () = lock.lost() => tracing::warn!("reflecting: the lock is lost, somebody else may write now"),
            () = term.run() => {}
        }
        target.forget();
        let unlocked = timeout(UNLOCKING_MAX, lock.unlock()).await;
        tracing::debug!(?unlocked, "let go of the lock");
    }
    session.close().await;
}

/// Waits until this process is the one that writes; `None` when it is to stop.
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
                    tracing::warn!(error = text, hint = error.hint(), "reflecting: the target cannot be locked; trying again");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(LOCKING_INTERVAL) => {}
        }
    }
}

/// While the lock is waited for, over a connection, an earlier trouble is over.
async fn forget_trouble(target: &Target) -> Infallible {
    loop {
        tokio::time::sleep(WAITING_FROM).await;
        if target.session.is_connected() && target.note_trouble(None) {
            tracing::info!("reflecting: another one writes to the target, and this one waits");
        }
    }
}

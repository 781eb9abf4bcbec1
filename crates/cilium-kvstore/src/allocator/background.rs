//! Background tasks of an allocator: following the store, and restoring the numbers that this node
//! uses.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::iter;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::backend::{Backend, Id, Mutation, UpdateOutcome};
use super::event::AllocatorEvent;
use super::key::AllocatorKey;
use super::shared::AllocatorShared;
use crate::Backoff;

/// Capacity of the queue of changes to apply: one page of a list (`etcd.limit`, 256).
const MUTATIONS_MAX: usize = 256;

/// Maximum concurrent checks of numbers in the store: about the number of tasks that allocate at
/// the same time on a busy node.
const CHECKS_MAX: usize = 16;

/// First wait after a failure.
const BACKOFF_MIN: Duration = Duration::from_secs(1);

/// Longest wait after failures. 30 attempts fit into the TTL of the leases that references are
/// attached to (15 minutes).
const BACKOFF_MAX: Duration = Duration::from_secs(30);

pub(super) fn start<B: Backend>(shared: &Arc<AllocatorShared<B>>) {
    shared.tasks.spawn(follow(Arc::clone(shared)));
    shared.tasks.spawn(check_periodically(Arc::clone(shared)));
}

/// Follows the store until the allocator is stopped.
async fn follow<B: Backend>(shared: Arc<AllocatorShared<B>>) {
    let (sender, mut mutations) = mpsc::channel(MUTATIONS_MAX);
    let apply_all = async {
        while let Some(mutation) = mutations.recv().await {
            apply_mutation(&shared, mutation).await;
        }
    };
    let stopped = shared.stop.clone();
    stopped.run_until_cancelled(async { tokio::join!(shared.backend.list_and_watch(sender, shared.stop.clone()), apply_all) }).await;
}

/// Applies a change of the store to the copy and publishes it. If a number in use was deleted,
/// starts to write it again.
async fn apply_mutation<B: Backend>(shared: &Arc<AllocatorShared<B>>, mutation: Mutation) {
    let is_list_done = mutation == Mutation::ListDone;
    let effects = shared.state().apply(mutation, &shared.options);
    if is_list_done {
        shared.listed.send_replace(true);
    }
    shared.changed.notify_waiters();
    publish(shared, effects.event).await;
    if let Some((id, key)) = effects.restore
        && shared.state().restoring.insert(id)
    {
        shared.tasks.spawn(restore(Arc::clone(shared), id, key));
    }
}

async fn publish<B>(shared: &AllocatorShared<B>, event: Option<AllocatorEvent>) {
    if let (Some(event), Some(events)) = (event, &shared.options.events) {
        // sending fails only if the receiver was dropped
        let _ = events.send(event).await;
    }
}

/// Writes a number to the store again, and retries while the number is in use on this node.
async fn restore<B: Backend>(shared: Arc<AllocatorShared<B>>, id: Id, key: AllocatorKey) {
    let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    while let Err(reason) = check_number(&shared, id, &key).await {
        tracing::warn!(id = id.number(), %key, reason, "an identity in use was deleted from the store and cannot be written again yet");
        if shared.stop.run_until_cancelled(sleep(backoff.next_wait())).await.is_none() {
            break;
        }
    }
    shared.state().restoring.remove(&id);
    // the copy ignored the deletion, because the number was in use; if the key was released
    // meanwhile, the deletion is applied now
    if shared.state().local.id(&key).is_none() {
        let effects = shared.state().apply(Mutation::Delete(id), &shared.options);
        publish(&shared, effects.event).await;
    }
}

/// Checks all numbers in use on this node at the sync interval, and immediately when references may
/// have been lost.
async fn check_periodically<B: Backend>(shared: Arc<AllocatorShared<B>>) {
    let mut listed = shared.listed.subscribe();
    let stopped = shared.stop.clone();
    let check_forever = async {
        let _ = listed.wait_for(|listed| *listed).await;
        let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
        loop {
            let references_lost = shared.backend.references_lost();
            let interval = if check_all(&shared).await {
                backoff.reset();
                shared.options.sync_interval
            } else {
                Some(backoff.next_wait())
            };
            let due = async {
                match interval {
                    Some(interval) => sleep(interval).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = references_lost => {}
                () = due => {}
            }
        }
    };
    stopped.run_until_cancelled(check_forever).await;
}

/// Checks in the store all numbers in use on this node, and deletes references whose state is
/// uncertain. Returns whether all of this succeeded.
pub(super) async fn check_all<B: Backend>(shared: &Arc<AllocatorShared<B>>) -> bool {
    let (used, uncertain_references) = {
        let state = shared.state();
        (state.local.verified(), state.uncertain_references.clone())
    };
    let failures = iter(used).map(|(id, key)| async move { check_number(shared, id, &key).await }).buffer_unordered(CHECKS_MAX);
    let mut failures = std::pin::pin!(failures.filter_map(|result| async { result.err() }));
    let mut reason = None;
    while let Some(failure) = failures.next().await {
        reason.get_or_insert(failure);
    }
    for (key, id) in uncertain_references {
        if let Err(error) = shared.delete_uncertain_reference(id, &key).await {
            reason.get_or_insert(error.to_string());
        }
    }
    if let Some(reason) = &reason {
        tracing::warn!(reason, "cannot check the identities in use in the store");
    }
    reason.is_none()
}

/// Makes sure that the store has a number's entry and this node's reference to it, if the number is
/// in use on this node. Returns the reason if this fails.
async fn check_number<B: Backend>(shared: &Arc<AllocatorShared<B>>, id: Id, key: &AllocatorKey) -> Result<(), String> {
    let key_mutex = shared.key_mutex(key).lock().await;
    if shared.state().local.id(key) != Some(id) {
        return Ok(());
    }
    let limit = shared.options.operation_max;
    let outcome = timeout(limit, shared.backend.update_key(id, key)).await;
    match outcome.map_err(|_| format!("no answer within {limit:?}"))?.map_err(|error| error.to_string())? {
        UpdateOutcome::Unchanged => {}
        UpdateOutcome::Rewritten => tracing::info!(id = id.number(), %key, "wrote an identity in use again that was missing in the store"),
        UpdateOutcome::Lost => {
            let event = shared.state().forget_lost(id, key);
            drop(key_mutex);
            tracing::error!(id = id.number(), %key, "an identity in use was lost: its references expired, and the number was reused");
            publish(shared, event).await;
        }
    }
    Ok(())
}

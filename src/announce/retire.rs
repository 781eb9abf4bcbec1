//! Deletes the keys of an announced cluster, in the order that KVStoreMesh uses
//! (docs/develop/protocol.md §3.7): readers leave the cluster once its config is deleted, and
//! disregard everything that is deleted after it.

use std::time::Duration;

use tokio::time::sleep;

use super::plan::{ClusterPlan, Resource};
use super::publish::is_own;
use crate::model::CLUSTER_LABEL;
use crate::wire::keys::{cluster_config_key, synced_prefix, watched_prefix};
use cilium_kvstore::allocator::{AllocatorKey, Id};
use cilium_kvstore::{Condition, KvstoreError, Session, Write};

/// Prefix of the allocator's references to identities (Cilium's "slave keys"): each has the labels
/// of an identity that a process uses.
const REFERENCES_PREFIX: &str = "cilium/state/identities/v1/value/";

/// Deletes all keys of the cluster. Keys that do not name a cluster are recognised by their
/// identity.
pub(super) async fn delete_cluster_keys(session: &Session, plan: &ClusterPlan, grace: Duration) -> Result<(), KvstoreError> {
    session.delete(cluster_config_key(&plan.cluster).as_bytes()).await?;
    tracing::info!(cluster = %plan.cluster, grace_s = grace.as_secs_f64(), "the config of cluster {} is deleted: waiting for clients to notice", plan.cluster);
    sleep(grace).await;
    session.delete_prefix(synced_prefix(&plan.cluster).as_bytes()).await?;
    let label = format!("{CLUSTER_LABEL}={};", plan.cluster);
    for existing in session.list_prefix(REFERENCES_PREFIX.as_bytes()).await? {
        if String::from_utf8_lossy(&existing.key).contains(&label) {
            session.delete(&existing.key).await?;
        }
    }
    // in the order of their names in KVStoreMesh
    for resource in [Resource::Ips, Resource::Identities, Resource::Nodes, Resource::Services] {
        let prefix = watched_prefix(resource.kind(), &plan.cluster, false);
        let mut count = 0;
        for existing in session.list_prefix(prefix.as_bytes()).await? {
            let is_ours = match resource {
                Resource::Identities => is_own_identity(plan, &existing.key[prefix.len()..], &existing.value),
                Resource::Ips | Resource::Nodes | Resource::Services => is_own(plan, resource, &existing.value),
            };
            if is_ours
                && session.write_if(&[Condition::WrittenAt(&existing.key, existing.mod_revision)], &[Write::Delete(&existing.key)]).await?
            {
                count += 1;
            }
        }
        tracing::info!(cluster = %plan.cluster, prefix, count, "deleted {count} keys of cluster {} below {prefix}", plan.cluster);
    }
    session.delete(format!("cilium/.announce/holder/{}", plan.cluster).as_bytes()).await?;
    Ok(())
}

/// Returns whether an identity has a number of the cluster's range and the cluster's label.
fn is_own_identity(plan: &ClusterPlan, number: &[u8], labels: &[u8]) -> bool {
    let id = str::from_utf8(number).ok().and_then(Id::parse);
    let key = AllocatorKey::from_text(&String::from_utf8_lossy(labels));
    id.is_some_and(|id| plan.range().contains(id)) && key.label(CLUSTER_LABEL) == Some(plan.cluster.as_str())
}

//! Finds the clusters of which an etcd has a config or nodes. This is needed if the etcd lacks the
//! config of the cluster that the client file is named after.
//!
//! The users of a KVStoreMesh may list all cluster configs. The role `remote` in the etcd of one
//! cluster may read only that cluster's config, and the nodes, whose keys name the cluster
//! (docs/develop/protocol.md §7.6).

use crate::model::{ClusterName, Kind, MissingConfig};
use crate::wire::keys;
use cilium_kvstore::{Connection, KvstoreError, prefix_end};

/// Maximum number of other clusters that are named in the result, so that it fits into a line of
/// text. A KVStoreMesh's etcd has up to 511.
const CLUSTERS_NAMED_MAX: usize = 16;

/// Number of config keys that are read: the named clusters, the cluster itself, and one more that
/// shows that there are others.
const CONFIGS_READ_MAX: u32 = 18;

/// Returns the clusters of which an etcd has a config or nodes, as far as its user may see them.
/// Needs at most two small reads.
///
/// `denied` says that the user may not read the config of `cluster`.
///
/// # Errors
/// [`KvstoreError`], except for missing permissions.
pub async fn find_clusters_in_etcd(connection: &Connection, cluster: &ClusterName, denied: bool) -> Result<MissingConfig, KvstoreError> {
    let mut others = clusters_with_config(connection).await?;
    others.retain(|other| other != cluster);
    let has_more = others.len() > CLUSTERS_NAMED_MAX;
    others.truncate(CLUSTERS_NAMED_MAX);
    let mut has_nodes_of_cluster = false;
    if others.is_empty() {
        let node_cluster = cluster_of_nodes(connection).await?;
        has_nodes_of_cluster = node_cluster.as_ref() == Some(cluster);
        others.extend(node_cluster.filter(|other| other != cluster));
    }
    Ok(MissingConfig { denied, others, has_more, has_nodes_of_cluster })
}

/// Returns the clusters whose config the user may list.
async fn clusters_with_config(connection: &Connection) -> Result<Vec<ClusterName>, KvstoreError> {
    let prefix = keys::CLUSTER_CONFIGS.as_bytes();
    let first_keys = empty_if_denied(connection.first_keys(prefix, &prefix_end(prefix), CONFIGS_READ_MAX).await)?;
    Ok(first_keys.iter().filter_map(|key| cluster_name(key.strip_prefix(prefix)?)).collect())
}

/// Returns the cluster that the first node's key names.
async fn cluster_of_nodes(connection: &Connection) -> Result<Option<ClusterName>, KvstoreError> {
    let prefix = format!("{}{}/", keys::root(false), Kind::Node.base()).into_bytes();
    let first_key = empty_if_denied(connection.first_keys(&prefix, &prefix_end(&prefix), 1).await)?;
    let name = |key: &[u8]| cluster_name(key.strip_prefix(prefix.as_slice())?.split(|byte| *byte == b'/').next()?);
    Ok(first_key.first().and_then(|key| name(key)))
}

fn cluster_name(bytes: &[u8]) -> Option<ClusterName> {
    ClusterName::parse(str::from_utf8(bytes).ok()?).ok()
}

/// Treats a denied read as an empty result.
fn empty_if_denied(result: Result<Vec<Vec<u8>>, KvstoreError>) -> Result<Vec<Vec<u8>>, KvstoreError> {
    match result {
        Err(KvstoreError::PermissionDenied { .. }) => Ok(Vec::new()),
        result => result,
    }
}

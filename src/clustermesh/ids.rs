//! Cluster ids in use: no two clusters may have the same one (Cilium's
//! `pkg/clustermesh/common/idsmgr.go`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::model::{ClusterId, ClusterName};

/// Cluster ids of the mesh and the clusters that hold them. The ids of stored clusters are reserved
/// from the start, so a stored cluster wins over a new one.
#[derive(Debug, Default)]
pub(super) struct ReservedClusterIds {
    holders: Mutex<BTreeMap<ClusterId, ClusterName>>,
}

/// Another cluster holds the id.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster id {id} is already used by cluster {holder}: ids must be unique in the mesh")]
pub(super) struct IdInUse {
    id: ClusterId,
    holder: ClusterName,
}

impl ReservedClusterIds {
    pub(super) fn new(stored: impl Iterator<Item = (ClusterId, ClusterName)>) -> Self {
        Self { holders: Mutex::new(stored.collect()) }
    }

    /// Reserves an id for a cluster and releases any other id that it held.
    pub(super) fn reserve(&self, id: ClusterId, cluster: &ClusterName) -> Result<(), IdInUse> {
        let mut holders = self.lock();
        if let Some(holder) = holders.get(&id).filter(|holder| *holder != cluster) {
            return Err(IdInUse { id, holder: holder.clone() });
        }
        holders.retain(|_, holder| holder != cluster);
        holders.insert(id, cluster.clone());
        Ok(())
    }

    pub(super) fn release(&self, cluster: &ClusterName) {
        self.lock().retain(|_, holder| holder != cluster);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ClusterId, ClusterName>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_cluster_keeps_its_id_until_it_is_released() {
        let name = |text| ClusterName::parse(text).unwrap();
        let ids = ReservedClusterIds::new([(ClusterId(1), name("paris"))].into_iter());
        assert_eq!(ids.reserve(ClusterId(1), &name("tokyo")), Err(IdInUse { id: ClusterId(1), holder: name("paris") }));
        assert_eq!(ids.reserve(ClusterId(1), &name("paris")), Ok(()));
        assert_eq!(ids.reserve(ClusterId(2), &name("paris")), Ok(()));
        assert_eq!(ids.reserve(ClusterId(1), &name("tokyo")), Ok(()));
        ids.release(&name("paris"));
        assert_eq!(ids.reserve(ClusterId(2), &name("tokyo")), Ok(()));
    }
}

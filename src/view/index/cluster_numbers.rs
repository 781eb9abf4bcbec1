//! Interned cluster names: indices refer to a cluster by a small number.

use imbl::{OrdMap, Vector};

use crate::model::ClusterName;

/// Numbers of clusters. They are never reused, because there are only a few hundred clusters.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct ClusterNumbers {
    names: Vector<ClusterName>,
    numbers: OrdMap<ClusterName, u32>,
}

impl ClusterNumbers {
    /// Returns the number of a cluster. Assigns one if necessary.
    pub(in crate::view) fn assign(&mut self, cluster: &ClusterName) -> u32 {
        if let Some(number) = self.number(cluster) {
            return number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push_back(cluster.clone());
        self.numbers.insert(cluster.clone(), number);
        number
    }

    /// Returns the number of a cluster, if it has one.
    pub(in crate::view) fn number(&self, cluster: &ClusterName) -> Option<u32> {
        self.numbers.get(cluster).copied()
    }

    /// Returns the cluster with a number.
    pub(in crate::view) fn name(&self, number: u32) -> Option<&ClusterName> {
        self.names.get(number as usize)
    }
}

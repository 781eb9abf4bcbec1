//! Interned names of clusters: a small number for each, by which indices name it.

use imbl::{OrdMap, Vector};

use crate::model::ClusterName;

/// Numbers of clusters. One that was given stays; there are few hundred clusters, and few come and go.
#[derive(Debug, Clone, Default)]
pub(in crate::view) struct ClusterNumbers {
    names: Vector<ClusterName>,
    numbers: OrdMap<ClusterName, u32>,
}

impl ClusterNumbers {
    /// The number of a cluster, a new one if it has none yet.
    pub(in crate::view) fn assign(&mut self, cluster: &ClusterName) -> u32 {
        if let Some(number) = self.number(cluster) {
            return number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.names.push_back(cluster.clone());
        self.numbers.insert(cluster.clone(), number);
        number
    }

    /// The number of a cluster that has one.
    pub(in crate::view) fn number(&self, cluster: &ClusterName) -> Option<u32> {
        self.numbers.get(cluster).copied()
    }

    /// The cluster of a number.
    pub(in crate::view) fn name(&self, number: u32) -> Option<&ClusterName> {
        self.names.get(number as usize)
    }
}

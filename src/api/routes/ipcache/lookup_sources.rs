//! Clusters and kinds that lookups used, for the ages in an answer.

use std::collections::BTreeSet;

use crate::handle::{LookupMatch, Reading, SourceMeta};
use crate::model::{ClusterName, Kind};

/// Kinds that ipcache entries are read from: some entries are derived from nodes.
pub(super) const IPCACHE_KINDS: [Kind; 2] = [Kind::Ip, Kind::Node];

/// Kinds that a lookup joins.
const LOOKUP_KINDS: [Kind; 3] = [Kind::Ip, Kind::Identity, Kind::Node];

/// Clusters that lookups used. A lookup without a match used the ipcache of all clusters.
#[derive(Debug, Default)]
pub(super) struct LookupSources {
    clusters: BTreeSet<ClusterName>,
    all: bool,
}

impl LookupSources {
    pub(super) fn add(&mut self, matches: &[LookupMatch]) {
        self.all |= matches.is_empty();
        for found in matches {
            if !self.clusters.contains(&found.record.key.cluster) {
                self.clusters.insert(found.record.key.cluster.clone());
            }
        }
    }

    pub(super) fn sources(&self, reading: &Reading) -> Vec<SourceMeta> {
        let joined = self.clusters.iter().flat_map(|cluster| reading.sources(cluster, LOOKUP_KINDS));
        // collected only if needed: with hundreds of clusters, it takes longer than a lookup
        let all = if self.all { reading.cluster_names() } else { Vec::new() };
        let others = all.into_iter().filter(|name| !self.clusters.contains(name));
        let others = others.flat_map(|cluster| reading.sources(&cluster, IPCACHE_KINDS));
        joined.chain(others).collect()
    }
}

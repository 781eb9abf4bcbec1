//! Diagnosis of a missing cluster config: which cluster the etcd of a client file probably belongs
//! to.

use std::time::Instant;

use crate::model::{ClusterName, FindingKind};

/// Content of an etcd in which the config of the client file's cluster cannot be read: the other
/// clusters that have a config or nodes there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MissingConfig {
    /// Whether the user has no permission to read `cilium/cluster-config/<cluster>`. Otherwise the
    /// key does not exist.
    pub denied: bool,
    /// Other clusters whose configs the etcd has, sorted.
    pub others: Vec<ClusterName>,
    /// Whether the etcd has more clusters than `others`.
    pub has_more: bool,
    /// Whether the etcd has nodes of the cluster itself, as with a release that writes no cluster
    /// config.
    pub has_nodes_of_cluster: bool,
}

/// A [`MissingConfig`] and its start time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingConfigState {
    /// Time when the config was first missing.
    pub since: Instant,
    /// Content of the etcd at the last check.
    pub missing: MissingConfig,
}

impl MissingConfig {
    /// Returns a sentence about the cluster that the etcd probably belongs to.
    #[must_use]
    pub fn describe(&self, cluster: &ClusterName) -> String {
        let key = format!("cilium/cluster-config/{cluster}");
        let denied = if self.denied { format!(" (permission denied on {key})") } else { String::new() };
        match self.others.as_slice() {
            [other] if !self.has_more => format!("this etcd belongs to cluster {other}, not {cluster}{denied}"),
            [] if self.denied => format!("permission denied on {key}, and this etcd has no other cluster"),
            [] if self.has_nodes_of_cluster => format!("{key} does not exist, although this etcd has nodes of {cluster}"),
            [] => format!("{key} does not exist, and this etcd has no other cluster"),
            others => {
                let names: Vec<&str> = others.iter().map(ClusterName::as_str).collect();
                let more = if self.has_more { " and more" } else { "" };
                format!("this etcd has no config of {cluster}, only of {}{more}{denied}", names.join(", "))
            }
        }
    }

    /// Returns advice on what to do.
    #[must_use]
    pub fn advice(&self, cluster: &ClusterName) -> String {
        if !self.others.is_empty() {
            return format!(
                "correct the endpoints in the client file of {cluster}; or, if this is the right etcd, rename the file to the name of the cluster (cluster.name)"
            );
        }
        if self.denied {
            return format!(
                "check that the endpoints are those of {cluster}, and that the file has the name of the cluster (cluster.name); the user needs the role `remote` in the etcd of its clustermesh-apiserver (or `local` in that of a KVStoreMesh)"
            );
        }
        if self.has_nodes_of_cluster {
            return format!(
                "check that its clustermesh-apiserver runs; if its Cilium is too old to write a cluster config, use --legacy-clusters {cluster}"
            );
        }
        FindingKind::ClusterConfigMissing.advice().replace("{subject}", cluster.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ClusterName {
        ClusterName::parse(text).unwrap()
    }

    #[test]
    fn the_description_names_the_cluster_of_the_etcd() {
        let missing =
            |others: &[&str]| MissingConfig { others: others.iter().map(|other| name(other)).collect(), ..MissingConfig::default() };
        let denied = |others: &[&str]| MissingConfig { denied: true, ..missing(others) };
        for (missing, expected) in [
            (missing(&["paris"]), "this etcd belongs to cluster paris, not rome"),
            (missing(&["paris", "oslo"]), "this etcd has no config of rome, only of paris, oslo"),
            (MissingConfig { has_more: true, ..missing(&["paris"]) }, "this etcd has no config of rome, only of paris and more"),
            (denied(&["paris"]), "this etcd belongs to cluster paris, not rome (permission denied on cilium/cluster-config/rome)"),
            (denied(&[]), "permission denied on cilium/cluster-config/rome, and this etcd has no other cluster"),
            (missing(&[]), "cilium/cluster-config/rome does not exist, and this etcd has no other cluster"),
            (
                MissingConfig { has_nodes_of_cluster: true, ..missing(&[]) },
                "cilium/cluster-config/rome does not exist, although this etcd has nodes of rome",
            ),
        ] {
            assert_eq!(missing.describe(&name("rome")), expected);
            assert!(missing.advice(&name("rome")).contains("rome") || missing.has_nodes_of_cluster, "{missing:?}");
        }
    }
}

//! A cluster config that is missing from the etcd of a client file, and whose etcd that probably is.

use std::time::Instant;

use crate::model::ClusterName;

/// What an etcd has where the config of the cluster that its client file is named after cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MissingConfig {
    /// Whether the user may not read `cilium/cluster-config/<cluster>`. Otherwise the key does not exist.
    pub denied: bool,
    /// The other clusters that the etcd describes, in order.
    pub others: Vec<ClusterName>,
    /// Whether there are more of them than these.
    pub has_more: bool,
    /// Whether there are nodes of the cluster itself, as in the etcd of a release that writes no cluster config.
    pub has_own_nodes: bool,
}

/// A [`MissingConfig`], and since when it has been missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingConfigState {
    /// When it was first missing.
    pub since: Instant,
    /// What the etcd has, as of the last check.
    pub missing: MissingConfig,
}

impl MissingConfig {
    /// Says whose etcd this is.
    #[must_use]
    pub fn describe(&self, cluster: &ClusterName) -> String {
        let key = format!("cilium/cluster-config/{cluster}");
        let denied = if self.denied { format!(" (permission denied on {key})") } else { String::new() };
        match self.others.as_slice() {
            [other] if !self.has_more => format!("this etcd describes {other}, not {cluster}{denied}"),
            [] if self.denied => format!("permission denied on {key}, and no other cluster is seen in this etcd"),
            [] if self.has_own_nodes => format!("{key} does not exist, although this etcd has nodes of {cluster}"),
            [] => format!("{key} does not exist, and no other cluster is seen in this etcd"),
            others => {
                let names: Vec<&str> = others.iter().map(ClusterName::as_str).collect();
                let more = if self.has_more { " and more" } else { "" };
                format!("no config of {cluster}; it has {}{more}{denied}", names.join(", "))
            }
        }
    }

    /// Says what to do.
    #[must_use]
    pub fn advice(&self, cluster: &ClusterName) -> String {
        if !self.others.is_empty() {
            return format!(
                "correct the endpoints in the file of {cluster}; or, if this is the right etcd, name the file as the cluster names itself (cluster.name)"
            );
        }
        if self.denied {
            return format!(
                "are the endpoints those of {cluster}, and is the file named as the cluster names itself (cluster.name)? The user needs the role `remote` of its clustermesh-apiserver's etcd (or `local` of a KVStoreMesh's)"
            );
        }
        let legacy = format!("a release too old to write a cluster config is read with --legacy-clusters {cluster}");
        if self.has_own_nodes {
            return format!("see whether its clustermesh-apiserver runs; {legacy}");
        }
        format!("see whether its clustermesh-apiserver has written it, and whether the endpoints are those of {cluster}; {legacy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ClusterName {
        ClusterName::parse(text).unwrap()
    }

    #[test]
    fn whose_etcd_it_is_is_said_in_a_line() {
        let missing =
            |others: &[&str]| MissingConfig { others: others.iter().map(|other| name(other)).collect(), ..MissingConfig::default() };
        let denied = |others: &[&str]| MissingConfig { denied: true, ..missing(others) };
        for (missing, expected) in [
            (missing(&["paris"]), "this etcd describes paris, not rome"),
            (missing(&["paris", "oslo"]), "no config of rome; it has paris, oslo"),
            (MissingConfig { has_more: true, ..missing(&["paris"]) }, "no config of rome; it has paris and more"),
            (denied(&["paris"]), "this etcd describes paris, not rome (permission denied on cilium/cluster-config/rome)"),
            (denied(&[]), "permission denied on cilium/cluster-config/rome, and no other cluster is seen in this etcd"),
            (missing(&[]), "cilium/cluster-config/rome does not exist, and no other cluster is seen in this etcd"),
            (
                MissingConfig { has_own_nodes: true, ..missing(&[]) },
                "cilium/cluster-config/rome does not exist, although this etcd has nodes of rome",
            ),
        ] {
            assert_eq!(missing.describe(&name("rome")), expected);
            assert!(missing.advice(&name("rome")).contains("rome") || missing.has_own_nodes, "{missing:?}");
        }
    }
}

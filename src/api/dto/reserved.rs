//! Identities that have the same meaning in every cluster, by number (Cilium's
//! `pkg/identity/numericidentity.go`).

use crate::model::{CLUSTER_LABEL, ClusterName, LabelSet, NAMESPACE_LABEL, SERVICE_ACCOUNT_LABEL};

/// Names of the reserved identities. The index is the number. Those from 11 on are Cilium 1.20's,
/// for policy maps: no etcd has them. Some earlier versions use 11 only inside a host.
const RESERVED: [&str; 15] = [
    "unknown",
    "host",
    "world",
    "unmanaged",
    "health",
    "init",
    "remote-node",
    "kube-apiserver",
    "ingress",
    "world-ipv4",
    "world-ipv6",
    "aggregate-cluster",
    "aggregate-cluster-mesh",
    "aggregate-world",
    "aggregate-remote-node",
];

/// Identity of nodes with an API server. It also has the label of remote nodes
/// (`reservedIdentityLabels`).
const KUBE_APISERVER: u32 = 7;

/// Number of the first well-known identity.
const WELL_KNOWN_FIRST: u32 = 100;

/// Number of well-known components. The numbers from 108 on are the same eight components for
/// Kubernetes 1.21 and later, with the label [`NAMESPACE_NAME_LABEL`].
const WELL_KNOWN_COUNT: usize = 8;

/// Label of a pod's namespace, taken from the namespace's own labels (`PodNamespaceMetaNameLabel`).
const NAMESPACE_NAME_LABEL: &str = "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name";

/// A component with a well-known identity (`InitWellKnownIdentities`).
struct WellKnownIdentity {
    name: &'static str,
    service_account: &'static str,
    /// Namespace of the component. `None` for the namespace of Cilium, whose name is only in
    /// Cilium's own configuration.
    namespace: Option<&'static str>,
    labels: &'static [(&'static str, &'static str)],
}

/// Well-known components by number, from 100 on. Cilium misspells two labels of the last one, so
/// that they have no effect. They are left out here.
const WELL_KNOWN: [WellKnownIdentity; WELL_KNOWN_COUNT] = [
    WellKnownIdentity {
        name: "etcd-operator",
        service_account: "cilium-etcd-sa",
        namespace: None,
        labels: &[("k8s:io.cilium/app", "etcd-operator")],
    },
    WellKnownIdentity {
        name: "cilium-kvstore",
        service_account: "default",
        namespace: None,
        labels: &[("k8s:app", "etcd"), ("k8s:etcd_cluster", "cilium-etcd"), ("k8s:io.cilium/app", "etcd-operator")],
    },
    WellKnownIdentity {
        name: "kube-dns",
        service_account: "kube-dns",
        namespace: Some("kube-system"),
        labels: &[("k8s:k8s-app", "kube-dns")],
    },
    WellKnownIdentity {
        name: "eks-kube-dns",
        service_account: "kube-dns",
        namespace: Some("kube-system"),
        labels: &[("k8s:k8s-app", "kube-dns"), ("k8s:eks.amazonaws.com/component", "kube-dns")],
    },
    WellKnownIdentity {
        name: "coredns",
        service_account: "coredns",
        namespace: Some("kube-system"),
        labels: &[("k8s:k8s-app", "kube-dns")],
    },
    WellKnownIdentity {
        name: "cilium-operator",
        service_account: "cilium-operator",
        namespace: None,
        labels: &[
            ("k8s:name", "cilium-operator"),
            ("k8s:io.cilium/app", "operator"),
            ("k8s:app.kubernetes.io/part-of", "cilium"),
            ("k8s:app.kubernetes.io/name", "cilium-operator"),
        ],
    },
    WellKnownIdentity {
        name: "eks-coredns",
        service_account: "coredns",
        namespace: Some("kube-system"),
        labels: &[("k8s:k8s-app", "kube-dns"), ("k8s:eks.amazonaws.com/component", "coredns")],
    },
    WellKnownIdentity {
        name: "cilium-etcd-operator",
        service_account: "cilium-etcd-operator",
        namespace: None,
        labels: &[("k8s:name", "cilium-etcd-operator"), ("k8s:io.cilium/app", "etcd-operator")],
    },
];

/// Returns the name of a reserved or well-known identity.
pub(crate) fn name(id: u32) -> Option<&'static str> {
    let reserved = usize::try_from(id).ok().and_then(|index| RESERVED.get(index)).copied();
    reserved.or_else(|| well_known(id).map(|(component, _)| component.name))
}

/// Returns the built-in labels of a reserved or well-known identity. Labels that a cluster
/// announces take precedence over them.
///
/// If `cluster` is given, a well-known identity also has the label of that cluster.
pub(crate) fn labels(id: u32, cluster: Option<&ClusterName>) -> Option<LabelSet> {
    if let Some((component, names_namespace)) = well_known(id) {
        return Some(component.labels_in(names_namespace, cluster));
    }
    let mut labels = LabelSet::from([(format!("reserved:{}", name(id)?), String::new())]);
    if id == KUBE_APISERVER {
        labels.insert("reserved:remote-node".to_owned(), String::new());
    }
    Some(labels)
}

/// Returns a well-known component, and whether the number belongs to its variant with
/// [`NAMESPACE_NAME_LABEL`].
fn well_known(id: u32) -> Option<(&'static WellKnownIdentity, bool)> {
    let index = usize::try_from(id.checked_sub(WELL_KNOWN_FIRST)?).ok()?;
    (index < 2 * WELL_KNOWN_COUNT).then(|| (&WELL_KNOWN[index % WELL_KNOWN_COUNT], index >= WELL_KNOWN_COUNT))
}

impl WellKnownIdentity {
    fn labels_in(&self, names_namespace: bool, cluster: Option<&ClusterName>) -> LabelSet {
        let fixed = self.labels.iter().copied().chain([(SERVICE_ACCOUNT_LABEL, self.service_account)]);
        let namespace = self.namespace.map(|namespace| (NAMESPACE_LABEL, namespace));
        let named = self.namespace.filter(|_| names_namespace).map(|namespace| (NAMESPACE_NAME_LABEL, namespace));
        let cluster = cluster.map(|cluster| (CLUSTER_LABEL, cluster.as_str()));
        let all = fixed.chain(namespace).chain(named).chain(cluster);
        all.map(|(label, value)| (label.to_owned(), value.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_have_the_names_of_cilium() {
        let names = [
            (0, Some("unknown")),
            (1, Some("host")),
            (2, Some("world")),
            (3, Some("unmanaged")),
            (4, Some("health")),
            (5, Some("init")),
            (6, Some("remote-node")),
            (7, Some("kube-apiserver")),
            (8, Some("ingress")),
            (9, Some("world-ipv4")),
            (10, Some("world-ipv6")),
            (11, Some("aggregate-cluster")),
            (12, Some("aggregate-cluster-mesh")),
            (13, Some("aggregate-world")),
            (14, Some("aggregate-remote-node")),
            (15, None),
            (99, None),
            (100, Some("etcd-operator")),
            (101, Some("cilium-kvstore")),
            (102, Some("kube-dns")),
            (103, Some("eks-kube-dns")),
            (104, Some("coredns")),
            (105, Some("cilium-operator")),
            (106, Some("eks-coredns")),
            (107, Some("cilium-etcd-operator")),
            (108, Some("etcd-operator")),
            (115, Some("cilium-etcd-operator")),
            (116, None),
            (128, None),
            (255, None),
            (256, None),
            (u32::MAX, None),
        ];
        for (id, expected) in names {
            assert_eq!(name(id), expected, "{id}");
        }
    }

    #[test]
    fn identities_have_the_labels_of_cilium() {
        let paris = ClusterName::parse("paris").unwrap();
        let dns = "k8s:io.cilium.k8s.policy.serviceaccount=coredns k8s:io.kubernetes.pod.namespace=kube-system k8s:k8s-app=kube-dns";
        let cases = [
            (2, Some(&paris), "reserved:world="),
            (7, None, "reserved:kube-apiserver= reserved:remote-node="),
            (10, None, "reserved:world-ipv6="),
            (14, None, "reserved:aggregate-remote-node="),
            (104, None, dns),
            (104, Some(&paris), &format!("k8s:io.cilium.k8s.policy.cluster=paris {dns}")),
            (112, None, &format!("k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=kube-system {dns}")),
            (108, None, "k8s:io.cilium.k8s.policy.serviceaccount=cilium-etcd-sa k8s:io.cilium/app=etcd-operator"),
        ];
        for (id, cluster, expected) in cases {
            let found = labels(id, cluster).unwrap();
            let text: Vec<String> = found.iter().map(|(label, value)| format!("{label}={value}")).collect();
            assert_eq!(text.join(" "), expected, "{id}");
        }
        assert_eq!((labels(15, None), labels(130, None), labels(256, None)), (None, None, None));
    }
}

//! Identities that mean the same in every cluster, by number (Cilium's `pkg/identity/numericidentity.go`).

use crate::model::LabelSet;

/// Reserved identities; the index is the number.
const RESERVED: [&str; 11] =
    ["unknown", "host", "world", "unmanaged", "health", "init", "remote-node", "kube-apiserver", "ingress", "world-ipv4", "world-ipv6"];

/// The first well-known identity.
const WELL_KNOWN_FIRST: u32 = 100;

/// Well-known identities from 100 on; from 108 on the same eight again in their second variant.
const WELL_KNOWN: [&str; 8] =
    ["etcd-operator", "cilium-kvstore", "kube-dns", "eks-kube-dns", "coredns", "cilium-operator", "eks-coredns", "cilium-etcd-operator"];

/// The name of a reserved or well-known identity.
pub(crate) fn name(id: u32) -> Option<&'static str> {
    let index = usize::try_from(id).ok()?;
    let well_known = || {
        let index = usize::try_from(id.checked_sub(WELL_KNOWN_FIRST)?).ok()?;
        (index < 2 * WELL_KNOWN.len()).then(|| WELL_KNOWN[index % WELL_KNOWN.len()])
    };
    RESERVED.get(index).copied().or_else(well_known)
}

/// The labels that a reserved or well-known identity has where no cluster says otherwise.
pub(crate) fn labels(id: u32) -> Option<LabelSet> {
    name(id).map(|name| LabelSet::from([(format!("reserved:{name}"), String::new())]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_ciliums_names() {
        let found: Vec<Option<&str>> = [0, 1, 2, 6, 10, 11, 99, 100, 107, 108, 115, 116, u32::MAX].map(name).to_vec();
        let expected = [
            Some("unknown"),
            Some("host"),
            Some("world"),
            Some("remote-node"),
            Some("world-ipv6"),
            None,
            None,
            Some("etcd-operator"),
            Some("cilium-etcd-operator"),
            Some("etcd-operator"),
            Some("cilium-etcd-operator"),
            None,
            None,
        ];
        assert_eq!(found, expected);
        assert_eq!(labels(2), Some(LabelSet::from([("reserved:world".to_owned(), String::new())])));
    }
}

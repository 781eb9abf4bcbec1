//! Names of Cilium's keys in etcd: below `cilium/state` in a cluster's own etcd, and below
//! `cilium/cache` in the copy of a KVStoreMesh.
//!
//! The rules are those of Cilium's `pkg/clustermesh/kvstoremesh/reflector` and `pkg/kvstore/store`.
//! In this module, `cached` selects the copy.

use super::quoted;
use crate::model::{ClusterName, EntryKey, Kind};

/// Key that the cluster's operator writes every minute (`pkg/kvstore/heartbeat`).
pub const HEARTBEAT: &str = "cilium/.heartbeat";

/// Prefixes that any release of Cilium writes below `cilium/cache/`, in key order.
const KNOWN_CACHED: [&str; 6] = ["endpointslices/v1/", "identities/v1/", "ip/v1/", "nodes/v1/", "serviceexports/v1/", "services/v1/"];

/// Prefixes that any release of Cilium writes below `cilium/state/`, in key order. Releases up to
/// 1.15 also register external workloads there.
const KNOWN_STATE: [&str; 7] =
    ["endpointslices/v1/", "identities/v1/", "ip/v1/", "noderegister/v1/", "nodes/v1/", "serviceexports/v1/", "services/v1/"];

/// Prefix of all cluster configs.
pub const CLUSTER_CONFIGS: &str = "cilium/cluster-config/";

/// Returns the key of a cluster's config, `cilium/cluster-config/<cluster>`.
#[must_use]
pub fn cluster_config_key(cluster: &ClusterName) -> String {
    format!("{CLUSTER_CONFIGS}{cluster}")
}

/// Returns the prefix to list and watch. Its trailing slash separates `eu` from `eu-west`.
/// Identities and ipcache entries in a cluster's own etcd do not name the cluster; there only the
/// connection says which cluster they belong to.
#[must_use]
pub fn watched_prefix(kind: Kind, cluster: &ClusterName, cached: bool) -> String {
    let (root, base) = (root(cached), kind.base());
    match kind.unscoped() {
        _ if kind == Kind::Cluster => cluster_config_key(cluster),
        Some(unscoped) if !cached => format!("{root}{base}/{unscoped}"),
        _ => format!("{root}{base}/{cluster}/{}", kind.infix()),
    }
}

/// Returns the key of the canary of a kind. It contains the base prefix, without the `/id` and
/// `/default` of the watched one.
#[must_use]
pub fn canary_key(kind: Kind, cluster: &ClusterName, cached: bool) -> String {
    format!("{}{}{}", synced_prefix(cluster), root(cached), kind.base())
}

/// Returns the prefix of a cluster's canaries, `cilium/synced/<cluster>/`. It has the name of the
/// *source* cluster in a KVStoreMesh's etcd too.
#[must_use]
pub fn synced_prefix(cluster: &ClusterName) -> String {
    format!("cilium/synced/{cluster}/")
}

/// Returns the kind of a canary's key. `None` for canaries of other resources or of the other form,
/// and for other keys.
#[must_use]
pub fn canary_kind(key: &[u8], cluster: &ClusterName, cached: bool) -> Option<Kind> {
    let base = key.strip_prefix(synced_prefix(cluster).as_bytes())?.strip_prefix(root(cached).as_bytes())?;
    Kind::ALL.into_iter().find(|kind| kind.base().as_bytes() == base)
}

/// Maximum length of a source's key, in bytes. Cilium's longest keys have less than 700 bytes, and
/// etcd accepts up to 1.5 MiB.
const KEY_BYTES_MAX: usize = 4_096;

/// Parses a key of the source.
///
/// # Errors
/// Returns one short line if the key is not below [`watched_prefix`], has no name there, is longer
/// than 4 KiB, is not UTF-8, or has the form of an entry that meshkeep derives.
pub fn entry_key(kind: Kind, cluster: &ClusterName, cached: bool, source_key: &[u8]) -> Result<EntryKey, String> {
    let prefix = watched_prefix(kind, cluster, cached);
    let shown = || quoted(&String::from_utf8_lossy(source_key));
    let Some(name) = source_key.strip_prefix(prefix.as_bytes()) else {
        return Err(format!("key {} is not below {prefix}", shown()));
    };
    if name.is_empty() {
        return Err(format!("key {} has no name after its prefix", shown()));
    }
    if source_key.len() > KEY_BYTES_MAX {
        return Err(format!(
            "key {} has {} bytes: the limit is {KEY_BYTES_MAX}, and Cilium's keys have less than 700",
            shown(),
            source_key.len()
        ));
    }
    let name = str::from_utf8(name).map_err(|_| format!("key {} is not UTF-8", shown()))?;
    // Kubernetes allows no such name, and the key would be that of an entry that meshkeep derives
    // from a node
    if kind == Kind::Node && EntryKey::split_node_ip(name).is_some() {
        return Err(format!("key {} is not the key of a node: a node's name must not end with # and an address or prefix", shown()));
    }
    Ok(EntryKey::new(kind, cluster.clone(), name))
}

/// Returns the source's key of an entry. The inverse of [`entry_key`].
#[must_use]
pub fn source_key(key: &EntryKey, cached: bool) -> String {
    watched_prefix(key.kind, &key.cluster, cached) + &key.name
}

/// Returns the full prefixes that Cilium is known to write, such as `cilium/state/nodes/v1/`, in
/// key order. This version does not know any key outside them.
#[must_use]
pub fn known_prefixes(cached: bool) -> Vec<String> {
    let known: &[&str] = if cached { &KNOWN_CACHED } else { &KNOWN_STATE };
    known.iter().map(|prefix| format!("{}{prefix}", root(cached))).collect()
}

/// Returns the common prefix of all resources.
#[must_use]
pub const fn root(cached: bool) -> &'static str {
    if cached { "cilium/cache/" } else { "cilium/state/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(name: &str) -> ClusterName {
        ClusterName::parse(name).expect("must be a cluster name")
    }

    #[test]
    fn source_keys_round_trip_in_both_forms() {
        let paris = cluster("paris");
        for (kind, cached, text) in [
            (Kind::Node, false, "cilium/state/nodes/v1/paris/worker-1"),
            (Kind::Node, true, "cilium/cache/nodes/v1/paris/worker-1"),
            (Kind::Service, false, "cilium/state/services/v1/paris/shop/cart"),
            (Kind::Service, true, "cilium/cache/services/v1/paris/shop/cart"),
            (Kind::ServiceExport, false, "cilium/state/serviceexports/v1/paris/shop/cart"),
            (Kind::ServiceExport, true, "cilium/cache/serviceexports/v1/paris/shop/cart"),
            (Kind::EndpointSlice, false, "cilium/state/endpointslices/v1/paris/shop/cart-abc"),
            (Kind::EndpointSlice, true, "cilium/cache/endpointslices/v1/paris/shop/cart-abc"),
            (Kind::Identity, false, "cilium/state/identities/v1/id/68352"),
            (Kind::Identity, true, "cilium/cache/identities/v1/paris/id/68352"),
            (Kind::Ip, false, "cilium/state/ip/v1/default/10.1.200.0/24"),
            (Kind::Ip, true, "cilium/cache/ip/v1/paris/10.1.200.0/24"),
        ] {
            let key = entry_key(kind, &paris, cached, text.as_bytes()).expect("must be an entry");
            assert_eq!((key.kind, &key.cluster), (kind, &paris));
            assert_eq!(source_key(&key, cached), text);
            assert_eq!(EntryKey::from_cache_form(&source_key(&key, true)), Some(key));
        }
    }

    #[test]
    fn invalid_keys_are_refused_with_a_reason() {
        for (key, reason) in [
            (&b"cilium/state/nodes/v1/paris/"[..], r#"key "cilium/state/nodes/v1/paris/" has no name after its prefix"#),
            (b"cilium/state/nodes/v1/paris-2/a", r#"key "cilium/state/nodes/v1/paris-2/a" is not below cilium/state/nodes/v1/paris/"#),
            (b"cilium/state/nodes/v1/paris/a\xff", "key \"cilium/state/nodes/v1/paris/a\u{fffd}\" is not UTF-8"),
            (b"", r#"key "" is not below cilium/state/nodes/v1/paris/"#),
            (
                b"cilium/state/nodes/v1/paris/a#10.0.0.1",
                r#"key "cilium/state/nodes/v1/paris/a#10.0.0.1" is not the key of a node: a node's name must not end with # and an address or prefix"#,
            ),
            (
                b"cilium/state/nodes/v1/paris/a#10.0.0.0/24",
                r#"key "cilium/state/nodes/v1/paris/a#10.0.0.0/24" is not the key of a node: a node's name must not end with # and an address or prefix"#,
            ),
        ] {
            assert_eq!(entry_key(Kind::Node, &cluster("paris"), false, key), Err(reason.to_owned()));
        }
    }

    #[test]
    fn keys_above_4_kib_are_refused() {
        let key_of = |length: usize| format!("{:k<length$}", "cilium/state/nodes/v1/paris/").into_bytes();
        let entry = |length| entry_key(Kind::Node, &cluster("paris"), false, &key_of(length));
        assert!(entry(KEY_BYTES_MAX).is_ok());
        let reason = entry(KEY_BYTES_MAX + 1).expect_err("must be refused");
        assert!(reason.ends_with("has 4097 bytes: the limit is 4096, and Cilium's keys have less than 700"), "{reason}");
        assert!(reason.len() < 400, "{reason}");
    }

    #[test]
    fn known_prefixes_are_sorted_and_cover_every_kind() {
        for cached in [false, true] {
            let known = known_prefixes(cached);
            assert!(known.is_sorted());
            assert!(known.iter().all(|prefix| prefix.ends_with('/')));
            for kind in Kind::ALL {
                let watched = watched_prefix(kind, &cluster("paris"), cached);
                assert!(known.iter().any(|prefix| watched.starts_with(prefix)), "{watched}");
            }
        }
        assert_eq!(known_prefixes(false)[3], "cilium/state/noderegister/v1/");
    }

    #[test]
    fn fixed_keys_match_those_of_cilium() {
        assert_eq!(HEARTBEAT, "cilium/.heartbeat");
        assert_eq!(cluster_config_key(&cluster("paris")), "cilium/cluster-config/paris");
        assert_eq!(synced_prefix(&cluster("paris")), "cilium/synced/paris/");
    }
}

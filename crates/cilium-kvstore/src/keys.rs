//! Prefixes of Cilium's keys, and functions that build and classify keys
//! (`pkg/kvstore/kvstore.go`).

use std::time::Duration;

/// Prefix of all keys.
pub const BASE_PREFIX: &str = "cilium";
/// Prefix of a cluster's own state.
pub const STATE_PREFIX: &str = "cilium/state";
/// Prefix of copies from other kvstores (KVStoreMesh).
pub const CACHE_PREFIX: &str = "cilium/cache";
/// Prefix of the cluster configs, one per cluster.
pub const CLUSTER_CONFIG_PREFIX: &str = "cilium/cluster-config";
/// Prefix of the canaries: `<cluster>/<prefix that is complete>` follows.
pub const SYNCED_PREFIX: &str = "cilium/synced";
/// Key of the heartbeat, which is written every minute.
pub const HEARTBEAT_PATH: &str = "cilium/.heartbeat";
/// Interval at which Cilium's operator writes the heartbeat.
pub const HEARTBEAT_WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// Path of the locks that check whether etcd has a quorum. They are held only for a moment.
pub const INIT_LOCK_PATH: &str = "cilium/.initlock";

/// Joins the parts of a key with `/` as Cilium's `JoinKey` does (v1.20): empty parts are skipped,
/// repeated slashes become one, and trailing slashes are removed. `.` and `..` are kept.
#[must_use]
pub fn join(parts: &[&[u8]]) -> Vec<u8> {
    let mut key: Vec<u8> = Vec::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
    for part in parts.iter().filter(|part| !part.is_empty()) {
        if !key.is_empty() {
            key.push(b'/');
        }
        key.extend_from_slice(part);
    }
    key.dedup_by(|left, right| *left == b'/' && *right == b'/');
    while key.last() == Some(&b'/') {
        key.pop();
    }
    key
}

/// Converts a prefix below `cilium/state` to the prefix of its copies below `cilium/cache`; any
/// other prefix is returned unchanged.
#[must_use]
pub fn state_to_cache(prefix: &str) -> String {
    prefix.strip_prefix(STATE_PREFIX).map_or_else(|| prefix.to_owned(), |rest| format!("{CACHE_PREFIX}{rest}"))
}

/// Classifies a key into one of a limited number of scopes: `nodes/v1` for
/// `cilium/state/nodes/v1/…`, `heartbeat`, `synced/nodes/v1` for a canary, `other` for keys that
/// are not Cilium's (`GetScopeFromKey`).
#[must_use]
pub fn scope_of(key: &str) -> String {
    scope_in(key).unwrap_or_else(|| "other".to_owned())
}

fn scope_in(key: &str) -> Option<String> {
    let (family, rest) = key.strip_prefix("cilium/")?.split_once('/').map_or((key.strip_prefix("cilium/")?, ""), |parts| parts);
    match family {
        "state" | "cache" => {
            let (resource, rest) = rest.split_once('/')?;
            let version = rest.split('/').next().unwrap_or_default();
            (!resource.is_empty() && !version.is_empty()).then(|| format!("{resource}/{version}"))
        }
        "synced" => {
            let synced_scope = rest.split_once('/').and_then(|(_, prefix)| scope_in(prefix));
            Some(synced_scope.map_or_else(|| "synced".to_owned(), |scope| format!("synced/{scope}")))
        }
        _ => Some(family.trim_start_matches('.').to_owned()).filter(|name| !name.is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_joined_as_cilium_joins_them() {
        let text = |parts: &[&str]| {
            let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
            String::from_utf8(join(&parts)).unwrap()
        };
        for (parts, key) in [
            (&["cilium/state", "nodes/v1", "paris", "a"][..], "cilium/state/nodes/v1/paris/a"),
            (&["cilium/state/", "/nodes"], "cilium/state/nodes"),
            (&["value", "k8s:a=x//;", "10.0.0.1"], "value/k8s:a=x/;/10.0.0.1"),
            (&["", "a", "", "b//"], "a/b"),
            (&["/a", "..", "."], "/a/../."),
            (&["", ""], ""),
        ] {
            assert_eq!(text(parts), key, "{parts:?}");
        }
    }

    #[test]
    fn only_state_prefixes_have_cache_prefixes() {
        assert_eq!(state_to_cache("cilium/state/nodes/v1"), "cilium/cache/nodes/v1");
        assert_eq!(state_to_cache("cilium/state"), "cilium/cache");
        assert_eq!(state_to_cache("cilium/cluster-config/a"), "cilium/cluster-config/a");
    }

    #[test]
    fn keys_are_classified_by_scope() {
        for (key, scope) in [
            ("cilium/state/identities/v1/id", "identities/v1"),
            ("cilium/cache/nodes/v1/paris/a", "nodes/v1"),
            ("cilium/state/nodes/v1", "nodes/v1"),
            ("cilium/state", "other"),
            ("cilium/.heartbeat", "heartbeat"),
            ("cilium/.initlock/1f/2e", "initlock"),
            ("cilium/cluster-config/paris", "cluster-config"),
            ("cilium/synced/paris/cilium/state/nodes/v1", "synced/nodes/v1"),
            ("cilium/synced/paris", "synced"),
            ("elsewhere", "other"),
        ] {
            assert_eq!(scope_of(key), scope, "{key}");
        }
    }
}

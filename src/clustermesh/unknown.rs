//! Searches a source for keys below `cilium/state` and `cilium/cache` that this version does not
//! know.
//!
//! The search lists nothing. It reads one key from each gap between known prefixes, counts the keys
//! with the prefix of that key, and continues after those keys. The cluster's status names the
//! prefixes.

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::sleep;

use super::connection_error::ConnectionError;
use super::reporter::Reporter;
use super::scope::SourceConnection;
use crate::model::UnknownPrefix;
use crate::wire::keys;
use cilium_kvstore::{Connection, KvstoreError, prefix_end};

/// Maximum number of unknown prefixes that are reported below each root. Cilium has seven known
/// ones; the limit ends the search in an etcd that something other than Cilium fills.
const UNKNOWN_PREFIXES_MAX: usize = 16;

/// Searches at once and then at each interval, for as long as the connection lasts. It covers both
/// roots, as far as the user may read them.
pub(super) async fn search_unknown_prefixes(
    source: &SourceConnection,
    reporter: &Reporter,
    interval: Duration,
) -> Result<Infallible, ConnectionError> {
    // whether each remaining root is `cilium/cache`
    let mut cached_forms = vec![source.info.cached, !source.info.cached];
    while !cached_forms.is_empty() {
        let mut unknown = Vec::new();
        let mut denied = Vec::new();
        for cached in &cached_forms {
            match search(&source.connection, *cached).await {
                Ok(prefixes) => unknown.extend(prefixes),
                // the search is an extra: a user without the permission is no reason to stop
                // mirroring
                Err(KvstoreError::PermissionDenied { .. }) => denied.push(*cached),
                Err(error) => return Err(error.into()),
            }
        }
        cached_forms.retain(|cached| !denied.contains(cached));
        unknown.sort_by(|left, right| left.prefix.cmp(&right.prefix));
        reporter.set_unknown_prefixes(unknown);
        sleep(interval).await;
    }
    std::future::pending().await
}

/// Searches each gap between known prefixes. A read must not reach beyond its gap, because etcd
/// counts all keys of the range whatever the limit, and a KVStoreMesh's etcd has those of every
/// cluster.
async fn search(connection: &Connection, cached: bool) -> Result<Vec<UnknownPrefix>, KvstoreError> {
    let root = keys::root(cached).as_bytes();
    let known = keys::known_prefixes(cached);
    let gap_ends = known.iter().map(|known| known.as_bytes().to_vec()).chain([prefix_end(root)]);
    let gap_starts = std::iter::once(root.to_vec()).chain(known.iter().map(|known| prefix_end(known.as_bytes())));
    let mut unknown = Vec::new();
    for (mut from, end) in gap_starts.zip(gap_ends) {
        while unknown.len() < UNKNOWN_PREFIXES_MAX && from < end {
            let Some(key) = connection.first_key(&from, &end).await? else { break };
            let prefix = unknown_prefix(&key, &known);
            from = prefix_end(&prefix);
            let (key_count, _) = connection.count_at(&prefix, &from, None).await?;
            unknown.push(UnknownPrefix { prefix: String::from_utf8_lossy(&prefix).into_owned(), key_count });
        }
    }
    Ok(unknown)
}

/// Returns the prefix that a key is reported under.
///
/// That is `cilium/state/<resource>/<version>/`. Without a version it is
/// `cilium/state/<resource>/`, unless this covers a known prefix; then it is the whole key.
fn unknown_prefix(key: &[u8], known: &[String]) -> Vec<u8> {
    let slashes: Vec<usize> = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(index, _)| index).collect();
    let prefix_to = |slash: usize| key[..=slash].to_vec();
    match slashes.as_slice() {
        [_, _, resource, version, ..] if is_version(&key[resource + 1..*version]) => prefix_to(*version),
        [_, _, resource, ..] if !known.iter().any(|known| known.as_bytes().starts_with(&key[..=*resource])) => prefix_to(*resource),
        _ => key.to_vec(),
    }
}

/// Returns whether a part is a version, such as `v1` or `v2alpha1`.
fn is_version(part: &[u8]) -> bool {
    matches!(part, [b'v', digit, rest @ ..] if digit.is_ascii_digit() && rest.iter().all(u8::is_ascii_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_prefix_covers_no_known_prefix() {
        let cases = [
            ("cilium/state/frobs/v1/paris/a", "cilium/state/frobs/v1/"),
            ("cilium/state/frobs/v2beta1/a", "cilium/state/frobs/v2beta1/"),
            ("cilium/state/nodes/v2/paris/a", "cilium/state/nodes/v2/"),
            ("cilium/state/frobs/paris/a", "cilium/state/frobs/"),
            ("cilium/state/frobs/a", "cilium/state/frobs/"),
            ("cilium/state/frobs", "cilium/state/frobs"),
            // the prefix of the resource would cover its known keys
            ("cilium/state/nodes/a", "cilium/state/nodes/a"),
            ("cilium/state/nodes/a/b", "cilium/state/nodes/a/b"),
            ("cilium/state/nodes/v1", "cilium/state/nodes/v1"),
            ("cilium/state//v1/a", "cilium/state//v1/"),
        ];
        let known = keys::known_prefixes(false);
        for (key, expected) in cases {
            assert_eq!(unknown_prefix(key.as_bytes(), &known), expected.as_bytes(), "{key}");
        }
        assert_eq!(unknown_prefix(b"cilium/state/\xff/v1/a", &known), b"cilium/state/\xff/v1/");
    }
}

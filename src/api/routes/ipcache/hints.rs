//! Possible reasons why an address has no entry of its own, or an outdated one, as text.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;

use crate::api::query::parse_network;
use crate::dto::findings::Hint;
use crate::dto::text::rfc3339;
use crate::dto::values::closed::HintKind;
use crate::handle::{MissExplanation, NetworkEntries};
use crate::model::{ClusterName, DeleteReason, EntryKey, ObjectPrefix, Record, Tombstone};

/// Maximum number of clusters that a hint names. Same as in `meta.sources`
/// (docs/use/api/lookups-and-explain.md).
const CLUSTERS_NAMED_MAX: usize = 20;

/// Maximum number of entries inside a CIDR that are counted.
pub(super) const INSIDE_COUNTED_MAX: usize = 1_000;

/// Maximum number of deleted entries per address, the newest first: one of each kind from three
/// clusters.
const DELETED_MAX: usize = 6;

/// Returns the possible reasons for a miss, the most likely first.
///
/// `is_rejected`: a cluster announces exactly this address, with a value that was rejected.
pub(super) fn miss_hints(miss: &MissExplanation, is_rejected: bool) -> Vec<Hint> {
    let mut hints: Vec<Hint> = miss.rejected_nodes.iter().map(|(count, first)| rejected_nodes_hint(*count, first)).collect();
    hints.extend(miss.pod_cidrs.iter().map(|(net, node)| pod_cidr_hint(&net.to_string(), node, is_rejected)));
    hints.extend(miss.deleted.iter().take(DELETED_MAX).map(tombstone_hint));
    let never_read = |names: &str| format!("{names}: never read, so the address may belong there; see /v1/clusters");
    hints.extend(clusters_hint(HintKind::NeverRead, &miss.never_read, never_read));
    let restored = |names: &str| format!("{names}: restored from the store and not confirmed since the start; see /v1/clusters");
    hints.extend(clusters_hint(HintKind::Restored, &miss.restored, restored));
    hints.extend(miss.nearest.iter().map(|(prefix, record)| nearest_hint(*prefix, record)));
    hints
}

/// Returns the hint about entries inside a CIDR; `None` if there are none, or if it is unknown.
pub(super) fn inside_hint(net: IpNet, inside: &NetworkEntries) -> Option<Hint> {
    let (clusters, entries): (BTreeSet<&ClusterName>, String) = match inside {
        NetworkEntries::Keys(keys) => {
            let first = keys.first()?;
            let name = EntryKey::split_node_ip(&first.name).map_or_else(|| first.name.to_string(), |(_, prefix)| prefix.to_string());
            let entries = match keys.len() {
                1 => format!("1 entry inside {net}, {name} of {}, is more specific and wins for its addresses", first.cluster),
                count => {
                    format!(
                        "{count} entries inside {net}, such as {name} of {}, are more specific and win for their addresses",
                        first.cluster
                    )
                }
            };
            (keys.iter().map(|key| &key.cluster).collect(), entries)
        }
        NetworkEntries::Clusters(clusters) => {
            let entries = format!("more than {INSIDE_COUNTED_MAX} entries inside {net} are more specific and win for their addresses");
            (clusters.iter().collect(), entries)
        }
        NetworkEntries::Unknown => return None,
    };
    let clusters: Vec<ClusterName> = clusters.into_iter().cloned().collect();
    let hint = clusters_hint(HintKind::Inside, &clusters, |_| format!("{entries}: /v1/ipcache?cidr={net} lists them"))?;
    Some(Hint { prefix: Some(net.to_string()), ..hint })
}

/// Returns the hint for a rejected value of an address, or of a range that contains it.
pub(super) fn rejected_hint(net: IpNet, record: &Record) -> Option<Hint> {
    let rejection = record.rejection.as_ref()?;
    let (cluster, name) = (&record.key.cluster, &record.key.name);
    let what = if is_exactly(net, record) { "it".to_owned() } else { format!("the range {name}, which contains it") };
    let outcome = if record.object.is_some() { "the last good value stays in use" } else { "it is not used" };
    Some(Hint {
        clusters: vec![cluster.to_string()],
        prefix: parse_network(name).map(|net| net.to_string()),
        key: Some(record.key.to_string()),
        time: Some(rfc3339(rejection.last_seen)),
        ..Hint::new(HintKind::Rejected, format!("{cluster} announces {what}, but the value was rejected, {outcome}: {}", rejection.reason))
    })
}

/// Returns whether an entry is for exactly this network.
pub(super) fn is_exactly(net: IpNet, record: &Record) -> bool {
    parse_network(&record.key.name) == Some(net)
}

fn rejected_nodes_hint(count: usize, first: &Record) -> Hint {
    let (cluster, node) = (&first.key.cluster, &first.key.name);
    let reason = first.rejection.as_ref().map(|rejection| format!(": {}", rejection.reason)).unwrap_or_default();
    let nodes = match count {
        1 => format!("node {cluster}/{node} was rejected, so its addresses and pod CIDRs are not known"),
        _ => format!("{count} nodes of {cluster} were rejected, so their addresses and pod CIDRs are not known; the first is {node}"),
    };
    Hint {
        clusters: vec![cluster.to_string()],
        node: Some(node.to_string()),
        key: Some(first.key.to_string()),
        ..Hint::new(HintKind::Rejected, format!("{nodes}{reason}"))
    }
}

fn pod_cidr_hint(net: &str, node: &EntryKey, is_rejected: bool) -> Hint {
    let why = if is_rejected { "" } else { ", but no cluster announces it; check that its endpoint is ready" };
    Hint {
        clusters: vec![node.cluster.to_string()],
        prefix: Some(net.to_owned()),
        node: Some(node.name.to_string()),
        ..Hint::new(
            HintKind::PodCidr,
            format!("in pod CIDR {net} of node {}/{}: a pod of that node could have it{why}", node.cluster, node.name),
        )
    }
}

fn tombstone_hint(gone: &Tombstone) -> Hint {
    let (cluster, time) = (&gone.key.cluster, rfc3339(gone.time));
    let node = gone.key.derived_from();
    let what = node.map_or_else(|| format!("{cluster} had an entry for it"), |node| format!("node {cluster}/{node} had it"));
    let why = match gone.reason {
        DeleteReason::Deleted => "it was deleted",
        DeleteReason::ClusterRemoved => "the cluster was removed from the mesh",
    };
    Hint {
        clusters: vec![cluster.to_string()],
        node: node.map(str::to_owned),
        key: Some(gone.key.to_string()),
        time: Some(time.clone()),
        ..Hint::new(HintKind::Deleted, format!("{what} until {time}, when {why}"))
    }
}

fn clusters_hint(kind: HintKind, clusters: &[ClusterName], words: impl Fn(&str) -> String) -> Option<Hint> {
    let named: Vec<String> = clusters.iter().take(CLUSTERS_NAMED_MAX).map(ToString::to_string).collect();
    let more = clusters.len() - named.len();
    let names = if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") };
    let more_clusters = Some(more).filter(|more| *more > 0);
    (!named.is_empty()).then(|| Hint { clusters: named, more_clusters, ..Hint::new(kind, words(&names)) })
}

fn nearest_hint(prefix: ObjectPrefix, record: &Arc<Record>) -> Hint {
    let cluster = &record.key.cluster;
    let shown = if prefix.host { prefix.net.addr().to_string() } else { prefix.net.to_string() };
    let object = record.object.as_deref().and_then(|object| object.as_ip());
    let pod = object.filter(|entry| !entry.pod_name.is_empty()).map(|entry| format!(" ({}/{})", entry.namespace, entry.pod_name));
    let node = record.key.derived_from();
    let node_text = node.map(|node| format!(" (node {node})"));
    Hint {
        clusters: vec![cluster.to_string()],
        prefix: Some(prefix.net.to_string()),
        node: node.map(str::to_owned),
        key: Some(record.key.to_string()),
        ..Hint::new(HintKind::Nearest, format!("the nearest known entry: {shown} of {cluster}{}", pod.or(node_text).unwrap_or_default()))
    }
}

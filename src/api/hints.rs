//! Why an address has no entry of its own, in words.

use std::sync::Arc;

use super::dto::rfc3339;
use crate::dto::problems::Hint;
use crate::handle::Miss;
use crate::model::{ClusterName, DeleteReason, EntryKey, ObjectPrefix, Record, Tombstone};

/// How many clusters a hint names, as many as `meta.sources` does (docs/api.md).
const CLUSTERS_NAMED_MAX: usize = 20;

/// How many deleted entries of one address are told: one of each sort of three clusters. Of more the newest say it.
const GONE_MAX: usize = 6;

/// What may explain a miss, the most telling first.
pub(super) fn hints(miss: &Miss) -> Vec<Hint> {
    let mut hints: Vec<Hint> = miss.pod_cidrs.iter().map(|(net, node)| of_pod_cidr(&net.to_string(), node)).collect();
    hints.extend(miss.gone.iter().take(GONE_MAX).map(of_tombstone));
    let never_read = |names: &str| format!("{names}: never read, so whether the address belongs there is not known; see /v1/clusters");
    hints.extend(of_clusters("neverRead", &miss.never_read, never_read));
    let restored = |names: &str| format!("{names}: known from the store only, as it was before the start; see /v1/clusters");
    hints.extend(of_clusters("restored", &miss.restored, restored));
    hints.extend(miss.nearest.iter().map(|(prefix, record)| of_nearest(*prefix, record)));
    hints
}

fn of_pod_cidr(net: &str, node: &EntryKey) -> Hint {
    Hint {
        kind: "podCIDR".into(),
        detail: format!(
            "in pod CIDR {net} of node {}/{}: a pod would have it there, and none announces it; see whether its endpoint is ready",
            node.cluster, node.name
        ),
        clusters: vec![node.cluster.to_string()],
        prefix: Some(net.to_owned()),
        node: Some(node.name.to_string()),
        ..Hint::default()
    }
}

fn of_tombstone(gone: &Tombstone) -> Hint {
    let (cluster, time) = (&gone.key.cluster, rfc3339(gone.time));
    let node = gone.key.derived_from();
    let what = node.map_or_else(|| format!("{cluster} had an entry for it"), |node| format!("node {cluster}/{node} had it"));
    let why = match gone.reason {
        DeleteReason::Deleted => "it was deleted",
        DeleteReason::ClusterRemoved => "the cluster was removed from the mesh",
    };
    Hint {
        kind: "deleted".into(),
        detail: format!("{what} until {time}, when {why}"),
        clusters: vec![cluster.to_string()],
        node: node.map(str::to_owned),
        key: Some(gone.key.to_string()),
        time: Some(time),
        ..Hint::default()
    }
}

fn of_clusters(kind: &'static str, clusters: &[ClusterName], words: impl Fn(&str) -> String) -> Option<Hint> {
    let named: Vec<String> = clusters.iter().take(CLUSTERS_NAMED_MAX).map(ToString::to_string).collect();
    let more = clusters.len() - named.len();
    let names = if more > 0 { format!("{} and {more} more", named.join(", ")) } else { named.join(", ") };
    let more_clusters = Some(more).filter(|more| *more > 0);
    (!named.is_empty()).then(|| Hint { kind: kind.into(), detail: words(&names), clusters: named, more_clusters, ..Hint::default() })
}

fn of_nearest(prefix: ObjectPrefix, record: &Arc<Record>) -> Hint {
    let cluster = &record.key.cluster;
    let shown = if prefix.host { prefix.net.addr().to_string() } else { prefix.net.to_string() };
    let object = record.object.as_deref().and_then(|object| object.as_ip());
    let pod = object.filter(|entry| !entry.pod_name.is_empty()).map(|entry| format!(" ({}/{})", entry.namespace, entry.pod_name));
    let node = record.key.derived_from();
    let node_said = node.map(|node| format!(" (node {node})"));
    Hint {
        kind: "nearest".into(),
        detail: format!("the nearest that is known: {shown} of {cluster}{}", pod.or(node_said).unwrap_or_default()),
        clusters: vec![cluster.to_string()],
        prefix: Some(prefix.net.to_string()),
        node: node.map(str::to_owned),
        key: Some(record.key.to_string()),
        ..Hint::default()
    }
}

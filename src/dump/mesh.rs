//! Sorts the keys of a dump into clusters and kinds. Pure.
//!
//! Keys below `cilium/cache` name their cluster. Below `cilium/state`, identities and addresses do
//! not: they belong to the cluster that the other keys below `cilium/state` name, or the only
//! cluster config that is not a KVStoreMesh's copy, or the label of an identity.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::forms::DumpPair;
use crate::model::{ClusterConfig, ClusterName, EntryKey, Kind, LeaseId, Revision, Scope, SourceStamp};
use crate::wire::cluster_config::parse_cluster_config;
use crate::wire::keys::{CLUSTER_CONFIGS, HEARTBEAT, entry_key, root};

/// Label of an identity that names its cluster (Cilium's `pkg/policy/api/labels`).
const CLUSTER_LABEL: &str = "k8s:io.cilium.k8s.policy.cluster=";

/// One value of a dump.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DumpEntry {
    pub(super) key: EntryKey,
    pub(super) value: Arc<[u8]>,
    pub(super) source: SourceStamp,
}

/// Content of a dump, sorted.
#[derive(Debug, Default)]
pub(super) struct MeshContent {
    pub(super) entries: BTreeMap<Scope, Vec<DumpEntry>>,
    pub(super) configs: BTreeMap<ClusterName, ClusterConfig>,
    /// Time that the newest heartbeat names.
    pub(super) heartbeat: Option<SystemTime>,
    /// Cluster configs that cannot be used, with the reasons.
    pub(super) warnings: Vec<String>,
}

/// The keys below `cilium/state` do not determine their cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UnknownCluster {
    /// No key names a cluster.
    None,
    /// Keys name these clusters.
    Several(BTreeSet<ClusterName>),
}

/// Sorts keys. `cluster` is the cluster of the keys below `cilium/state`, if the user gave it.
///
/// # Errors
/// [`UnknownCluster`] if the cluster is needed, was not given, and the keys do not determine it.
pub(super) fn sort(pairs: Vec<DumpPair>, cluster: Option<&ClusterName>) -> Result<MeshContent, UnknownCluster> {
    let mut content = MeshContent::default();
    for pair in &pairs {
        if pair.key == HEARTBEAT {
            content.heartbeat = content.heartbeat.max(parse_time(&String::from_utf8_lossy(&pair.value)));
        } else if let Some(name) = pair.key.strip_prefix(CLUSTER_CONFIGS) {
            let parsed = ClusterName::parse(name).map_err(|error| error.to_string());
            match parsed.and_then(|name| Ok((name, parse_cluster_config(&pair.value)?))) {
                Ok((name, config)) => drop(content.configs.insert(name, config)),
                Err(reason) => content.warnings.push(format!("the cluster config {} is not used: {reason}", pair.key)),
            }
        }
    }
    let mut own = cluster.cloned();
    for pair in &pairs {
        if own.is_none() && unscoped_kind(&pair.key).is_some() {
            own = Some(cluster_of_state(&pairs, &content.configs)?);
        }
    }
    for pair in pairs {
        let Some(key) = parse_key(&pair.key, own.as_ref()) else { continue };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        let (mod_revision, lease) = (Revision(pair.revision.unwrap_or_default()), LeaseId(pair.lease.unwrap_or_default()));
        let source = SourceStamp { mod_revision, lease, held: false };
        content.entries.entry(scope).or_default().push(DumpEntry { key, value: pair.value.into(), source });
    }
    content.entries.values_mut().for_each(remove_older_copies);
    Ok(content)
}

/// Sorts entries by key, and keeps the one with the newest revision of each key. A sysdump has the
/// same keys once for each agent that it asked.
fn remove_older_copies(entries: &mut Vec<DumpEntry>) {
    entries.sort_by(|one, other| one.key.cmp(&other.key).then(other.source.mod_revision.cmp(&one.source.mod_revision)));
    entries.dedup_by(|older, newest| older.key == newest.key);
}

/// Parses a time as RFC 3339, the form of heartbeats and of bundles.
pub(super) fn parse_time(text: &str) -> Option<SystemTime> {
    text.trim().parse::<jiff::Timestamp>().ok().map(SystemTime::from)
}

/// Returns the part of a key below `cilium/state/<kind>/`, and the kind.
fn split_state_key(key: &str) -> Option<(Kind, &str)> {
    let below = key.strip_prefix(root(false))?;
    Kind::ALL.into_iter().find_map(|kind| Some((kind, below.strip_prefix(kind.base())?.strip_prefix('/')?)))
}

/// Returns the kind of a key that does not name its cluster.
fn unscoped_kind(key: &str) -> Option<Kind> {
    split_state_key(key).map(|(kind, _)| kind).filter(|kind| kind.unscoped().is_some())
}

fn parse_key(text: &str, own: Option<&ClusterName>) -> Option<EntryKey> {
    let Some((kind, below)) = split_state_key(text) else {
        return EntryKey::from_cache_form(text).filter(|key| key.kind.is_mirrored());
    };
    let cluster = match kind.unscoped() {
        Some(_) => own?.clone(),
        None => ClusterName::parse(below.split('/').next()?).ok()?,
    };
    entry_key(kind, &cluster, false, text.as_bytes()).ok()
}

fn cluster_of_state(pairs: &[DumpPair], configs: &BTreeMap<ClusterName, ClusterConfig>) -> Result<ClusterName, UnknownCluster> {
    let named_in_key = |pair: &DumpPair| {
        let (_, below) = split_state_key(&pair.key).filter(|(kind, _)| kind.unscoped().is_none())?;
        ClusterName::parse(below.split('/').next()?).ok()
    };
    let named_in_label = |pair: &DumpPair| {
        let labels = str::from_utf8(&pair.value).ok().filter(|_| unscoped_kind(&pair.key) == Some(Kind::Identity))?;
        labels.split(';').find_map(|label| ClusterName::parse(label.strip_prefix(CLUSTER_LABEL)?).ok())
    };
    let in_keys: BTreeSet<ClusterName> = pairs.iter().filter_map(named_in_key).collect();
    let in_configs = || configs.iter().filter(|(_, config)| !config.cached).map(|(name, _)| name.clone()).collect();
    let named = Some(in_keys).filter(|named| !named.is_empty()).unwrap_or_else(in_configs);
    let mut named = if named.is_empty() { pairs.iter().filter_map(named_in_label).collect() } else { named };
    match (named.pop_first(), named.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(first), false) => {
            named.insert(first);
            Err(UnknownCluster::Several(named))
        }
        (None, _) => Err(UnknownCluster::None),
    }
}

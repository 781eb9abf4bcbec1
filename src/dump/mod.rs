//! Dumps of etcds and of mirrors, which `meshkeep load` serves without an etcd, and tables of one
//! agent, which `meshkeep diff` compares with a mirror (`agent`).
//!
//! [`read_dump`] reads a dump from disk (`unpack`), parses each file by its shape (`forms`), and
//! sorts the keys into clusters and kinds (`mesh`). [`Dump::into_commands`] returns the commands
//! that fill a mirror.

pub mod agent;
mod error;
mod forms;
mod mesh;
#[cfg(test)]
mod tests;
mod unpack;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use error::DumpError;
use forms::{DumpPair, FileForm, FormError};
use mesh::{DumpEntry, MeshContent, UnknownCluster, parse_time};
use serde::Deserialize;
use unpack::{BUNDLE_CLUSTERS, BUNDLE_INFO, UnpackedDump, UnpackedFile, base_name, unpack};

use crate::dto::ClusterList;
use crate::dto::status::ClusterConfigStatus;
use crate::model::{
    Change, ClusterConfig, ClusterId, ClusterName, ClusterRecord, Command, DumpSource, DumpTimeSource, MaxConnectedClusters, Scope,
};
use crate::wire::{Context, decode_shared};

/// Maximum size of all unpacked files together, in bytes.
const UNPACKED_BYTES_MAX: u64 = 4 << 30;

/// Facts that a dump may lack.
#[derive(Debug, Clone, Default)]
pub struct DumpOptions {
    /// Cluster of the keys below `cilium/state`.
    pub cluster: Option<ClusterName>,
    /// Time at which the dump was made.
    pub time: Option<SystemTime>,
}

/// A dump that was read.
#[derive(Debug)]
pub struct Dump {
    /// Path, form and time.
    pub source: DumpSource,
    /// Facts that the user should know before trusting the dump.
    pub warnings: Vec<String>,
    clusters: BTreeMap<ClusterName, ClusterRecord>,
    entries: BTreeMap<Scope, Vec<DumpEntry>>,
}

/// Reads a dump of any form.
///
/// # Errors
/// [`DumpError`], which names the file, the reason and the cure.
pub fn read_dump(path: &Path, options: &DumpOptions) -> Result<Dump, DumpError> {
    let unpacked = unpack(path, UNPACKED_BYTES_MAX)?;
    let about = bundle_time(&unpacked);
    let (mut bundled, mut parts) = (BundledClusters::default(), ParsedDump::default());
    let UnpackedDump { files, is_archive, modified } = unpacked;
    for file in files {
        match base_name(&file.name) {
            BUNDLE_CLUSTERS if about.is_some() => bundled = BundledClusters::parse(path, &file)?,
            // in another archive, these files are not of a bundle
            BUNDLE_INFO | BUNDLE_CLUSTERS => {}
            _ => parts.add(path, file, is_archive)?,
        }
    }
    let Some(form) = parts.form(about.is_some(), is_archive) else {
        let path = path.to_owned();
        return Err(if about.is_some() { DumpError::BundleWithoutEntries { path } } else { DumpError::NoKvstore { path } });
    };
    let MeshContent { entries, mut configs, heartbeat, warnings } =
        mesh::sort(parts.pairs, options.cluster.as_ref()).map_err(|unknown| unknown_cluster(path, unknown))?;
    configs.extend(bundled.configs);
    if entries.is_empty() && configs.is_empty() {
        return Err(DumpError::Empty { path: path.to_owned() });
    }
    let times = [(options.time, DumpTimeSource::CommandLine), (about, DumpTimeSource::Bundle), (heartbeat, DumpTimeSource::Heartbeat)];
    let (time, time_from) = times.into_iter().find_map(|(time, from)| Some((time?, from))).unwrap_or((modified, DumpTimeSource::File));
    let names: BTreeSet<ClusterName> = entries.keys().map(|scope| &scope.cluster).chain(configs.keys()).cloned().collect();
    let record = |name: ClusterName| {
        // a bundle knows when each cluster answered last
        let last_contact = bundled.last_contacts.get(&name).copied().filter(|_| options.time.is_none()).or(Some(time));
        let record = ClusterRecord { config: configs.remove(&name), last_contact, ..ClusterRecord::default() };
        (name, record)
    };
    let clusters = names.into_iter().map(record).collect();
    let source = DumpSource { path: path.display().to_string(), form, time, time_from };
    let partial = parts.partial.last().map(|last| format!("{} is incomplete: it ends before the last key", last.display()));
    let warnings = parts.warnings.into_iter().chain(warnings).chain(partial).collect();
    Ok(Dump { source, warnings, clusters, entries })
}

impl Dump {
    /// Returns the clusters of the dump, in order.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterName> {
        self.clusters.keys()
    }

    /// Returns the number of keys that fill the mirror.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.entries.values().map(Vec::len).sum()
    }

    /// Returns the size of the mesh that the cluster configs name.
    #[must_use]
    pub fn max_connected_clusters(&self) -> MaxConnectedClusters {
        let numbers = self.clusters.values().filter_map(|record| Some(record.config.as_ref()?.max_connected_clusters));
        numbers.max().and_then(MaxConnectedClusters::from_number).unwrap_or_default()
    }

    /// Returns the commands that fill a mirror. Each command decodes the values of one kind of one
    /// cluster when the iterator reaches it.
    pub fn into_commands(self) -> impl Iterator<Item = Command> {
        let max_connected_clusters = self.max_connected_clusters();
        let Self { clusters, entries, .. } = self;
        let ids: BTreeMap<ClusterName, ClusterId> =
            clusters.iter().filter_map(|(name, record)| Some((name.clone(), record.config.as_ref()?.id))).collect();
        let stores = clusters.into_iter().map(|(cluster, record)| Command::StoreCluster { cluster, record });
        stores.chain(entries.into_iter().map(move |(scope, entries)| {
            let cluster_id = ids.get(&scope.cluster).copied().unwrap_or_default();
            let context = Context { cluster: &scope.cluster, cluster_id, max_connected_clusters };
            let changes = entries.into_iter().map(|DumpEntry { key, value, source }| {
                let decoded = decode_shared(&key, &value, &context).map(Arc::new).map_err(Arc::from);
                Change::Put { key, value, decoded, source }
            });
            let changes = changes.collect();
            Command::Apply { scope, changes, cursor: None }
        }))
    }
}

/// Keys of all files of a dump.
#[derive(Debug, Default)]
struct ParsedDump {
    pairs: Vec<DumpPair>,
    forms: Vec<FileForm>,
    /// Files that end before the last key.
    partial: Vec<PathBuf>,
    warnings: Vec<String>,
}

impl ParsedDump {
    /// Parses a file. A file of an archive that has no keys of an etcd causes a warning.
    fn add(&mut self, path: &Path, file: UnpackedFile, is_archive: bool) -> Result<(), DumpError> {
        let shown: PathBuf = if is_archive { path.join(&file.name) } else { path.to_owned() };
        match forms::parse(&file.bytes) {
            Ok(parsed) => {
                if parsed.is_partial {
                    self.partial.push(shown);
                } else if is_bundle_part(&file.name) {
                    // of the parts of a list, only the last one has its end
                    self.partial.clear();
                }
                self.pairs.extend(parsed.pairs);
                self.forms.push(parsed.form);
                Ok(())
            }
            Err(_) if is_archive => {
                self.warnings.push(format!("{} is not used: it has no keys of an etcd", shown.display()));
                Ok(())
            }
            Err(FormError::Unrecognised) => Err(DumpError::Unrecognised { path: shown }),
            Err(FormError::Malformed(reason)) => Err(DumpError::Malformed { path: shown, reason }),
        }
    }

    /// Returns the name of the dump's form. `None` if no file has keys.
    fn form(&self, is_bundle: bool, is_archive: bool) -> Option<&'static str> {
        let first = *self.forms.first()?;
        match (is_bundle, is_archive) {
            (true, _) => Some("meshkeep bundle --entries"),
            (false, true) => Some("cilium sysdump"),
            (false, false) => Some(first.name()),
        }
    }
}

/// Returns whether a file is one part of the entries of a bundle. Only the last part has `meta`.
fn is_bundle_part(name: &str) -> bool {
    base_name(name).starts_with("entries-")
}

/// Description of a bundle in the file [`BUNDLE_INFO`].
#[derive(Deserialize)]
struct BundleInfo {
    made: String,
}

/// Returns when a bundle was made. `None` if the dump is no bundle.
fn bundle_time(unpacked: &UnpackedDump) -> Option<SystemTime> {
    let file = unpacked.files.iter().find(|file| base_name(&file.name) == BUNDLE_INFO)?;
    let info: BundleInfo = serde_json::from_slice(&file.bytes).ok()?;
    parse_time(&info.made)
}

/// Facts of a bundle about its clusters.
#[derive(Debug, Default)]
struct BundledClusters {
    configs: BTreeMap<ClusterName, ClusterConfig>,
    last_contacts: BTreeMap<ClusterName, SystemTime>,
}

impl BundledClusters {
    fn parse(path: &Path, file: &UnpackedFile) -> Result<Self, DumpError> {
        let list: ClusterList = serde_json::from_slice(&file.bytes)
            .map_err(|error| DumpError::Malformed { path: path.join(&file.name), reason: error.to_string() })?;
        let mut clusters = Self::default();
        for cluster in list.items {
            let Ok(name) = ClusterName::parse(&cluster.name) else { continue };
            clusters.configs.extend(cluster.config.map(|config| (name.clone(), config_of(config))));
            clusters.last_contacts.extend(cluster.last_contact.and_then(|time| Some((name, parse_time(&time)?))));
        }
        Ok(clusters)
    }
}

fn config_of(status: ClusterConfigStatus) -> ClusterConfig {
    ClusterConfig {
        id: ClusterId(status.id),
        synced_canaries: status.synced_canaries,
        cached: status.cached,
        max_connected_clusters: status.max_connected_clusters.unwrap_or_default(),
        service_exports_enabled: status.service_exports_enabled,
        endpoint_slices_export_mode: status.endpoint_slices_export_mode,
    }
}

fn unknown_cluster(path: &Path, unknown: UnknownCluster) -> DumpError {
    let path = path.to_owned();
    match unknown {
        UnknownCluster::None => DumpError::NoClusterName { path },
        UnknownCluster::Several(names) => {
            DumpError::SeveralClusters { path, names: names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ") }
        }
    }
}

//! Merges the service exports of several clusters under one name.
//!
//! The rules are those of Cilium's operator (`pkg/clustermesh/mcsapi/serviceimport_controller.go`,
//! from KEP-1645): the oldest export wins, and among equally old ones that of the first cluster
//! name; ports are joined, IP families are intersected, and a cluster that disagrees is in
//! conflict. The operator reports only the first conflict; this module returns all, in its order.

use std::sync::Arc;

use crate::model::{ClusterName, ConflictReason, ExportPort, LabelSet, Record, ServiceExport};

/// `internalTrafficPolicy` of an export that gives none (`k8s.io/api/core/v1`).
const DEFAULT_TRAFFIC_POLICY: &str = "Cluster";

/// Merged exports of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedExports {
    /// Exports, the winning one first.
    pub exports: Vec<Arc<Record>>,
    /// Ports of all exports, those of the oldest first. A port that conflicts with an older one is
    /// left out.
    pub ports: Vec<ExportPort>,
    /// IP families that all exports have in common. An export that has none in common with older
    /// ones is ignored.
    pub ip_families: Vec<String>,
    /// Conflicts, the one that Cilium reports first.
    pub conflicts: Vec<ExportConflict>,
}

/// Disagreement between exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportConflict {
    /// Cilium's reason in the condition `Conflict` of a `ServiceExport`.
    pub reason: ConflictReason,
    /// Clusters that disagree with older exports, the oldest first.
    pub clusters: Vec<ClusterName>,
    /// Human-readable description of the value that applies.
    pub message: String,
}

#[derive(Clone, Copy)]
struct ClusterExport<'a> {
    cluster: &'a ClusterName,
    export: &'a ServiceExport,
}

/// Name of a field that must be the same in all exports, the reason of a conflict, and the value.
type ComparedField = (&'static str, ConflictReason, fn(&ServiceExport) -> String);

/// Fields in the order in which Cilium compares them (`checkConflictExport`).
const COMPARED_FIELDS: [ComparedField; 7] = [
    ("type", ConflictReason::Type, |export| export.service_type.clone()),
    ("sessionAffinity", ConflictReason::SessionAffinity, |export| export.session_affinity.clone()),
    ("sessionAffinityConfig.clientIP", ConflictReason::SessionAffinityConfig, |export| {
        export.session_affinity_timeout_seconds.map_or_else(String::new, |seconds| seconds.to_string())
    }),
    ("annotations", ConflictReason::Annotations, |export| labels_text(&export.annotations)),
    ("labels", ConflictReason::Labels, |export| labels_text(&export.labels)),
    ("internalTrafficPolicy", ConflictReason::InternalTrafficPolicy, |export| {
        or_default(&export.internal_traffic_policy, DEFAULT_TRAFFIC_POLICY)
    }),
    ("trafficDistribution", ConflictReason::TrafficDistribution, |export| export.traffic_distribution.clone()),
];

impl MergedExports {
    /// Merges the exports among some records; `None` if there are none.
    pub(super) fn merge(mut records: Vec<Arc<Record>>) -> Option<Self> {
        records.retain(|record| export_in(record).is_some());
        // orderSvcExportByPriority
        records.sort_by(|left, right| {
            let created = |record: &Record| export_in(record).map(|export| export.created);
            created(left).cmp(&created(right)).then_with(|| left.key.cluster.cmp(&right.key.cluster))
        });
        let exports: Vec<ClusterExport<'_>> =
            records.iter().filter_map(|record| Some(ClusterExport { cluster: &record.key.cluster, export: export_in(record)? })).collect();
        let oldest = *exports.first()?;
        let (ports, port_conflict) = merge_ports(&exports);
        let (ip_families, family_conflict) = intersect_families(&exports);
        let mut conflicts: Vec<ExportConflict> = port_conflict.into_iter().chain(family_conflict).collect();
        conflicts.extend(compare_fields(oldest, &exports));
        Some(Self { ports, ip_families, conflicts, exports: records })
    }

    /// Returns the export that wins conflicts.
    #[cfg(test)]
    #[must_use]
    pub fn oldest(&self) -> Option<&ServiceExport> {
        self.exports.first().and_then(|record| export_in(record))
    }
}

fn export_in(record: &Record) -> Option<&ServiceExport> {
    record.object.as_deref()?.as_service_export()
}

/// Joins ports (`mergePorts`). If two have the same name, or the same number and protocol, the
/// older one wins.
fn merge_ports(exports: &[ClusterExport<'_>]) -> (Vec<ExportPort>, Option<ExportConflict>) {
    let mut merged: Vec<(&ExportPort, &ClusterName)> = Vec::new();
    let (mut clusters, mut message) = (Vec::<ClusterName>::new(), None);
    let similar = |left: &ExportPort, right: &ExportPort| left.port == right.port && left.protocol == right.protocol;
    for ClusterExport { cluster, export } in exports {
        for port in &export.ports {
            let same_name = merged.iter().find(|(known, _)| known.name == port.name && !similar(known, port));
            let same_number = merged.iter().find(|(known, _)| similar(known, port));
            let conflict = match (same_name, same_number) {
                (Some((known, older)), _) => Some(format!(
                    "two ports have the name {:?}: {} is used, as in the oldest export with this name ({older})",
                    port.name,
                    port_text(known)
                )),
                (None, Some((known, older))) if known.name != port.name => Some(format!(
                    "port {} has two names: {:?} is used, as in the oldest export with this port ({older})",
                    port_text(port),
                    known.name
                )),
                (None, Some((known, older))) if known.app_protocol != port.app_protocol => Some(format!(
                    "port {} has two application protocols: {:?} is used, as in the oldest export with this port ({older})",
                    port_text(port),
                    known.app_protocol
                )),
                (None, Some(_)) => None,
                (None, None) => {
                    merged.push((port, *cluster));
                    None
                }
            };
            if let Some(conflict) = conflict {
                message.get_or_insert(conflict);
                add_once(&mut clusters, cluster);
            }
        }
    }
    let ports: Vec<ExportPort> = merged.into_iter().map(|(port, _)| port.clone()).collect();
    if message.is_none() {
        let differing = exports.iter().filter(|one| one.export.ports != ports);
        differing.for_each(|one| add_once(&mut clusters, one.cluster));
        let oldest = exports.first().map(|one| one.cluster);
        message = clusters.first().zip(oldest).map(|(first, oldest)| {
            if first == oldest {
                format!("{oldest}, the oldest export, does not have the ports of all exports")
            } else {
                format!("{first} does not have the ports of {oldest}, the oldest export")
            }
        });
    }
    (ports, message.map(|message| ExportConflict { reason: ConflictReason::Port, clusters, message }))
}

/// Intersects IP families (`intersectIPFamilies`). Ignores exports of old writers, which give none.
fn intersect_families(exports: &[ClusterExport<'_>]) -> (Vec<String>, Option<ExportConflict>) {
    let mut with_families = exports.iter().filter(|one| !one.export.ip_families.is_empty());
    let mut families = with_families.next().map(|one| one.export.ip_families.clone()).unwrap_or_default();
    let mut clusters = Vec::new();
    for one in with_families {
        let common: Vec<String> = families.iter().filter(|family| one.export.ip_families.contains(family)).cloned().collect();
        if common.is_empty() { clusters.push(one.cluster.clone()) } else { families = common }
    }
    let conflict = clusters.first().map(|first| {
        let message = format!("{first} has no IP family in common with older exports: {} is used", families.join(" and "));
        ExportConflict { reason: ConflictReason::IpFamily, clusters: clusters.clone(), message }
    });
    (families, conflict)
}

/// Compares the other fields with those of the oldest export (`checkConflictExport`), by export and
/// then by field.
fn compare_fields(oldest: ClusterExport<'_>, exports: &[ClusterExport<'_>]) -> Vec<ExportConflict> {
    let mut conflicts = Vec::<ExportConflict>::new();
    for one in exports {
        for (name, reason, value) in COMPARED_FIELDS {
            let expected = value(oldest.export);
            if value(one.export) == expected {
                continue;
            }
            match conflicts.iter_mut().find(|conflict| conflict.reason == reason) {
                Some(conflict) => conflict.clusters.push(one.cluster.clone()),
                None => conflicts.push(ExportConflict {
                    reason,
                    clusters: vec![one.cluster.clone()],
                    message: format!("{}: {expected:?} of {}, the oldest export, is used", name, oldest.cluster),
                }),
            }
        }
    }
    conflicts
}

fn add_once(clusters: &mut Vec<ClusterName>, cluster: &ClusterName) {
    if !clusters.contains(cluster) {
        clusters.push(cluster.clone());
    }
}

/// Formats a port as `number/protocol`.
fn port_text(port: &ExportPort) -> String {
    format!("{}/{}", port.port, port.protocol)
}

fn or_default(text: &str, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text.to_owned() }
}

fn labels_text(labels: &LabelSet) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

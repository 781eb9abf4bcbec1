//! What several clusters export under one name, as one.
//!
//! The rules are those of Cilium's operator (`pkg/clustermesh/mcsapi/serviceimport_controller.go`, after KEP-1645): the oldest export is right,
//! among equally old ones that of the first name; ports are joined and IP families intersected; a cluster that disagrees is in conflict. The
//! operator tells of the first conflict alone; here all are told, in its order.

use std::sync::Arc;

use crate::model::{ClusterName, ExportPort, LabelSet, Record, ServiceExport};

/// What holds for `internalTrafficPolicy` where an export gives none (`k8s.io/api/core/v1`).
const DEFAULT_TRAFFIC_POLICY: &str = "Cluster";

/// The reasons of conflicts, in order: those of the condition `Conflict` of a `ServiceExport`.
pub const CONFLICT_REASONS: [&str; 9] = [
    "AnnotationsConflict",
    "IPFamilyConflict",
    "InternalTrafficPolicyConflict",
    "LabelsConflict",
    "PortConflict",
    "SessionAffinityConfigConflict",
    "SessionAffinityConflict",
    "TrafficDistributionConflict",
    "TypeConflict",
];

/// The exports of one name, merged.
#[derive(Debug, Clone, PartialEq)]
pub struct MergedExports {
    /// The exports, the one that is right first.
    pub exports: Vec<Arc<Record>>,
    /// Of all of them, those of the oldest first; a port that conflicts with an older one is left out.
    pub ports: Vec<ExportPort>,
    /// The families that all have in common; an export that has none in common with older ones has no say.
    pub ip_families: Vec<String>,
    /// Where they disagree, the one that Cilium reports first.
    pub conflicts: Vec<ExportConflict>,
}

/// One thing that exports disagree about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportConflict {
    /// Cilium's reason, as it stands in the condition `Conflict` of a `ServiceExport`.
    pub reason: &'static str,
    /// The clusters that disagree with older ones, the oldest first.
    pub clusters: Vec<ClusterName>,
    /// What holds, for people.
    pub message: String,
}

/// An export with its cluster.
#[derive(Clone, Copy)]
struct Exported<'a> {
    cluster: &'a ClusterName,
    export: &'a ServiceExport,
}

/// What must be the same in all exports.
struct Field {
    name: &'static str,
    reason: &'static str,
    value: fn(&ServiceExport) -> String,
}

/// In the order in which Cilium compares them (`checkConflictExport`).
const FIELDS: [Field; 7] = [
    Field { name: "type", reason: "TypeConflict", value: |export| export.service_type.clone() },
    Field { name: "sessionAffinity", reason: "SessionAffinityConflict", value: |export| export.session_affinity.clone() },
    Field {
        name: "sessionAffinityConfig.clientIP",
        reason: "SessionAffinityConfigConflict",
        value: |export| export.session_affinity_timeout_seconds.map_or_else(String::new, |seconds| seconds.to_string()),
    },
    Field { name: "annotations", reason: "AnnotationsConflict", value: |export| written(&export.annotations) },
    Field { name: "labels", reason: "LabelsConflict", value: |export| written(&export.labels) },
    Field {
        name: "internalTrafficPolicy",
        reason: "InternalTrafficPolicyConflict",
        value: |export| or_default(&export.internal_traffic_policy, DEFAULT_TRAFFIC_POLICY),
    },
    Field { name: "trafficDistribution", reason: "TrafficDistributionConflict", value: |export| export.traffic_distribution.clone() },
];

impl MergedExports {
    /// Merges the exports in some records; `None` where there are none.
    pub(super) fn of(mut records: Vec<Arc<Record>>) -> Option<Self> {
        records.retain(|record| export_in(record).is_some());
        // orderSvcExportByPriority
        records.sort_by(|left, right| {
            let created = |record: &Record| export_in(record).map(|export| export.created);
            created(left).cmp(&created(right)).then_with(|| left.key.cluster.cmp(&right.key.cluster))
        });
        let exports: Vec<Exported<'_>> =
            records.iter().filter_map(|record| Some(Exported { cluster: &record.key.cluster, export: export_in(record)? })).collect();
        let oldest = *exports.first()?;
        let (ports, of_ports) = merge_ports(&exports);
        let (ip_families, of_families) = intersect_families(&exports);
        let mut conflicts: Vec<ExportConflict> = of_ports.into_iter().chain(of_families).collect();
        conflicts.extend(compare_fields(oldest, &exports));
        Some(Self { ports, ip_families, conflicts, exports: records })
    }

    /// The export that is right where clusters disagree.
    #[cfg(test)]
    #[must_use]
    pub fn oldest(&self) -> Option<&ServiceExport> {
        self.exports.first().and_then(|record| export_in(record))
    }
}

fn export_in(record: &Record) -> Option<&ServiceExport> {
    record.object.as_deref()?.as_service_export()
}

/// Joins ports (`mergePorts`): of two with one name the older is right, and of two with one number and protocol.
fn merge_ports(exports: &[Exported<'_>]) -> (Vec<ExportPort>, Option<ExportConflict>) {
    let mut merged: Vec<(&ExportPort, &ClusterName)> = Vec::new();
    let (mut clusters, mut message) = (Vec::<ClusterName>::new(), None);
    let similar = |left: &ExportPort, right: &ExportPort| left.port == right.port && left.protocol == right.protocol;
    for Exported { cluster, export } in exports {
        for port in &export.ports {
            let named = merged.iter().find(|(known, _)| known.name == port.name && !similar(known, port));
            let at = merged.iter().find(|(known, _)| similar(known, port));
            let conflict = match (named, at) {
                (Some((known, older)), _) => {
                    Some(format!("two ports have the name {:?}: {} of {older}, the oldest export with it, is used", port.name, form(known)))
                }
                (None, Some((known, older))) if known.name != port.name => {
                    Some(format!("port {} has two names: {:?} of {older}, the oldest export with it, is used", form(port), known.name))
                }
                (None, Some((known, older))) if known.app_protocol != port.app_protocol => Some(format!(
                    "port {} has two application protocols: {:?} of {older}, the oldest export with it, is used",
                    form(port),
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
                note(&mut clusters, cluster);
            }
        }
    }
    let ports: Vec<ExportPort> = merged.into_iter().map(|(port, _)| port.clone()).collect();
    if message.is_none() {
        let differing = exports.iter().filter(|one| one.export.ports != ports);
        differing.for_each(|one| note(&mut clusters, one.cluster));
        let oldest = exports.first().map(|one| one.cluster);
        message = clusters.first().zip(oldest).map(|(first, oldest)| {
            if first == oldest {
                format!("{oldest}, the oldest export, does not have the ports of all exports")
            } else {
                format!("{first} does not have the ports of {oldest}, the oldest export")
            }
        });
    }
    (ports, message.map(|message| ExportConflict { reason: "PortConflict", clusters, message }))
}

/// Intersects IP families (`intersectIPFamilies`). Exports of old writers, which give none, have no say.
fn intersect_families(exports: &[Exported<'_>]) -> (Vec<String>, Option<ExportConflict>) {
    let mut telling = exports.iter().filter(|one| !one.export.ip_families.is_empty());
    let mut families = telling.next().map(|one| one.export.ip_families.clone()).unwrap_or_default();
    let mut clusters = Vec::new();
    for one in telling {
        let common: Vec<String> = families.iter().filter(|family| one.export.ip_families.contains(family)).cloned().collect();
        if common.is_empty() { clusters.push(one.cluster.clone()) } else { families = common }
    }
    let conflict = clusters.first().map(|first| {
        let message = format!("{first} has no IP family in common with older exports: {} is used", families.join(" and "));
        ExportConflict { reason: "IPFamilyConflict", clusters: clusters.clone(), message }
    });
    (families, conflict)
}

/// Everything else must be as the oldest has it (`checkConflictExport`): by export, then by field.
fn compare_fields(oldest: Exported<'_>, exports: &[Exported<'_>]) -> Vec<ExportConflict> {
    let mut conflicts = Vec::<ExportConflict>::new();
    for one in exports {
        for field in FIELDS {
            let held = (field.value)(oldest.export);
            if (field.value)(one.export) == held {
                continue;
            }
            match conflicts.iter_mut().find(|conflict| conflict.reason == field.reason) {
                Some(conflict) => conflict.clusters.push(one.cluster.clone()),
                None => conflicts.push(ExportConflict {
                    reason: field.reason,
                    clusters: vec![one.cluster.clone()],
                    message: format!("{}: {held:?} of {}, the oldest export, is used", field.name, oldest.cluster),
                }),
            }
        }
    }
    conflicts
}

fn note(clusters: &mut Vec<ClusterName>, cluster: &ClusterName) {
    if !clusters.contains(cluster) {
        clusters.push(cluster.clone());
    }
}

/// A port as people write it.
fn form(port: &ExportPort) -> String {
    format!("{}/{}", port.port, port.protocol)
}

fn or_default(text: &str, default: &str) -> String {
    if text.is_empty() { default.to_owned() } else { text.to_owned() }
}

fn written(labels: &LabelSet) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

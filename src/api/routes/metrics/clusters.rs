//! Metrics of each cluster. Names that Cilium's KVStoreMesh also uses have the same meaning here
//! (docs/develop/protocol.md §8.3).

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::metrics_text::{MetricFamily, MetricsText};
use crate::handle::{ClusterReading, Handle, Origin, ResourceReading};
use crate::model::{ClusterStatus, Kind, Phase, Scope, Verification};

/// Adds the metrics of the clusters. Without `is_full`, only those that an alert or the dashboard
/// needs, each with one series for all kinds of a cluster.
pub(super) fn add(text: &mut MetricsText, handle: &Handle, all: &[ClusterReading], is_full: bool) {
    add_phases(text, all, is_full);
    add_resources(text, all, is_full);
    if is_full {
        add_verifications(text, all);
    }
    add_remotes(text, all, is_full);
    add_changes(text, handle, all, is_full);
}

fn add_phases(text: &mut MetricsText, all: &[ClusterReading], is_full: bool) {
    let mut counts: BTreeMap<&str, u64> = Phase::ALL.iter().map(|phase| (phase.api_name(), 0)).collect();
    for cluster in all {
        if let Some(phase) = cluster.phase {
            *counts.entry(phase.api_name()).or_default() += 1;
        }
    }
    let mut clusters = text.gauge("meshkeep_clusters", "Clusters in each phase.");
    for (phase, count) in counts {
        clusters.sample(&[("phase", phase)], count);
    }
    let mut current_phase = text.gauge("meshkeep_cluster_phase", "1 for the current phase of the cluster.");
    for cluster in all {
        for phase in Phase::ALL {
            let is_current = cluster.phase == Some(phase);
            // alerts compare these two with 0
            if is_full || is_current || matches!(phase, Phase::Live | Phase::SourceLost) {
                let labels = [("target_cluster", cluster.name.as_str()), ("phase", phase.api_name())];
                current_phase.sample(&labels, u8::from(is_current));
            }
        }
    }
    if is_full {
        let mut phase_seconds = text.gauge("meshkeep_cluster_phase_seconds", "Time in the current phase.");
        for (name, status) in with_file(all) {
            phase_seconds.sample(&[("target_cluster", name)], status.phase_since.elapsed().as_secs_f64());
        }
    }
}

/// Adds a metric with a value for each kind of each cluster or, without `is_full`, with one value
/// for each cluster: that of `combine` over its kinds.
fn add_by_kind(
    mut family: MetricFamily<'_>,
    all: &[ClusterReading],
    is_full: bool,
    value: impl Fn(&ClusterReading, &ResourceReading) -> Option<f64>,
    combine: impl Fn(f64, f64) -> f64,
) {
    for cluster in all {
        let values = cluster.resources.iter().filter_map(|resource| Some((resource.kind, value(cluster, resource)?)));
        if is_full {
            for (kind, value) in values {
                family.sample(&[("target_cluster", cluster.name.as_str()), ("kind", kind.api_name())], value);
            }
        } else if let Some(value) = values.map(|(_, value)| value).reduce(&combine) {
            family.sample(&[("target_cluster", cluster.name.as_str())], value);
        }
    }
}

fn add_resources(text: &mut MetricsText, all: &[ClusterReading], is_full: bool) {
    let sum = |one: f64, other: f64| one + other;
    let entries = text.gauge("meshkeep_cluster_entries", "Entries of the mirror.");
    add_by_kind(entries, all, is_full, |_, resource| Some(float(resource.entry_count)), sum);
    let restored = text.gauge("meshkeep_cluster_restored_entries", "Entries from the store that the source has not confirmed yet.");
    add_by_kind(restored, all, is_full, |_, resource| Some(float(resource.restored_count)), sum);
    if is_full {
        let confirmed = text.gauge("meshkeep_cluster_confirmed", "1 once the source has confirmed every entry since the start.");
        let is_live = |resource: &ResourceReading| resource.source.origin == Origin::Live;
        add_by_kind(confirmed, all, is_full, |_, resource| Some(float(u64::from(is_live(resource)))), f64::min);
    }
    let age = text.gauge("meshkeep_cluster_age_seconds", "Age of the data; +Inf if it was never read.");
    let age_of = |_: &ClusterReading, resource: &ResourceReading| {
        // a contact is not enough: an etcd that answers may lack the cluster config
        let age = resource.source.age.filter(|_| resource.source.origin != Origin::NeverRead);
        Some(age.map_or(f64::INFINITY, |age| age.as_secs_f64()))
    };
    // all kinds that were read have the same age
    add_by_kind(age, all, is_full, age_of, f64::min);
    let held = text.gauge("meshkeep_cluster_held_entries", "Entries that are kept although the source lost their keys.");
    let held_count = |cluster: &ClusterReading, resource: &ResourceReading| {
        let count = cluster.status.as_ref()?.resource(resource.kind).held_count;
        Some(float(count as u64))
    };
    add_by_kind(held, all, is_full, held_count, sum);
    if is_full {
        let help = "1 once the kind was listed completely and is watched over the current connection.";
        let mut synced = text.gauge("meshkeep_kvstore_initial_sync_completed", help);
        for (name, status) in with_file(all) {
            for kind in Kind::ALL {
                let labels = [("scope", kind.base()), ("source_cluster", name), ("action", "read")];
                synced.sample(&labels, u8::from(status.resource(kind).synced));
            }
        }
    }
}

/// Adds the results of the comparisons with the source.
fn add_verifications(text: &mut MetricsText, all: &[ClusterReading]) {
    let each = |family: MetricFamily<'_>, value: &dyn Fn(&Verification) -> Option<f64>| {
        let of =
            |cluster: &ClusterReading, resource: &ResourceReading| value(&cluster.status.as_ref()?.resource(resource.kind).verification);
        add_by_kind(family, all, true, of, f64::min);
    };
    let help = "Time at which the newest comparison of all keys with the source ended without a difference.";
    each(text.gauge("meshkeep_cluster_verified_timestamp_seconds", help), &|one| one.verified_at.map(timestamp));
    let help = "Revision of the source at the start of that comparison.";
    each(text.gauge("meshkeep_cluster_verified_revision", help), &|one| {
        one.verified_revision.and_then(|revision| u64::try_from(revision.0).ok()).map(float)
    });
    let help = "Number of keys in that comparison.";
    each(text.gauge("meshkeep_cluster_verified_keys", help), &|one| one.verified_at.map(|_| float(one.keys_compared)));
    let help = "Time at which the number of keys was last equal to the source's.";
    each(text.gauge("meshkeep_cluster_counted_timestamp_seconds", help), &|one| one.counted_at.map(timestamp));
    let help = "Number of times that entries differed from the source.";
    each(text.counter("meshkeep_cluster_divergences_total", help), &|one| {
        Some(float(one.divergence.as_ref().map_or(0, |divergence| divergence.detections)))
    });
}

/// Returns the clusters with a client file, and their status.
fn with_file(all: &[ClusterReading]) -> impl Iterator<Item = (&str, &ClusterStatus)> {
    all.iter().filter_map(|cluster| Some((cluster.name.as_str(), cluster.status.as_ref()?)))
}

fn add_remotes(text: &mut MetricsText, all: &[ClusterReading], is_full: bool) {
    text.gauge("meshkeep_remote_clusters", "Clusters with a client file.").sample(&[], with_file(all).count());
    let mut each = |name, help, value: &dyn Fn(&ClusterStatus) -> Option<f64>| {
        let mut family = text.gauge(name, help);
        for (cluster, status) in with_file(all) {
            if let Some(value) = value(status) {
                family.sample(&[("target_cluster", cluster)], value);
            }
        }
    };
    each("meshkeep_remote_cluster_failures", "Failed attempts since the start.", &|status| Some(float(status.failure_count)));
    let help = "Expiry of the client certificate or of its CA, whichever is first.";
    each("meshkeep_cluster_certificate_expiry_timestamp_seconds", help, &|status| status.certificate_expiry.map(timestamp));
    each("meshkeep_cluster_too_large", "1 while the cluster exceeds its bounds and is not read.", &|status| {
        Some(f64::from(u8::from(status.too_large.is_some())))
    });
    if is_full {
        let ready = "1 once the config and every kind were read over the current connection.";
        each("meshkeep_remote_cluster_readiness_status", ready, &|status| {
            let is_ready = status.connected && status.config_retrieved && status.resources.iter().all(|resource| resource.synced);
            Some(f64::from(u8::from(is_ready)))
        });
        let help = "Time of the last failed attempt.";
        each("meshkeep_remote_cluster_last_failure_ts", help, &|status| status.last_error_time.map(timestamp));
        let revoked = "Number of times that services and endpoints were removed because the cluster could not be read (--cache-ttl).";
        each("meshkeep_remote_cluster_cache_revocations", revoked, &|status| Some(float(status.revocation_count)));
    }
    let mut unknown = text.gauge("meshkeep_cluster_unknown_keys", "Keys of the source that this version does not know, by prefix.");
    for (name, status) in with_file(all) {
        for unknown_prefix in &status.unknown_prefixes {
            unknown.sample(&[("target_cluster", name), ("prefix", &unknown_prefix.prefix)], unknown_prefix.key_count);
        }
    }
}

fn add_changes(text: &mut MetricsText, handle: &Handle, all: &[ClusterReading], is_full: bool) {
    let mut changes = text.counter("meshkeep_cluster_changes_total", "Changes since the start.");
    let counted = handle.changes_counted();
    // removed clusters are no longer exposed
    for cluster in all {
        let name = cluster.name.as_str();
        let scopes = Kind::ALL.into_iter().filter_map(|kind| {
            let counts = counted.get(&Scope { cluster: cluster.name.clone(), kind })?;
            Some((kind.api_name(), [("upsert", counts.upserts), ("delete", counts.deletes)]))
        });
        if is_full {
            for (kind, (change, count)) in scopes.flat_map(|(kind, counts)| counts.map(|count| (kind, count))) {
                changes.sample(&[("target_cluster", name), ("kind", kind), ("change", change)], count);
            }
        } else if let Some(total) = scopes.flat_map(|(_, counts)| counts).map(|(_, count)| count).reduce(|one, other| one + other) {
            changes.sample(&[("target_cluster", name)], total);
        }
    }
}

/// Converts a time to Unix seconds.
pub(super) fn timestamp(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Converts a count to a float. Exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of keys are far below 2^53")]
const fn float(count: u64) -> f64 {
    count as f64
}

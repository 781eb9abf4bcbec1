//! Metrics of each cluster. Names that Cilium's KVStoreMesh also uses have the same meaning here
//! (docs/develop/protocol.md §8.3).

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::metrics_text::MetricsText;
use crate::handle::{ClusterReading, Handle, Origin};
use crate::model::{ClusterStatus, Kind, Phase, Scope};

/// Adds all metrics of the clusters.
pub(super) fn add(text: &mut MetricsText, handle: &Handle, all: &[ClusterReading]) {
    add_phases(text, all);
    add_resources(text, all);
    add_remotes(text, all);
    add_changes(text, handle, all);
}

fn add_phases(text: &mut MetricsText, all: &[ClusterReading]) {
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
            let labels = [("target_cluster", cluster.name.as_str()), ("phase", phase.api_name())];
            current_phase.sample(&labels, u8::from(cluster.phase == Some(phase)));
        }
    }
    let mut phase_seconds = text.gauge("meshkeep_cluster_phase_seconds", "Time in the current phase.");
    for (name, status) in with_file(all) {
        phase_seconds.sample(&[("target_cluster", name)], status.phase_since.elapsed().as_secs_f64());
    }
}

fn add_resources(text: &mut MetricsText, all: &[ClusterReading]) {
    let mut each = |name, help, value: &dyn Fn(&crate::handle::ResourceReading) -> Option<f64>| {
        let mut family = text.gauge(name, help);
        for (cluster, resource) in all.iter().flat_map(|cluster| cluster.resources.iter().map(move |resource| (cluster, resource))) {
            if let Some(value) = value(resource) {
                family.sample(&[("target_cluster", cluster.name.as_str()), ("kind", resource.kind.api_name())], value);
            }
        }
    };
    each("meshkeep_cluster_entries", "Entries of the mirror.", &|resource| Some(float(resource.entry_count)));
    let restored = "Entries from the store that the source has not confirmed yet.";
    each("meshkeep_cluster_restored_entries", restored, &|resource| Some(float(resource.restored_count)));
    let live = "1 once the source has confirmed every entry since the start.";
    each("meshkeep_cluster_confirmed", live, &|resource| Some(float(u64::from(resource.source.origin == Origin::Live))));
    let age = "Age of the data; +Inf if the kind was never read.";
    each("meshkeep_cluster_age_seconds", age, &|resource| {
        // a contact is not enough: an etcd that answers may lack the cluster config
        let age = resource.source.age.filter(|_| resource.source.origin != Origin::NeverRead);
        Some(age.map_or(f64::INFINITY, |age| age.as_secs_f64()))
    });
    let held = "Entries that are kept although the source lost their keys.";
    let mut family = text.gauge("meshkeep_cluster_held_entries", held);
    for (name, status) in with_file(all) {
        for kind in Kind::ALL {
            let count = status.resource(kind).held_count;
            family.sample(&[("target_cluster", name), ("kind", kind.api_name())], count);
        }
    }
    let help = "1 once the kind was listed completely and is watched over the current connection.";
    let mut synced = text.gauge("meshkeep_kvstore_initial_sync_completed", help);
    for (name, status) in with_file(all) {
        for kind in Kind::ALL {
            let labels = [("scope", kind.base()), ("source_cluster", name), ("action", "read")];
            synced.sample(&labels, u8::from(status.resource(kind).synced));
        }
    }
}

/// Returns the clusters with a client file, and their status.
fn with_file(all: &[ClusterReading]) -> impl Iterator<Item = (&str, &ClusterStatus)> {
    all.iter().filter_map(|cluster| Some((cluster.name.as_str(), cluster.status.as_ref()?)))
}

fn add_remotes(text: &mut MetricsText, all: &[ClusterReading]) {
    text.gauge("meshkeep_remote_clusters", "Clusters with a client file.").sample(&[], with_file(all).count());
    let mut each = |name, help, value: &dyn Fn(&ClusterStatus) -> Option<f64>| {
        let mut family = text.gauge(name, help);
        for (cluster, status) in with_file(all) {
            if let Some(value) = value(status) {
                family.sample(&[("target_cluster", cluster)], value);
            }
        }
    };
    let ready = "1 once the config and every kind were read over the current connection.";
    each("meshkeep_remote_cluster_readiness_status", ready, &|status| {
        let is_ready = status.connected && status.config_retrieved && status.resources.iter().all(|resource| resource.synced);
        Some(f64::from(u8::from(is_ready)))
    });
    each("meshkeep_remote_cluster_failures", "Failed attempts since the start.", &|status| Some(float(status.failure_count)));
    each("meshkeep_remote_cluster_last_failure_ts", "Time of the last failed attempt.", &|status| status.last_error_time.map(timestamp));
    let revoked = "Number of times that services and endpoints were removed because the cluster could not be read (--cache-ttl).";
    each("meshkeep_remote_cluster_cache_revocations", revoked, &|status| Some(float(status.revocation_count)));
    let help = "Expiry of the client certificate or of its CA, whichever is first.";
    each("meshkeep_cluster_certificate_expiry_timestamp_seconds", help, &|status| status.certificate_expiry.map(timestamp));
    each("meshkeep_cluster_too_large", "1 while the cluster exceeds its bounds and is not read.", &|status| {
        Some(f64::from(u8::from(status.too_large.is_some())))
    });
    let mut unknown = text.gauge("meshkeep_cluster_unknown_keys", "Keys of the source that this version does not know, by prefix.");
    for (name, status) in with_file(all) {
        for unknown_prefix in &status.unknown_prefixes {
            unknown.sample(&[("target_cluster", name), ("prefix", &unknown_prefix.prefix)], unknown_prefix.key_count);
        }
    }
}

fn add_changes(text: &mut MetricsText, handle: &Handle, all: &[ClusterReading]) {
    let mut changes = text.counter("meshkeep_cluster_changes_total", "Changes since the start.");
    // removed clusters are no longer exposed
    let has_cluster = |scope: &Scope| all.iter().any(|cluster| cluster.name == scope.cluster);
    for (scope, counts) in handle.changes_counted().into_iter().filter(|(scope, _)| has_cluster(scope)) {
        let mut add_sample = |change, count| {
            changes.sample(&[("target_cluster", scope.cluster.as_str()), ("kind", scope.kind.api_name()), ("change", change)], count);
        };
        add_sample("upsert", counts.upserts);
        add_sample("delete", counts.deletes);
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

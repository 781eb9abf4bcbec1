//! From the settings to what each room wants to know.

use std::time::Duration;

use crate::api::{ApiOptions, TlsFiles};
use crate::clustermesh::{DirectoryOptions, MeshOptions, Timing};
use crate::config::Settings;
use crate::feed::Retention;
use crate::handle::StoreReport;
use crate::kvstore::ClientOptions;
use crate::store::Opened;

/// How long the config directory must be at rest before it is read: the kubelet swaps a Secret within milliseconds.
const DIRECTORY_DEBOUNCE: Duration = Duration::from_millis(100);

pub(super) fn api_options(settings: &Settings) -> ApiOptions {
    let security = &settings.security;
    let tls = security.tls_cert.clone().zip(security.tls_key.clone());
    ApiOptions {
        allowed_hosts: settings.allowed_hosts.clone(),
        token_file: security.token_file.clone(),
        tls: tls.map(|(certificate, key)| TlsFiles { certificate, key, client_ca: security.client_ca.clone() }),
    }
}

pub(super) fn directory_options(settings: &Settings) -> DirectoryOptions {
    DirectoryOptions {
        path: settings.clustermesh_config.clone(),
        own_cluster: settings.cluster_name.clone(),
        debounce: DIRECTORY_DEBOUNCE,
        rescan_interval: settings.timing.config_rescan_interval,
    }
}

pub(super) fn mesh_options(settings: &Settings) -> MeshOptions {
    let kvstore = settings.kvstore();
    let in_flight = usize::try_from(kvstore.max_inflight.unwrap_or(kvstore.qps)).unwrap_or(usize::MAX);
    MeshOptions {
        own_id: settings.cluster_id,
        max_connected_clusters: settings.max_connected_clusters,
        client: ClientOptions {
            keepalive_heartbeat: kvstore.keepalive_heartbeat,
            keepalive_timeout: kvstore.keepalive_timeout,
            page_limit: i64::from(kvstore.page_limit),
            requests_per_second_max: kvstore.qps,
            requests_in_flight_max: in_flight,
            ..ClientOptions::default()
        },
        timing: Timing {
            legacy_wait: settings.timing.legacy_wait,
            legacy_quiet: settings.timing.legacy_quiet,
            backoff_min: settings.timing.backoff_min,
            backoff_max: settings.timing.backoff_max,
            hold_margin: settings.timing.hold_margin,
            heartbeat_silence: settings.timing.heartbeat_silence,
            cache_ttl: Some(settings.cache_ttl).filter(|ttl| !ttl.is_zero()),
            ..Timing::default()
        },
    }
}

pub(super) fn retention(settings: &Settings) -> Retention {
    Retention { age_max: settings.tombstone_max_age, count_max: usize::try_from(settings.tombstone_max_count).unwrap_or(usize::MAX) }
}

pub(super) fn store_report(opened: &Opened) -> StoreReport {
    let set_aside = opened.set_aside.as_ref().map(|set_aside| (set_aside.path.display().to_string(), set_aside.reason.clone()));
    StoreReport { set_aside, ..StoreReport::default() }
}

//! Values that the reflector creates itself: cluster configs in the form that KVStoreMesh writes,
//! and the timestamps of canaries and heartbeats.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::model::ClusterConfig;

/// Returns the source's cluster config with `syncedCanaries` and `cached` set. The members have the
/// order of Cilium's struct, and absent ones are omitted as Go's `omitempty` does.
pub(super) fn cached_config(config: &ClusterConfig) -> Arc<[u8]> {
    let mut capabilities = Map::new();
    capabilities.insert("syncedCanaries".into(), true.into());
    capabilities.insert("cached".into(), true.into());
    if config.max_connected_clusters != 0 {
        capabilities.insert("maxConnectedClusters".into(), config.max_connected_clusters.into());
    }
    if let Some(enabled) = config.service_exports_enabled {
        capabilities.insert("serviceExportsEnabled".into(), enabled.into());
    }
    if let Some(mode) = &config.endpoint_slices_export_mode {
        capabilities.insert("endpointSlicesExportMode".into(), mode.clone().into());
    }
    // assembled by hand, because a map would sort the members by name
    let id = if config.id.0 == 0 { String::new() } else { format!("\"id\":{},", config.id.0) };
    let capabilities: Vec<String> =
        ["syncedCanaries", "cached", "maxConnectedClusters", "serviceExportsEnabled", "endpointSlicesExportMode"]
            .iter()
            .filter_map(|name| capabilities.get(*name).map(|value| format!("{}:{value}", Value::from(*name))))
            .collect();
    format!("{{{id}\"capabilities\":{{{}}}}}", capabilities.join(",")).into_bytes().into()
}

/// Returns the value of canaries and heartbeats: the current time as Go writes it (RFC 3339, whole
/// seconds).
pub(super) fn now() -> Arc<[u8]> {
    jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default().to_string().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ClusterId;
    use crate::wire::cluster_config::parse_cluster_config;

    #[test]
    fn a_config_is_written_as_cilium_writes_it() {
        let text = |config: &ClusterConfig| String::from_utf8(cached_config(config).to_vec()).unwrap();
        let mut config = ClusterConfig {
            id: ClusterId(3),
            synced_canaries: false,
            cached: false,
            max_connected_clusters: 255,
            service_exports_enabled: Some(false),
            endpoint_slices_export_mode: Some("services-and-endpointslices".into()),
        };
        assert_eq!(
            text(&config),
            r#"{"id":3,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255,"serviceExportsEnabled":false,"endpointSlicesExportMode":"services-and-endpointslices"}}"#
        );
        let read = parse_cluster_config(&cached_config(&config)).unwrap();
        assert_eq!(read, ClusterConfig { synced_canaries: true, cached: true, ..config.clone() });
        (config.id, config.max_connected_clusters) = (ClusterId(0), 0);
        (config.service_exports_enabled, config.endpoint_slices_export_mode) = (None, None);
        assert_eq!(text(&config), r#"{"capabilities":{"syncedCanaries":true,"cached":true}}"#);
    }

    #[test]
    fn times_are_whole_seconds() {
        let text = String::from_utf8(now().to_vec()).unwrap();
        assert!(text.len() == 20 && text.ends_with('Z'), "{text}");
    }
}

//! Cluster configs: `cilium/cluster-config/<cluster>`, from `CiliumClusterConfig` and
//! `ValidateRemoteConfig` in Cilium's `pkg/clustermesh/types/types.go`.
//!
//! Besides the codec, the module checks whether a cluster can be part of this mesh, and which kinds
//! it publishes.

use super::go_json::{go_struct, parse};
use super::{bounded, quoted};
use crate::model::{ClusterConfig, ClusterId, Kind, MaxConnectedClusters};

/// `endpointSlicesExportMode` of a cluster that publishes endpoint slices but no services
/// (docs/develop/protocol.md §2.5).
const ENDPOINT_SLICES_ONLY: &str = "endpointslices-only";
/// `endpointSlicesExportMode` of a cluster that publishes both. A cluster without a mode publishes
/// services only.
const SERVICES_AND_ENDPOINT_SLICES: &str = "services-and-endpointslices";

go_struct! {
    /// A cluster config as JSON.
    struct ConfigJson {
        id: u32 = "id",
        capabilities: CapabilitiesJson = "capabilities",
    }
    /// Capabilities of the cluster.
    struct CapabilitiesJson {
        synced_canaries: bool = "syncedCanaries",
        cached: bool = "cached",
        max_connected_clusters: u32 = "maxConnectedClusters",
        service_exports_enabled: Option<bool> = "serviceExportsEnabled",
        endpoint_slices_export_mode: String = "endpointSlicesExportMode",
    }
}

/// Parses a cluster config. The caller still has to check it with [`validate_cluster_config`].
///
/// # Errors
/// Returns one short line that says what is wrong with the JSON.
pub fn parse_cluster_config(bytes: &[u8]) -> Result<ClusterConfig, String> {
    let json: ConfigJson = parse("a cluster config", bytes).map_err(|reason| bounded(&reason))?;
    let mode = json.capabilities.endpoint_slices_export_mode;
    Ok(ClusterConfig {
        id: ClusterId(json.id),
        synced_canaries: json.capabilities.synced_canaries,
        cached: json.capabilities.cached,
        max_connected_clusters: json.capabilities.max_connected_clusters,
        service_exports_enabled: json.capabilities.service_exports_enabled,
        endpoint_slices_export_mode: Some(mode).filter(|mode| !mode.is_empty()),
    })
}

/// State of a kind in a cluster, as its cluster config declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindPublication {
    /// The cluster publishes the kind.
    Published,
    /// The cluster supports the kind but has disabled it: there may be no canary to wait for.
    Disabled,
    /// The cluster does not have the kind: nothing is requested, and retained entries are dropped.
    Absent,
}

/// Returns the state of a kind in a cluster, by the rules of Cilium's
/// `pkg/clustermesh/remote_cluster.go` (`Run`) and `pkg/clustermesh/kvstoremesh/reflector`. Service
/// exports depend on `serviceExportsEnabled`: absent, off or published. Endpoint slices need an
/// export mode, and one of the modes turns services off.
#[must_use]
pub fn kind_publication(kind: Kind, config: &ClusterConfig) -> KindPublication {
    let mode = config.endpoint_slices_export_mode.as_deref();
    match (kind, config.service_exports_enabled) {
        (Kind::Identity | Kind::Ip | Kind::Node, _) => KindPublication::Published,
        (Kind::ServiceExport, Some(true)) => KindPublication::Published,
        (Kind::ServiceExport, Some(false)) => KindPublication::Disabled,
        (Kind::ServiceExport, None) => KindPublication::Absent,
        (Kind::EndpointSlice, _) if mode.is_some() => KindPublication::Published,
        (Kind::EndpointSlice, _) => KindPublication::Absent,
        (Kind::Service, _) if mode == Some(ENDPOINT_SLICES_ONLY) => KindPublication::Absent,
        (Kind::Service, _) => KindPublication::Published,
        // meshkeep creates entries of these kinds itself; no source has any
        (Kind::NodeIp | Kind::Cluster | Kind::Problem | Kind::Notice, _) => KindPublication::Absent,
    }
}

/// Checks the own cluster's config. The same as [`validate_cluster_config`], but the id must equal
/// `own_id` unless that is 0 (unknown).
///
/// # Errors
/// Returns one short line that names the wrong field and the expected value.
pub fn validate_own_config(config: &ClusterConfig, own_id: ClusterId, max: MaxConnectedClusters) -> Result<(), String> {
    validate_cluster_config(config, ClusterId(0), max)?;
    if own_id != ClusterId(0) && config.id != own_id {
        return Err(format!("id is {}, expected {own_id}, the value of --cluster-id", config.id));
    }
    Ok(())
}

/// Checks whether a cluster can join the mesh of the own cluster, whose id is 0 if it is unknown.
/// The registry checks that no *other* remote cluster has the same id.
///
/// # Errors
/// Returns one short line that names the wrong field and the expected value.
pub fn validate_cluster_config(config: &ClusterConfig, own_id: ClusterId, max: MaxConnectedClusters) -> Result<(), String> {
    let id = config.id;
    if id == ClusterId(0) {
        // Cilium's readers do not distinguish a missing id from 0 either
        return Err(format!("id is 0, which is reserved: expected 1 to {}, the size of the mesh", max.id_max()));
    }
    if id.0 > max.id_max() {
        return Err(format!("id is {id}, expected 1 to {}, the size of the mesh", max.id_max()));
    }
    // a mesh of the default size accepts clusters of releases that do not state their size, as in
    // Cilium
    if max == MaxConnectedClusters::Clusters511 && config.max_connected_clusters != max.id_max() {
        return Err(format!("maxConnectedClusters is {}, expected {}, the size of the mesh", config.max_connected_clusters, max.id_max()));
    }
    match config.endpoint_slices_export_mode.as_deref() {
        None | Some(SERVICES_AND_ENDPOINT_SLICES | ENDPOINT_SLICES_ONLY) => {}
        Some(mode) => {
            let expected =
                format!("expected {SERVICES_AND_ENDPOINT_SLICES}, {ENDPOINT_SLICES_ONLY} or no value: Cilium's agents accept nothing else");
            return Err(format!("endpointSlicesExportMode is {}, {expected}", quoted(mode)));
        }
    }
    if id == own_id {
        return Err(format!("id is {id}, which is the id of the own cluster"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(id: u32, max_connected_clusters: u32) -> ClusterConfig {
        ClusterConfig { id: ClusterId(id), max_connected_clusters, ..ClusterConfig::default() }
    }

    #[test]
    fn every_field_is_read() {
        let json = r#"{"id":3,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":511,"serviceExportsEnabled":false,"endpointSlicesExportMode":"endpointslices-only","new":[]}}"#;
        let expected = ClusterConfig {
            id: ClusterId(3),
            synced_canaries: true,
            cached: true,
            max_connected_clusters: 511,
            service_exports_enabled: Some(false),
            endpoint_slices_export_mode: Some("endpointslices-only".into()),
        };
        assert_eq!(parse_cluster_config(json.as_bytes()), Ok(expected));
        for zero in ["{}", "null", r#"{"id":null,"capabilities":null}"#, r#"{"capabilities":{"endpointSlicesExportMode":""}}"#] {
            assert_eq!(parse_cluster_config(zero.as_bytes()), Ok(ClusterConfig::default()), "{zero}");
        }
    }

    #[test]
    fn a_config_determines_which_kinds_are_published() {
        use KindPublication::{Absent, Disabled, Published};
        let config = |exports, mode: &str| ClusterConfig {
            service_exports_enabled: exports,
            endpoint_slices_export_mode: Some(mode.to_owned()).filter(|mode| !mode.is_empty()),
            ..ClusterConfig::default()
        };
        for (exports, mode, expected) in [
            (None, "", [Absent, Published, Published, Published, Absent, Published]),
            (Some(false), "", [Absent, Published, Published, Published, Disabled, Published]),
            (Some(true), "services-and-endpointslices", [Published; 6]),
            (Some(true), "endpointslices-only", [Published, Published, Published, Published, Published, Absent]),
        ] {
            assert_eq!(Kind::ALL.map(|kind| kind_publication(kind, &config(exports, mode))), expected, "{exports:?} {mode}");
        }
    }

    #[test]
    fn an_invalid_config_is_refused_in_one_bounded_line() {
        let long = format!(r#"{{"id":"{}"}}"#, "x\\n".repeat(10_000));
        for json in ["", "paris", "[]", r#"{"id":-1}"#, r#"{"capabilities":{"cached":"yes"}}"#, long.as_str()] {
            let reason = parse_cluster_config(json.as_bytes()).unwrap_err();
            assert!(reason.starts_with("value is not the JSON of a cluster config: "), "{reason}");
            assert!(reason.chars().count() <= 301 && !reason.contains('\n'), "{reason}");
        }
    }

    #[test]
    fn a_cluster_must_fit_the_mesh() {
        use MaxConnectedClusters::{Clusters255, Clusters511};
        for (config, own_id, max, reason) in [
            (config(1, 255), 2, Clusters255, ""),
            (config(255, 0), 0, Clusters255, ""),
            (config(1, 511), 2, Clusters255, ""),
            (config(511, 511), 0, Clusters511, ""),
            (config(0, 255), 0, Clusters255, "id is 0, which is reserved: expected 1 to 255, the size of the mesh"),
            (config(256, 255), 1, Clusters255, "id is 256, expected 1 to 255, the size of the mesh"),
            (config(512, 511), 1, Clusters511, "id is 512, expected 1 to 511, the size of the mesh"),
            (config(1, 255), 2, Clusters511, "maxConnectedClusters is 255, expected 511, the size of the mesh"),
            (config(1, 0), 2, Clusters511, "maxConnectedClusters is 0, expected 511, the size of the mesh"),
            (config(7, 255), 7, Clusters255, "id is 7, which is the id of the own cluster"),
        ] {
            let result = validate_cluster_config(&config, ClusterId(own_id), max);
            assert_eq!(result.err().unwrap_or_default(), reason, "{config:?}");
        }
    }

    /// The modes are those of `ValidateRemoteConfig` in Cilium 1.20.2
    /// (`pkg/clustermesh/types/option.go`).
    #[test]
    fn export_modes_that_agents_refuse_are_refused() {
        let refusal = |mode: &str| {
            let config = ClusterConfig { endpoint_slices_export_mode: Some(mode.to_owned()), ..config(1, 255) };
            validate_cluster_config(&config, ClusterId(2), MaxConnectedClusters::Clusters255).err()
        };
        assert_eq!([refusal("services-and-endpointslices"), refusal("endpointslices-only")], [None, None]);
        let expected = "expected services-and-endpointslices, endpointslices-only or no value: Cilium's agents accept nothing else";
        for mode in ["services-only", "Endpointslices-Only", "a mode of the future"] {
            assert_eq!(refusal(mode), Some(format!("endpointSlicesExportMode is {mode:?}, {expected}")));
        }
        assert!(refusal(&"x".repeat(100_000)).unwrap().chars().count() < 500);
    }

    #[test]
    fn the_own_config_must_have_the_configured_id() {
        use MaxConnectedClusters::Clusters255;
        for (id, own_id, reason) in [
            (7, 7, ""),
            (7, 0, ""),
            (7, 8, "id is 7, expected 8, the value of --cluster-id"),
            (0, 0, "id is 0, which is reserved: expected 1 to 255, the size of the mesh"),
            (256, 256, "id is 256, expected 1 to 255, the size of the mesh"),
        ] {
            let result = validate_own_config(&config(id, 255), ClusterId(own_id), Clusters255);
            assert_eq!(result.err().unwrap_or_default(), reason, "{id} {own_id}");
        }
    }
}

//! Table of kinds for the command line: names, API path and table columns. A new kind is one more
//! row.

use crate::cli::terminal::change_age::{change_age, last_of};
use crate::cli::terminal::output::{Colour, TableColumn, TableShape, Tabular, age, age_of, coloured, joined, labels, number, text};
use crate::dto::objects::exports::{EndpointSlice, ServiceExport};
use crate::dto::objects::global_services::{GlobalService, TooLarge};
use crate::dto::objects::{Identity, IpcacheEntry, Node, Service};
use crate::dto::status::{Cluster, Resource};
use crate::dto::values::Open;
use crate::dto::values::closed::{EntrySource, Kind, Origin, Phase};

/// Age from which the data of a cluster is stale, the same as of the alert `MeshkeepClusterStale`.
const STALE_SECONDS: f64 = 300.0;

/// A kind that the commands can query.
pub(in crate::cli) struct KindRow {
    /// Names that the user may type. The first is the plural in the API's paths.
    pub(in crate::cli) names: &'static [&'static str],
    /// Kind in the change stream; `None` if the kind is not in the stream.
    pub(super) streamed: Option<Kind>,
    /// Parts of a full name, from left to right.
    pub(super) name_parts: &'static [&'static str],
    /// Whether the kind has namespaces (`-n`).
    pub(super) namespaced: bool,
    /// Whether the kind has labels (`-l`).
    pub(super) labelled: bool,
    pub(in crate::cli) shape: &'static dyn Tabular,
}

impl KindRow {
    /// Returns the row of a kind, by any of its names.
    pub(in crate::cli) fn by_name(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// Returns the path of the list.
    pub(in crate::cli) fn path(&self) -> String {
        format!("/v1/{}", self.names[0])
    }
}

/// All kinds, in the order of the API.
pub(in crate::cli) static KINDS: &[KindRow] = &[
    KindRow {
        names: &["nodes", "node", "no"],
        streamed: Some(Kind::Node),
        name_parts: &["cluster", "name"],
        namespaced: false,
        labelled: true,
        shape: &NODES,
    },
    KindRow {
        names: &["services", "service", "svc"],
        streamed: Some(Kind::Service),
        name_parts: &["cluster", "namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: &SERVICES,
    },
    KindRow {
        names: &["global-services", "global-service", "gsvc"],
        streamed: None,
        name_parts: &["namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: &GLOBAL_SERVICES,
    },
    KindRow {
        names: &["identities", "identity", "id"],
        streamed: Some(Kind::Identity),
        name_parts: &["id"],
        namespaced: false,
        labelled: true,
        shape: &IDENTITIES,
    },
    KindRow {
        names: &["ipcache", "ip", "ips"],
        streamed: Some(Kind::Ip),
        name_parts: &["prefix"],
        namespaced: true,
        labelled: false,
        shape: &IPCACHE,
    },
    KindRow {
        names: &["service-exports", "service-export", "serviceexports"],
        streamed: Some(Kind::ServiceExport),
        name_parts: &["cluster", "namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: &SERVICE_EXPORTS,
    },
    KindRow {
        names: &["endpoint-slices", "endpoint-slice", "endpointslices", "eps"],
        streamed: Some(Kind::EndpointSlice),
        name_parts: &["cluster", "namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: &ENDPOINT_SLICES,
    },
    KindRow {
        names: &["clusters", "cluster"],
        streamed: Some(Kind::Cluster),
        name_parts: &["name"],
        namespaced: false,
        labelled: false,
        shape: &CLUSTERS,
    },
];

const NODES: TableShape<Node> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |node| node.cluster.clone()),
        TableColumn::new("NAME", |node| node.name.clone()),
        TableColumn::new("ADDRESSES", |node| joined(node.addresses.iter().map(|address| &address.ip))),
        TableColumn::new("POD CIDR", |node| joined(node.ipv4_pod_cidr.iter().chain(&node.ipv6_pod_cidr).chain(&node.secondary_pod_cidrs))),
        TableColumn::age(|node, time| change_age(&node.change, time)),
        TableColumn::wide("HEALTH", |node| joined(&node.health_ips)),
        TableColumn::wide("INGRESS", |node| joined(&node.ingress_ips)),
        TableColumn::wide("KEY", |node| number(node.encryption_key)),
        TableColumn::wide("LABELS", |node| labels(&node.labels)),
    ],
    name: |node| format!("node/{}/{}", node.cluster, node.name),
};

const SERVICES: TableShape<Service> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |service| service.cluster.clone()),
        TableColumn::new("NAMESPACE", |service| service.namespace.clone()),
        TableColumn::new("NAME", |service| service.name.clone()),
        TableColumn::new("FRONTENDS", |service| joined(service.frontends.iter().map(|frontend| &frontend.ip))),
        TableColumn::new("BACKENDS", |service| service.backends.len().to_string()),
        TableColumn::new("SHARED", |service| service.shared.to_string()),
        TableColumn::age(|service, time| change_age(&service.change, time)),
        TableColumn::wide("BACKEND IPS", |service| joined(service.backends.iter().map(|backend| &backend.ip))),
        TableColumn::wide("SELECTOR", |service| labels(&service.selector)),
        TableColumn::wide("LABELS", |service| labels(&service.labels)),
    ],
    name: |service| format!("service/{}/{}/{}", service.cluster, service.namespace, service.name),
};

const GLOBAL_SERVICES: TableShape<GlobalService> = TableShape {
    columns: &[
        TableColumn::new("NAMESPACE", |service| service.namespace.clone()),
        TableColumn::new("NAME", |service| service.name.clone()),
        TableColumn::new("CLUSTERS", |service| joined(service.clusters.iter().map(|share| &share.cluster))),
        TableColumn::new("BACKENDS", backends),
        TableColumn::age(|service, time| change_age(&last_of(service.clusters.iter().map(|share| &share.change)), time)),
        TableColumn::wide("BACKEND IPS", |service| joined(service.backends.iter().map(|backend| &backend.ip))),
        TableColumn::wide("CONFLICTS", |service| joined(service.conflicts.iter().map(|conflict| conflict.reason.name()))),
    ],
    name: |service| format!("global-service/{}/{}", service.namespace, service.name),
};

/// Returns the number of backends of a global service, or why they are not in the answer.
fn backends(service: &GlobalService) -> String {
    let Some(TooLarge { cluster, bytes, .. }) = &service.too_large else { return service.backends.len().to_string() };
    coloured(&format!("too large: {} MiB decoded, mostly {cluster}", bytes >> 20), Colour::Red)
}

const IDENTITIES: TableShape<Identity> = TableShape {
    columns: &[
        TableColumn::new("ID", |identity| identity.id.to_string()),
        TableColumn::new("CLUSTER", |identity| text(identity.cluster.as_ref())),
        TableColumn::wide("SCOPE", |identity| identity.scope.to_string()),
        TableColumn::new("LABELS", |identity| {
            identity.reserved.as_ref().map_or_else(|| labels(identity.labels.0.iter()), |name| format!("reserved:{name}"))
        }),
        TableColumn::age(|identity, time| change_age(&identity.change, time)),
    ],
    name: |identity| format!("identity/{}", identity.id),
};

const IPCACHE: TableShape<IpcacheEntry> = TableShape {
    columns: &[
        TableColumn::new("PREFIX", |entry| entry.prefix.clone()),
        TableColumn::new("CLUSTER", |entry| entry.cluster.clone()),
        TableColumn::new("IDENTITY", |entry| entry.identity.to_string()),
        TableColumn::new("HOST", |entry| text(entry.host_ip.as_ref())),
        TableColumn::new("OWNER", owner),
        TableColumn::age(|entry, time| change_age(&entry.change, time)),
        TableColumn::wide("KEY", |entry| number(entry.encryption_key)),
        TableColumn::wide("SOURCE", |entry| entry.source.to_string()),
        TableColumn::wide("SERVICE ACCOUNT", |entry| text(entry.service_account.as_ref())),
        TableColumn::wide("LABELS", identity_labels),
    ],
    name: |entry| format!("ipcache/{}/{}", entry.cluster, entry.prefix),
};

/// Returns the pod behind an ipcache entry, or the node that the entry was derived from.
pub(in crate::cli) fn owner(entry: &IpcacheEntry) -> String {
    match (&entry.pod_name, &entry.node_name) {
        (Some(pod), _) => format!("{}/{pod}", text(entry.namespace.as_ref())),
        (None, Some(node)) if entry.source == EntrySource::Node => format!("node {node}"),
        (None, _) => String::new(),
    }
}

/// Returns the labels of the identity behind an ipcache entry. Only lookups have them.
pub(super) fn identity_labels(entry: &IpcacheEntry) -> String {
    entry.labels.as_ref().map(|known| labels(known.0.iter())).unwrap_or_default()
}

const SERVICE_EXPORTS: TableShape<ServiceExport> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |export| export.cluster.clone()),
        TableColumn::new("NAMESPACE", |export| export.namespace.clone()),
        TableColumn::new("NAME", |export| export.name.clone()),
        TableColumn::new("TYPE", |export| export.service_type.clone()),
        TableColumn::new("EXPORTED", |export| export.export_creation_timestamp.clone()),
        TableColumn::age(|export, time| change_age(&export.change, time)),
        TableColumn::wide("LABELS", |export| labels(&export.labels)),
    ],
    name: |export| format!("service-export/{}/{}/{}", export.cluster, export.namespace, export.name),
};

const ENDPOINT_SLICES: TableShape<EndpointSlice> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |slice| slice.cluster.clone()),
        TableColumn::new("NAMESPACE", |slice| slice.namespace.clone()),
        TableColumn::new("NAME", |slice| slice.name.clone()),
        TableColumn::new("TYPE", |slice| slice.address_type.clone()),
        TableColumn::new("ENDPOINTS", |slice| slice.endpoints.len().to_string()),
        TableColumn::age(|slice, time| change_age(&slice.change, time)),
        TableColumn::wide("LABELS", |slice| labels(&slice.labels)),
    ],
    name: |slice| format!("endpoint-slice/{}/{}/{}", slice.cluster, slice.namespace, slice.name),
};

pub(super) const CLUSTERS: TableShape<Cluster> = TableShape {
    columns: &[
        TableColumn::new(
            "NAME",
            |cluster| if cluster.local == Some(true) { format!("{} (local)", cluster.name) } else { cluster.name.clone() },
        ),
        TableColumn::new("ID", |cluster| text(cluster.cluster_id.as_ref())),
        TableColumn::new("PHASE", phase),
        TableColumn::new("FOR", |cluster| age_of(cluster.phase_seconds)),
        TableColumn::new("SOURCE-AGE", source_age),
        TableColumn::new("NODES", |cluster| entries(cluster, Kind::Node)),
        TableColumn::new("SVCS", |cluster| entries(cluster, Kind::Service)),
        TableColumn::new("IDS", |cluster| entries(cluster, Kind::Identity)),
        TableColumn::new("IPS", |cluster| entries(cluster, Kind::Ip)),
        TableColumn::wide("EXPORTS", |cluster| entries(cluster, Kind::ServiceExport)),
        TableColumn::wide("SLICES", |cluster| entries(cluster, Kind::EndpointSlice)),
        TableColumn::wide("FAILURES", |cluster| cluster.failures.to_string()),
        TableColumn::wide("CERTIFICATE UNTIL", |cluster| text(cluster.certificate_expiry.as_ref())),
        TableColumn::wide("ENDPOINT", |cluster| text(cluster.endpoint.as_ref())),
        TableColumn::below("LAST ERROR", last_error),
    ],
    name: |cluster| format!("cluster/{}", cluster.name),
};

/// Returns the phase of a cluster, coloured by its health.
fn phase(cluster: &Cluster) -> String {
    if cluster.phase.is_none() && cluster.origin == Origin::Dump {
        return Origin::Dump.to_string();
    }
    coloured(cluster.phase.as_ref().map_or("noFile", Open::name), phase_colour(cluster))
}

/// Returns the colour of a cluster's phase.
pub(super) fn phase_colour(cluster: &Cluster) -> Colour {
    match cluster.phase.as_ref().map(Open::known) {
        Some(Some(Phase::Live)) => Colour::Green,
        None | Some(Some(Phase::SourceLost | Phase::BackingOff | Phase::WaitingForFiles)) => Colour::Red,
        Some(_) => Colour::Yellow,
    }
}

/// Returns whether the data of a cluster is too old to be trusted, whatever its phase. A dump is
/// always old.
pub(super) fn is_stale(cluster: &Cluster) -> bool {
    cluster.origin != Origin::Dump && cluster.age_seconds.is_some_and(|age| age >= STALE_SECONDS)
}

/// Returns the age of a cluster's data, coloured if it is stale.
fn source_age(cluster: &Cluster) -> String {
    let age = age_of(cluster.age_seconds);
    if is_stale(cluster) { coloured(&age, Colour::Yellow) } else { age }
}

/// Returns why a cluster is not live, how far its lists are, and when meshkeep tries again.
fn last_error(cluster: &Cluster) -> String {
    let error = cluster.last_error.clone().filter(|_| cluster.phase != Some(Phase::Live.into()));
    let retry = cluster.next_retry_seconds.map(|seconds| format!("next attempt in {}", age(seconds)));
    [error, list_progress(cluster), retry].into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the progress of a cluster's lists, if the source reports how many keys it has. Restored
/// entries do not count before the list confirms them.
pub(super) fn list_progress(cluster: &Cluster) -> Option<String> {
    let reported = || cluster.resources.iter().filter_map(|resource| Some((resource, resource.expected?)));
    let expected: u64 = reported().map(|(_, expected)| expected).sum();
    let entries: u64 = reported().map(|(resource, _)| resource.entries.saturating_sub(resource.restored)).sum();
    (cluster.phase == Some(Phase::Listing.into()) && expected > 0).then(|| format!("{entries} of {expected} entries"))
}

/// Returns the number of keys of a kind in a cluster.
fn entries(cluster: &Cluster, kind: Kind) -> String {
    let found: Option<&Resource> = cluster.resources.iter().find(|resource| resource.kind == kind);
    text(found.map(|resource| &resource.entries))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::terminal::layout::TableStyle;
    use crate::model::without_colours;

    #[test]
    fn the_progress_of_lists_is_that_of_the_reported_kinds() {
        let cluster = |expected: Value| {
            let nodes = json!({"kind": "node", "entries": 80, "restored": 30, "synced": false, "expected": expected, "origin": "restored"});
            let services = json!({"kind": "service", "entries": 250, "restored": 250, "synced": false, "origin": "restored"});
            let cluster = json!({"name": "paris", "phase": "listing", "origin": "restored", "configRetrieved": true, "failures": 0,
                "resources": [nodes, services]});
            serde_json::from_value::<Cluster>(cluster).unwrap()
        };
        assert_eq!(list_progress(&cluster(json!(100))).as_deref(), Some("50 of 100 entries"));
        assert_eq!(list_progress(&cluster(Value::Null)), None);
    }

    /// The examples of the OpenAPI document are answers of a real server about a fixed sample mesh.
    /// Only the ages differ between runs.
    #[test]
    fn tables_and_names_match_the_answers() {
        let examples: Value = serde_json::from_str(include_str!("../../api/openapi/examples.json")).unwrap();
        let cases = [
            ("no", "Node", "node/paris/paris-worker-1", "paris paris-worker-1 172.18.1.1,fc00:c111:1::1 10.1.1.0/24,fd00:10:1:1::/64"),
            ("svc", "Service", "service/paris/shop/cart", "paris shop cart 10.96.1.10 2 true"),
            ("gsvc", "GlobalService", "global-service/shop/cart", "shop cart paris,tokyo 2"),
            ("id", "Identity", "identity/131331", "131331 tokyo k8s:app=cart,k8s:io.cilium."),
            ("ip", "IpcacheEntry", "ipcache/tokyo/10.2.1.21/32", "10.2.1.21/32 tokyo 131331 172.18.2.1 shop/cart-55f4b-qwert"),
            ("service-export", "ServiceExport", "service-export/paris/shop/cart", "paris shop cart ClusterSetIP 2026-01-01T00:00:00Z"),
            ("eps", "EndpointSlice", "endpoint-slice/tokyo/shop/cart-kvlm2", "tokyo shop cart-kvlm2 IPv4 2"),
            ("clusters", "Cluster", "cluster/paris", "paris 1 live "),
        ];
        assert_eq!(cases.len(), KINDS.len());
        for (kind, schema, name, expected) in cases {
            let (shape, example) = (KindRow::by_name(kind).unwrap().shape, &examples["schemas"][schema]);
            assert_eq!(shape.name(example).unwrap(), name);
            let style = TableStyle { wide: false, has_headings: true, width: None };
            let table = shape.table(std::slice::from_ref(example), style, jiff::Timestamp::now()).unwrap();
            let table = without_colours(&table);
            let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
            assert!(row.join(" ").starts_with(expected), "{table}");
        }
    }
}

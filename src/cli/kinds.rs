//! What the command line knows of each kind: its names, its path, and the columns of its table. A new kind is one more row.

use serde_json::Value;

use super::output::{Colour, Column, Shape, age_at, coloured, text};

/// A kind that can be asked for.
pub(super) struct KindRow {
    /// What people type; the first is the plural that the API has in its paths.
    pub(super) names: &'static [&'static str],
    /// What the change stream calls it; `None` where it is not in the stream.
    pub(super) stream_name: Option<&'static str>,
    /// The parts of a full name, from left to right.
    pub(super) name_parts: &'static [&'static str],
    /// Whether `-n` means something.
    pub(super) namespaced: bool,
    /// Whether `-l` means something.
    pub(super) labelled: bool,
    pub(super) shape: Shape,
}

impl KindRow {
    /// The row of a kind, by any of its names.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.names.contains(&name))
    }

    /// The path of the list.
    pub(super) fn path(&self) -> String {
        format!("/v1/{}", self.names[0])
    }
}

fn name_of(item: &Value) -> String {
    text(item, "/name")
}

fn cluster_of(item: &Value) -> String {
    text(item, "/cluster")
}

fn namespace_of(item: &Value) -> String {
    text(item, "/namespace")
}

fn labels_of(item: &Value) -> String {
    text(item, "/labels")
}

/// One member of each object of a list, joined by commas.
fn each(item: &Value, list: &str, member: &str) -> String {
    let values = item.pointer(list).and_then(Value::as_array);
    values.into_iter().flatten().map(|value| text(value, member)).collect::<Vec<_>>().join(",")
}

fn count(item: &Value, list: &str) -> String {
    item.pointer(list).and_then(Value::as_array).map_or(0, Vec::len).to_string()
}

/// The phase of a cluster, coloured by how well it is.
fn phase_of(item: &Value) -> String {
    let phase = text(item, "/phase");
    let colour = match phase.as_str() {
        "live" => Colour::Green,
        "sourceLost" | "backingOff" | "waitingForFiles" | "" => Colour::Red,
        _ => Colour::Yellow,
    };
    coloured(if phase.is_empty() { "noFile" } else { &phase }, colour)
}

/// How many keys of a kind a cluster has.
fn entries(item: &Value, kind: &str) -> String {
    let resources = item.pointer("/resources").and_then(Value::as_array);
    let found = resources.into_iter().flatten().find(|resource| text(resource, "/kind") == kind);
    found.map(|resource| text(resource, "/entries")).unwrap_or_default()
}

/// Every kind, in the order of the API.
pub(super) static KINDS: &[KindRow] = &[
    KindRow {
        names: &["nodes", "node", "no"],
        stream_name: Some("node"),
        name_parts: &["cluster", "name"],
        namespaced: false,
        labelled: true,
        shape: Shape {
            columns: &[
                Column::new("CLUSTER", cluster_of),
                Column::new("NAME", name_of),
                Column::new("ADDRESSES", |item| each(item, "/addresses", "/ip")),
                Column::new("POD CIDR", |item| {
                    let parts = ["/ipv4PodCIDR", "/ipv6PodCIDR", "/secondaryPodCIDRs"].map(|place| text(item, place));
                    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",")
                }),
                Column::wide("HEALTH", |item| text(item, "/healthIPs")),
                Column::wide("INGRESS", |item| text(item, "/ingressIPs")),
                Column::wide("KEY", |item| text(item, "/encryptionKey")),
                Column::wide("LABELS", labels_of),
            ],
            name: |item| format!("node/{}/{}", cluster_of(item), name_of(item)),
        },
    },
    KindRow {
        names: &["services", "service", "svc"],
        stream_name: Some("service"),
        name_parts: &["cluster", "namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: Shape {
            columns: &[
                Column::new("CLUSTER", cluster_of),
                Column::new("NAMESPACE", namespace_of),
                Column::new("NAME", name_of),
                Column::new("FRONTENDS", |item| each(item, "/frontends", "/ip")),
                Column::new("BACKENDS", |item| count(item, "/backends")),
                Column::new("SHARED", |item| text(item, "/shared")),
                Column::wide("BACKEND IPS", |item| each(item, "/backends", "/ip")),
                Column::wide("SELECTOR", |item| text(item, "/selector")),
                Column::wide("LABELS", labels_of),
            ],
            name: |item| format!("service/{}/{}/{}", cluster_of(item), namespace_of(item), name_of(item)),
        },
    },
    KindRow {
        names: &["global-services", "global-service", "gsvc"],
        stream_name: None,
        name_parts: &["namespace", "name"],
        namespaced: true,
        labelled: false,
        shape: Shape {
            columns: &[
                Column::new("NAMESPACE", namespace_of),
                Column::new("NAME", name_of),
                Column::new("CLUSTERS", |item| each(item, "/clusters", "/cluster")),
                Column::new("BACKENDS", |item| count(item, "/backends")),
                Column::wide("BACKEND IPS", |item| each(item, "/backends", "/ip")),
            ],
            name: |item| format!("global-service/{}/{}", namespace_of(item), name_of(item)),
        },
    },
    KindRow {
        names: &["identities", "identity", "id"],
        stream_name: Some("identity"),
        name_parts: &["id"],
        namespaced: false,
        labelled: true,
        shape: Shape {
            columns: &[
                Column::new("ID", |item| text(item, "/id")),
                Column::new("CLUSTER", cluster_of),
                Column::wide("SCOPE", |item| text(item, "/scope")),
                Column::new("LABELS", |item| {
                    let reserved = text(item, "/reserved");
                    if reserved.is_empty() { labels_of(item) } else { format!("reserved:{reserved}") }
                }),
            ],
            name: |item| format!("identity/{}", text(item, "/id")),
        },
    },
    KindRow {
        names: &["ipcache", "ip", "ips"],
        stream_name: Some("ipcache"),
        name_parts: &["prefix"],
        namespaced: true,
        labelled: false,
        shape: Shape { columns: IPCACHE_COLUMNS, name: |item| format!("ipcache/{}/{}", cluster_of(item), text(item, "/prefix")) },
    },
    KindRow {
        names: &["service-exports", "service-export", "serviceexports"],
        stream_name: Some("serviceExport"),
        name_parts: &["cluster", "namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: Shape {
            columns: &[
                Column::new("CLUSTER", cluster_of),
                Column::new("NAMESPACE", namespace_of),
                Column::new("NAME", name_of),
                Column::new("TYPE", |item| text(item, "/type")),
                Column::new("EXPORTED", |item| text(item, "/exportCreationTimestamp")),
                Column::wide("LABELS", labels_of),
            ],
            name: |item| format!("service-export/{}/{}/{}", cluster_of(item), namespace_of(item), name_of(item)),
        },
    },
    KindRow {
        names: &["endpoint-slices", "endpoint-slice", "endpointslices", "eps"],
        stream_name: Some("endpointSlice"),
        name_parts: &["cluster", "namespace", "name"],
        namespaced: true,
        labelled: true,
        shape: Shape {
            columns: &[
                Column::new("CLUSTER", cluster_of),
                Column::new("NAMESPACE", namespace_of),
                Column::new("NAME", name_of),
                Column::new("TYPE", |item| text(item, "/addressType")),
                Column::new("ENDPOINTS", |item| count(item, "/endpoints")),
                Column::wide("LABELS", labels_of),
            ],
            name: |item| format!("endpoint-slice/{}/{}/{}", cluster_of(item), namespace_of(item), name_of(item)),
        },
    },
    KindRow {
        names: &["clusters", "cluster"],
        stream_name: Some("cluster"),
        name_parts: &["name"],
        namespaced: false,
        labelled: false,
        shape: Shape { columns: CLUSTER_COLUMNS, name: |item| format!("cluster/{}", name_of(item)) },
    },
];

/// The columns of ipcache entries, of lists and lookups alike.
pub(super) const IPCACHE_COLUMNS: &[Column] = &[
    Column::new("PREFIX", |item| text(item, "/prefix")),
    Column::new("CLUSTER", cluster_of),
    Column::new("IDENTITY", |item| text(item, "/identity")),
    Column::new("HOST", |item| text(item, "/hostIP")),
    Column::new("OWNER", owner),
    Column::wide("KEY", |item| text(item, "/encryptionKey")),
    Column::wide("SOURCE", |item| text(item, "/source")),
    Column::wide("SERVICE ACCOUNT", |item| text(item, "/serviceAccount")),
    Column::wide("LABELS", labels_of),
];

/// The pod behind an ipcache entry, or the node that it was derived from.
pub(super) fn owner(item: &Value) -> String {
    let (namespace, pod) = (namespace_of(item), text(item, "/podName"));
    match (pod.is_empty(), text(item, "/nodeName")) {
        (false, _) => format!("{namespace}/{pod}"),
        (true, node) if text(item, "/source") == "node" => format!("node {node}"),
        (true, _) => String::new(),
    }
}

/// The columns of clusters.
pub(super) const CLUSTER_COLUMNS: &[Column] = &[
    Column::new("NAME", |item| {
        let local = item.pointer("/local").and_then(Value::as_bool).unwrap_or(false);
        if local { format!("{} (local)", name_of(item)) } else { name_of(item) }
    }),
    Column::new("ID", |item| text(item, "/clusterID")),
    Column::new("PHASE", phase_of),
    Column::new("FOR", |item| age_at(item, "/phaseSeconds")),
    Column::new("AGE", |item| age_at(item, "/ageSeconds")),
    Column::new("NODES", |item| entries(item, "node")),
    Column::new("SERVICES", |item| entries(item, "service")),
    Column::new("IDENTITIES", |item| entries(item, "identity")),
    Column::new("IPS", |item| entries(item, "ipcache")),
    Column::wide("EXPORTS", |item| entries(item, "serviceExport")),
    Column::wide("SLICES", |item| entries(item, "endpointSlice")),
    Column::wide("FAILURES", |item| text(item, "/failures")),
    Column::wide("CERTIFICATE UNTIL", |item| text(item, "/certificateExpiry")),
    Column::wide("ENDPOINT", |item| text(item, "/endpoint")),
    Column::new("LAST ERROR", |item| if text(item, "/phase") == "live" { String::new() } else { text(item, "/lastError") }),
];

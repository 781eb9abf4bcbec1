//! Suggestions for mistyped paths.

use crate::model::suggest_word;

/// Resources below `/v1`.
const RESOURCES: [&str; 16] = [
    "status",
    "config",
    "clusters",
    "nodes",
    "services",
    "global-services",
    "service-exports",
    "endpoint-slices",
    "identities",
    "ipcache",
    "explain",
    "entries",
    "rejected",
    "problems",
    "events",
    "changes",
];

/// Paths outside `/v1`.
const OTHER_PATHS: [&str; 7] = ["livez", "readyz", "healthz", "metrics", "openapi.json", "openapi-3.0.json", "docs"];

/// Resource names of other APIs, each with the name of the similar resource of meshkeep.
const ALIASES: [(&str, &str); 10] = [
    ("identity", "identities"),
    ("live", "livez"),
    ("ready", "readyz"),
    ("health", "healthz"),
    ("watch", "events"),
    ("stream", "events"),
    ("ips", "ipcache"),
    ("endpoints", "endpoint-slices"),
    ("swagger.json", "openapi.json"),
    ("swagger", "openapi.json"),
];

/// Returns the existing path that the client probably meant by `path`.
pub(crate) fn suggest_path(path: &str) -> Option<String> {
    // other characters would have to be encoded differently in a query
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-._~%:/".contains(letter);
    let mut segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    if !path.chars().all(is_plain) || segments.is_empty() {
        return None;
    }
    if segments.first() == Some(&"api") {
        segments.remove(0);
    }
    if segments.first().is_some_and(|first| first.strip_prefix('v').is_some_and(|version| version.parse::<u8>().is_ok())) {
        segments.remove(0);
    }
    let Some((first, rest)) = segments.split_first() else { return Some("/v1/status".to_owned()) };
    let name = ALIASES.iter().find(|(other, _)| other == first).map(|(_, resource)| *resource);
    let name = name.or_else(|| suggest_word(first, RESOURCES.into_iter().chain(OTHER_PATHS)))?;
    let suggestion = if OTHER_PATHS.contains(&name) { format!("/{name}") } else { path_below(name, rest) };
    (suggestion != path).then_some(suggestion)
}

/// Returns the existing path that is closest to the segments `rest` below a resource.
fn path_below(name: &str, rest: &[&str]) -> String {
    match (name, rest) {
        ("nodes", [cluster]) => format!("/v1/nodes?cluster={cluster}"),
        ("nodes", [cluster, node, ..]) => format!("/v1/nodes/{cluster}/{node}"),
        ("services" | "service-exports" | "endpoint-slices", [cluster]) => format!("/v1/{name}?cluster={cluster}"),
        ("services" | "service-exports" | "endpoint-slices", [cluster, namespace]) => {
            format!("/v1/{name}?cluster={cluster}&namespace={namespace}")
        }
        ("services" | "service-exports" | "endpoint-slices", [cluster, namespace, service, ..]) => {
            format!("/v1/{name}/{cluster}/{namespace}/{service}")
        }
        ("global-services", [namespace]) => format!("/v1/global-services?namespace={namespace}"),
        ("global-services", [namespace, service, ..]) => format!("/v1/global-services/{namespace}/{service}"),
        ("clusters", [cluster, ..]) => format!("/v1/clusters/{cluster}"),
        ("identities", [id]) => format!("/v1/identities/{id}"),
        ("identities", [id, ..]) => format!("/v1/identities/{id}/ips"),
        ("explain", []) => "/v1/explain/10.1.2.40".to_owned(),
        ("ipcache" | "entries" | "explain", [_, ..]) => format!("/v1/{name}/{}", rest.join("/")),
        (_, _) => format!("/v1/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_path_gets_a_suggestion() {
        for (path, expected) in [
            ("/v1/nodes/paris", Some("/v1/nodes?cluster=paris")),
            ("/v1/nodes/", Some("/v1/nodes")),
            ("/v1/node/paris/worker-1", Some("/v1/nodes/paris/worker-1")),
            ("/nodes", Some("/v1/nodes")),
            ("/api/v1/nodes", Some("/v1/nodes")),
            ("/v2/nodes", Some("/v1/nodes")),
            ("/v1", Some("/v1/status")),
            ("/v1/services/paris/shop", Some("/v1/services?cluster=paris&namespace=shop")),
            ("/v1/globalservices/shop/cart", Some("/v1/global-services/shop/cart")),
            ("/v1/global-services/shop", Some("/v1/global-services?namespace=shop")),
            ("/v1/identity/68352", Some("/v1/identities/68352")),
            ("/v1/identities/68352/pods", Some("/v1/identities/68352/ips")),
            ("/v1/explain", Some("/v1/explain/10.1.2.40")),
            ("/v1/ipcaches/10.0.0.0/24", Some("/v1/ipcache/10.0.0.0/24")),
            ("/health", Some("/healthz")),
            ("/metrics/", Some("/metrics")),
            ("/v1/watch", Some("/v1/events")),
            ("/v1/nothing", None),
            ("/favicon.ico", None),
            ("/v1/nodes/a&b", None),
            ("//", None),
        ] {
            assert_eq!(suggest_path(path).as_deref(), expected, "{path}");
        }
    }
}

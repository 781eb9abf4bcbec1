//! Expected state, computed from the bytes that were put, and the state that is served.
//!
//! This module uses no code of the crate. It is a second, slower implementation of Cilium's formats
//! (docs/develop/protocol.md §2), so that it does not repeat a mistake of `wire`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

mod derived;

use self::derived::derived_entries;
use super::mesh::MeshCluster;
use super::meshkeep::{Meshkeep, http};
use super::slices;

/// Objects by key in cache form, reduced to the fields that docs/use/api/objects.md lists.
pub(crate) type Objects = BTreeMap<String, Value>;

/// Maximum number of differences in a message.
const DIFFERENCES_SHOWN: usize = 8;

/// Number of items per page that the harness requests: so small that a list of a whole mesh has
/// several pages.
const PAGE_ITEMS: u32 = 300;

/// Kinds with their list endpoint and the fields that docs/use/api/objects.md lists for them.
const KINDS: [(&str, &str, &[&str]); 6] = [
    (
        "node",
        "/v1/nodes",
        &[
            "name",
            "cluster",
            "clusterID",
            "addresses",
            "ipv4PodCIDR",
            "ipv6PodCIDR",
            "secondaryPodCIDRs",
            "healthIPs",
            "ingressIPs",
            "encryptionKey",
            "wireguardPublicKey",
            "labels",
            "annotations",
            "bootID",
        ],
    ),
    (
        "service",
        "/v1/services",
        &["cluster", "clusterID", "namespace", "name", "frontends", "backends", "labels", "selector", "shared", "includeExternal"],
    ),
    ("identity", "/v1/identities", &["id", "cluster", "clusterID", "labels"]),
    (
        "ipcache",
        "/v1/ipcache",
        &[
            "prefix",
            "host",
            "cluster",
            "identity",
            "hostIP",
            "encryptionKey",
            "namespace",
            "podName",
            "podUID",
            "serviceAccount",
            "namedPorts",
            "source",
            "nodeName",
        ],
    ),
    (
        "serviceExport",
        "/v1/service-exports",
        &[
            "cluster",
            "namespace",
            "name",
            "exportCreationTimestamp",
            "type",
            "ports",
            "sessionAffinity",
            "sessionAffinityTimeoutSeconds",
            "ipFamilies",
            "labels",
            "annotations",
        ],
    ),
    (
        "endpointSlice",
        "/v1/endpoint-slices",
        &["cluster", "clusterID", "namespace", "name", "addressType", "endpoints", "ports", "labels", "annotations"],
    ),
];

/// Expected state of the mirror.
#[derive(Debug, Clone, Default)]
pub(crate) struct Truth {
    entries: BTreeMap<String, TruthEntry>,
    cluster_ids: BTreeMap<String, u32>,
}

/// Newest bytes of a key, and its last valid bytes.
#[derive(Debug, Clone)]
struct TruthEntry {
    newest: Vec<u8>,
    last_valid: Option<Vec<u8>>,
}

/// Returns the number of added or changed objects and the number of deleted ones.
pub(crate) fn changes_between(before: &Objects, after: &Objects) -> (usize, usize) {
    let upserted = after.iter().filter(|(key, object)| before.get(*key) != Some(*object)).count();
    (upserted, before.keys().filter(|key| !after.contains_key(*key)).count())
}

/// State that is served, or that a follower of the stream has.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Served {
    pub(crate) objects: Objects,
    pub(crate) raw: BTreeMap<String, Vec<u8>>,
}

impl Truth {
    /// Creates the expected state of these clusters.
    pub(crate) fn from_clusters<'a>(clusters: impl IntoIterator<Item = &'a MeshCluster>) -> Self {
        let mut truth = Self::default();
        for cluster in clusters {
            truth.cluster_ids.insert(cluster.name.clone(), cluster.id);
            for (key, value) in &cluster.entries {
                truth.put(key, value.clone());
            }
        }
        truth
    }

    /// Sets the `clusterID` that the identities of a cluster are expected to have.
    pub(crate) fn set_cluster_id(&mut self, name: &str, id: u32) {
        self.cluster_ids.insert(name.into(), id);
    }

    /// Puts a valid value.
    pub(crate) fn put(&mut self, key: &str, value: Vec<u8>) {
        self.entries.insert(key.into(), TruthEntry { newest: value.clone(), last_valid: Some(value) });
    }

    /// Puts an invalid value. The last valid one stays.
    pub(crate) fn put_bad(&mut self, key: &str, value: Vec<u8>) {
        let last_valid = self.entries.get(key).and_then(|entry| entry.last_valid.clone());
        self.entries.insert(key.into(), TruthEntry { newest: value, last_valid });
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the state that should be served.
    pub(crate) fn expected(&self) -> Served {
        let mut expected = Served::default();
        for (key, entry) in &self.entries {
            if let Some(last_valid) = &entry.last_valid {
                expected.objects.insert(key.clone(), self.object(key, last_valid));
                expected.objects.extend(derived_entries(key, last_valid));
            }
            expected.raw.insert(key.clone(), entry.newest.clone());
        }
        expected
    }

    fn object(&self, key: &str, value: &[u8]) -> Value {
        let parts: Vec<&str> = key.strip_prefix("cilium/cache/").expect("must be in cache form").splitn(4, '/').collect();
        let (kind, cluster, rest) = (parts[0], parts[2], parts[3]);
        let object = match kind {
            "identities" => identity(cluster, self.cluster_ids[cluster], rest.trim_start_matches("id/"), value),
            "ip" => ip_entry(cluster, &parse(key, value)),
            "nodes" => node(&parse(key, value)),
            "services" => service(&parse(key, value)),
            "serviceexports" => export(&parse(key, value)),
            "endpointslices" => slices::decode_slice(value),
            other => panic!("no such kind: {other}"),
        };
        without_unset(object)
    }
}

fn parse(key: &str, value: &[u8]) -> Value {
    serde_json::from_slice(value).unwrap_or_else(|e| panic!("the test's own value at {key} is not JSON: {e}"))
}

fn identity(cluster: &str, cluster_id: u32, id: &str, value: &[u8]) -> Value {
    let text = std::str::from_utf8(value).unwrap();
    let mut labels = Map::new();
    for label in text.split(';').filter(|label| !label.is_empty()) {
        let (source, rest) = label.split_once(':').unwrap();
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        labels.insert(format!("{source}:{key}"), value.into());
    }
    json!({"id": id.parse::<u32>().unwrap(), "cluster": cluster, "clusterID": cluster_id, "labels": labels})
}

fn ip_entry(cluster: &str, value: &Value) -> Value {
    let ip = address(&value["IP"]).unwrap();
    let length = mask_length(&value["Mask"]);
    let full = if ip.is_ipv4() { 32 } else { 128 };
    // the host of a remote cluster is a remote node for all other clusters
    // (docs/develop/protocol.md §4.3)
    let identity = if value["ID"] == 1 { 6.into() } else { value["ID"].clone() };
    let port = |port: &Value| json!({"name": port["Name"], "port": port["Port"], "protocol": port["Protocol"]});
    json!({
        "prefix": format!("{ip}/{}", length.unwrap_or(full)),
        "host": length.is_none(),
        "cluster": cluster,
        "identity": identity,
        "hostIP": address(&value["HostIP"]).map(|ip| ip.to_string()),
        "encryptionKey": value["Key"],
        "namespace": value["K8sNamespace"],
        "podName": value["K8sPodName"],
        "podUID": value["K8sPodUID"],
        "serviceAccount": value["K8sServiceAccount"],
        "namedPorts": items(&value["NamedPorts"]).map(port).collect::<Vec<_>>(),
        "source": "clustermesh",
    })
}

fn node(value: &Value) -> Value {
    let addresses = items(&value["IPAddresses"])
        .map(|item| json!({"type": item["Type"], "ip": address(&item["IP"]).unwrap().to_string()}))
        .collect::<Vec<_>>();
    let pair = |ipv4: &str, ipv6: &str| -> Vec<String> {
        [ipv4, ipv6].into_iter().filter_map(|field| address(&value[field])).map(|ip| ip.to_string()).collect()
    };
    let secondary = items(&value["IPv4SecondaryAllocCIDRs"]).chain(items(&value["IPv6SecondaryAllocCIDRs"])).map(prefix);
    json!({
        "name": value["Name"],
        "cluster": value["Cluster"],
        "clusterID": value["ClusterID"],
        "addresses": addresses,
        "ipv4PodCIDR": prefix(&value["IPv4AllocCIDR"]),
        "ipv6PodCIDR": prefix(&value["IPv6AllocCIDR"]),
        "secondaryPodCIDRs": secondary.collect::<Vec<_>>(),
        "healthIPs": pair("IPv4HealthIP", "IPv6HealthIP"),
        "ingressIPs": pair("IPv4IngressIP", "IPv6IngressIP"),
        "encryptionKey": value["EncryptionKey"],
        "wireguardPublicKey": value["WireguardPubKey"],
        "labels": value["Labels"],
        "annotations": value["Annotations"],
        "bootID": value["BootID"],
    })
}

fn service(value: &Value) -> Value {
    let ports = |ports: &Value| -> Vec<Value> {
        let ports: BTreeMap<&String, &Value> = ports.as_object().into_iter().flatten().collect();
        ports.into_iter().map(|(name, port)| json!({"name": name, "protocol": port["Protocol"], "port": port["Port"]})).collect()
    };
    let by_address = |field: &str| -> BTreeMap<IpAddr, (String, Value)> {
        let entries = value[field].as_object().into_iter().flatten();
        entries.map(|(ip, ports)| (ip.parse().unwrap(), (ip.clone(), ports.clone()))).collect()
    };
    let frontends = by_address("frontends").into_iter().map(|(ip, (_, port_map))| json!({"ip": ip, "ports": ports(&port_map)}));
    let backends = by_address("backends").into_iter().map(|(ip, (text, port_map))| {
        json!({"ip": ip, "ports": ports(&port_map), "hostname": value["hostnames"][&text], "zone": value["zones"][&text]["zone"]})
    });
    json!({
        "cluster": value["cluster"],
        "clusterID": value["clusterID"],
        "namespace": value["namespace"],
        "name": value["name"],
        "frontends": frontends.collect::<Vec<_>>(),
        "backends": backends.collect::<Vec<_>>(),
        "labels": value["labels"],
        "selector": value["selector"],
        "shared": value["shared"],
        "includeExternal": value["includeExternal"],
    })
}

fn export(value: &Value) -> Value {
    let either = |lower: &str, upper: &str| if value[lower].is_null() { value[upper].clone() } else { value[lower].clone() };
    json!({
        "cluster": value["cluster"],
        "namespace": value["namespace"],
        "name": value["name"],
        "exportCreationTimestamp": value["exportCreationTimestamp"],
        "type": value["type"],
        "ports": value["ports"],
        "sessionAffinity": value["sessionAffinity"],
        "sessionAffinityTimeoutSeconds": value["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"],
        "ipFamilies": value["ipFamilies"],
        "labels": either("labels", "Labels"),
        "annotations": either("annotations", "Annotations"),
    })
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Parses an address as Go does: an IPv4-mapped address is an IPv4 address.
fn address(value: &Value) -> Option<IpAddr> {
    let ip: IpAddr = value.as_str().filter(|text| !text.is_empty())?.parse().unwrap();
    Some(match ip {
        IpAddr::V6(ipv6) => Ipv6Addr::to_canonical(&ipv6),
        ipv4 @ IpAddr::V4(_) => ipv4,
    })
}

fn mask_length(mask: &Value) -> Option<u32> {
    let bytes = BASE64.decode(mask.as_str()?).unwrap();
    Some(bytes.iter().map(|byte| byte.count_ones()).sum())
}

/// Parses a pod CIDR and clears its host bits.
fn prefix(value: &Value) -> Option<String> {
    let (ip, length) = match value {
        Value::String(text) => text.split_once('/').map(|(ip, length)| (ip.parse().unwrap(), length.parse().unwrap()))?,
        Value::Object(prefix) => (address(&prefix["IP"])?, mask_length(&prefix["Mask"])?),
        _ => return None,
    };
    let network: IpAddr = match ip {
        IpAddr::V4(ip) => (u32::from(ip) & u32::MAX.checked_shl(32 - length).unwrap_or(0)).to_be_bytes().into(),
        IpAddr::V6(ip) => (u128::from(ip) & u128::MAX.checked_shl(128 - length).unwrap_or(0)).to_be_bytes().into(),
    };
    Some(format!("{network}/{length}"))
}

/// Drops fields with values that mean "not set", so that an omitted field equals an explicit one.
/// Label maps stay unchanged.
fn without_unset(object: Value) -> Value {
    let Value::Object(fields) = object else { return object };
    let unset = |value: &Value| {
        value.is_null()
            || *value == json!(false)
            || *value == json!(0)
            || value.as_str().is_some_and(str::is_empty)
            || value.as_array().is_some_and(Vec::is_empty)
            || value.as_object().is_some_and(Map::is_empty)
    };
    let inner = |name: &str, value: Value| match (name, value) {
        ("labels" | "annotations" | "selector", value) => value,
        (_, Value::Array(items)) => items.into_iter().map(without_unset).collect(),
        (_, value) => value,
    };
    let fields = fields.into_iter().map(|(name, value)| (name.clone(), inner(&name, value)));
    fields.filter(|(_, value)| !unset(value)).collect()
}

/// Reduces a served object to the fields that docs/use/api/objects.md lists. Returns it with the
/// key that it must have come from.
pub(crate) fn reduce(kind: &str, object: &Value) -> (String, Value) {
    let (_, _, names) = KINDS.iter().find(|(name, ..)| *name == kind).unwrap_or_else(|| panic!("no such kind: {kind}"));
    let fields = object.as_object().into_iter().flatten();
    let mut known: Map<String, Value> =
        fields.filter(|(name, _)| names.contains(&name.as_str())).map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(Value::Array(backends)) = known.get_mut("backends") {
        for backend in backends.iter_mut().filter_map(Value::as_object_mut) {
            backend.retain(|name, _| ["ip", "hostname", "zone", "ports"].contains(&name.as_str()));
        }
    }
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let cluster = text("cluster");
    let key = match kind {
        "node" => format!("cilium/cache/nodes/v1/{cluster}/{}", text("name")),
        "service" => format!("cilium/cache/services/v1/{cluster}/{}/{}", text("namespace"), text("name")),
        "serviceExport" => format!("cilium/cache/serviceexports/v1/{cluster}/{}/{}", text("namespace"), text("name")),
        "endpointSlice" => format!("cilium/cache/endpointslices/v1/{cluster}/{}/{}", text("namespace"), text("name")),
        "identity" => format!("cilium/cache/identities/v1/{cluster}/id/{}", object["id"]),
        _ => {
            let prefix = text("prefix");
            let address = if object["host"] == true { prefix.split('/').next().unwrap_or_default() } else { prefix };
            if object["source"] == "node" {
                return (format!("cilium/cache/nodes/v1/{cluster}/{}#{address}", text("nodeName")), without_unset(Value::Object(known)));
            }
            format!("cilium/cache/ip/v1/{cluster}/{address}")
        }
    };
    (key, without_unset(Value::Object(known)))
}

/// Returns all objects and raw entries that are served, from all pages.
pub(crate) async fn served(meshkeep: &Meshkeep) -> Served {
    let mut served = Served { objects: served_objects(meshkeep).await, raw: BTreeMap::new() };
    for entry in list(meshkeep, "/v1/entries?prefix=cilium/").await {
        let key = entry["key"].as_str().unwrap().to_owned();
        let value = BASE64.decode(entry["value"].as_str().unwrap()).unwrap();
        assert!(served.raw.insert(key.clone(), value).is_none(), "{key} is served twice in /v1/entries");
    }
    served
}

/// Returns all objects that are served.
pub(crate) async fn served_objects(meshkeep: &Meshkeep) -> Objects {
    list_objects(meshkeep, "").await
}

/// Returns all objects of one cluster that are served.
pub(crate) async fn served_objects_of(meshkeep: &Meshkeep, cluster: &str) -> Objects {
    list_objects(meshkeep, &format!("?cluster={cluster}")).await
}

async fn list_objects(meshkeep: &Meshkeep, query: &str) -> Objects {
    let mut objects = Objects::new();
    for (kind, path, _) in KINDS {
        for item in list(meshkeep, &format!("{path}{query}")).await {
            let (key, object) = reduce(kind, &item);
            assert!(objects.insert(key.clone(), object).is_none(), "{key} is served twice in {path}");
        }
    }
    objects
}

/// Returns the items of all pages of a list.
pub(crate) async fn list(meshkeep: &Meshkeep, path: &str) -> Vec<Value> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let first = format!("{}{path}{separator}limit={PAGE_ITEMS}", meshkeep.url());
    let mut items = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let mut request = http().get(&first);
        if let Some(token) = &token {
            request = request.query(&[("pageToken", token)]);
        }
        let response = request.send().await.unwrap();
        let status = response.status();
        let mut page: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{path}: {page}");
        let Value::Array(page_items) = page["items"].take() else { panic!("{path} has no items: {page}") };
        items.extend(page_items);
        match page["nextPageToken"].as_str() {
            Some(next) => token = Some(next.to_owned()),
            None => return items,
        }
    }
}

/// Returns the missing, additional and different keys as text; `None` if there are none.
pub(crate) fn difference(expected: &Served, actual: &Served) -> Option<String> {
    let objects = object_difference("object", &expected.objects, &actual.objects);
    let raw = object_difference("raw entry", &as_text(&expected.raw), &as_text(&actual.raw));
    (objects.is_some() || raw.is_some()).then(|| objects.unwrap_or_default() + &raw.unwrap_or_default())
}

fn as_text(raw: &BTreeMap<String, Vec<u8>>) -> BTreeMap<String, Value> {
    raw.iter().map(|(key, value)| (key.clone(), String::from_utf8_lossy(value).into())).collect()
}

/// Returns the differences between two sets of objects as text; `None` if there are none.
pub(crate) fn object_difference(what: &str, expected: &Objects, actual: &Objects) -> Option<String> {
    let keys: BTreeSet<&String> = expected.keys().chain(actual.keys()).collect();
    let mut text = String::new();
    let (mut shown, mut hidden) = (0, 0);
    for key in keys {
        let line = match (expected.get(key), actual.get(key)) {
            (Some(expected), None) => format!("missing {what} {key}: {}", brief(expected)),
            (None, Some(actual)) => format!("left over {what} {key}: {}", brief(actual)),
            (Some(expected), Some(actual)) if expected != actual => {
                format!("different {what} {key}:\n  expected {}\n  served   {}", brief(expected), brief(actual))
            }
            _ => continue,
        };
        if shown < DIFFERENCES_SHOWN {
            let _ = writeln!(text, "{line}");
            shown += 1;
        } else {
            hidden += 1;
        }
    }
    if hidden > 0 {
        let _ = writeln!(text, "… and {hidden} more");
    }
    (shown > 0).then(|| format!("{} {what}s expected, {} served:\n{text}", expected.len(), actual.len()))
}

fn brief(value: &Value) -> String {
    value.to_string().chars().take(600).collect()
}

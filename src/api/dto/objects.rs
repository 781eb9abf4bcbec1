//! Nodes, services, identities and ipcache entries, as lists, single answers and streams show them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::meta::ItemMeta;
use super::{LabelsOfIdentity, non_empty, reserved, text_of_ip, text_of_net};
use crate::handle::{LookupMatch, Reading};
use crate::model::{self, ClusterName, EntryKey, IdentityScope, Record};

/// The ids that clusters say they have, asked once for each cluster of an answer.
#[derive(Debug)]
pub(crate) struct ClusterIds<'a> {
    pub(super) reading: &'a Reading,
    known: RefCell<BTreeMap<ClusterName, Option<u32>>>,
}

impl<'a> ClusterIds<'a> {
    pub(crate) fn new(reading: &'a Reading) -> Self {
        Self { reading, known: RefCell::default() }
    }

    fn of(&self, cluster: &ClusterName) -> Option<u32> {
        let ask = || self.reading.cluster(cluster)?.record.config.map(|config| config.id.0).filter(|id| *id != 0);
        *self.known.borrow_mut().entry(cluster.clone()).or_insert_with(ask)
    }
}

/// A node of a cluster.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    /// Its name within the cluster.
    name: String,
    /// Its cluster.
    cluster: String,
    /// The id of its cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    cluster_id: u32,
    /// Addresses in the order of the source.
    addresses: Vec<NodeAddress>,
    /// The first IPv4 range of its pods.
    #[serde(rename = "ipv4PodCIDR", skip_serializing_if = "Option::is_none")]
    ipv4_pod_cidr: Option<String>,
    /// The first IPv6 range of its pods.
    #[serde(rename = "ipv6PodCIDR", skip_serializing_if = "Option::is_none")]
    ipv6_pod_cidr: Option<String>,
    /// Further ranges, IPv4 first.
    #[serde(rename = "secondaryPodCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    secondary_pod_cidrs: Vec<String>,
    /// Addresses of its health endpoint.
    #[serde(rename = "healthIPs", skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    health_ips: Vec<String>,
    /// Addresses of its ingress.
    #[serde(rename = "ingressIPs", skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    ingress_ips: Vec<String>,
    /// IPsec key index; left out where there is none.
    #[serde(skip_serializing_if = "is_zero_byte")]
    #[schema(required = false)]
    encryption_key: u8,
    /// Its WireGuard public key.
    #[serde(skip_serializing_if = "Option::is_none")]
    wireguard_public_key: Option<String>,
    /// Kubernetes labels.
    labels: BTreeMap<String, String>,
    /// Kubernetes annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    annotations: BTreeMap<String, String>,
    /// Changes with every boot.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    boot_id: Option<String>,
    /// Only with a single node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// One address of a node.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `CiliumInternalIP` and others, as the source says.
    #[serde(rename = "type")]
    address_type: String,
    /// The address.
    ip: String,
}

/// A service as one cluster exports it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Service {
    /// The cluster that exports it.
    cluster: String,
    /// The id of that cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    cluster_id: u32,
    /// Kubernetes namespace.
    namespace: String,
    /// Kubernetes name.
    name: String,
    /// Its own addresses, ordered by address.
    frontends: Vec<Frontend>,
    /// The pods behind it, ordered by address.
    backends: Vec<Backend>,
    /// Kubernetes labels.
    labels: BTreeMap<String, String>,
    /// The selector that picks its pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    selector: BTreeMap<String, String>,
    /// Whether other clusters may use its backends.
    shared: bool,
    /// Whether it uses other clusters' backends.
    include_external: bool,
    /// Only with a single service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// An address that a service listens on.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Frontend {
    /// The address.
    ip: String,
    /// Ports, ordered by name.
    ports: Vec<Port>,
}

/// A pod behind a service.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Backend {
    /// The pod's address.
    ip: String,
    /// The hostname of a headless service's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    /// The zone that it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    /// The zones that should use it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    hint_zones: Vec<String>,
    /// Ports, ordered by name.
    ports: Vec<Port>,
}

/// A port.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Port {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    protocol: String,
    /// The number.
    port: u16,
}

/// A numeric identity and its labels.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    /// The numeric identity.
    id: u32,
    /// The cluster that has it; left out for reserved identities that no cluster has.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    /// The id of that cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<u32>,
    /// Where it is valid: `global`, `local`, `remoteNode` or `unknown`.
    scope: &'static str,
    /// The name of a reserved or well-known identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<&'static str>,
    /// `source:key` to value.
    #[schema(value_type = BTreeMap<String, String>)]
    labels: LabelsOfIdentity,
}

/// What is known of one numeric identity: the newest, and what other clusters say of the same number.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdentityAnswer {
    /// The newest.
    #[serde(flatten)]
    pub(crate) identity: Identity,
    /// Identities of this number in other clusters, newest first.
    pub(crate) others: Vec<Identity>,
    /// Where the newest comes from.
    pub(crate) meta: ItemMeta,
}

/// An address or prefix and what is behind it.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpcacheEntry {
    /// The prefix, always with a length.
    prefix: String,
    /// True for a host entry, false for a CIDR, also for one of full length: these are two different entries.
    pub(crate) host: bool,
    /// The cluster that announces it, or whose node it is derived from.
    cluster: String,
    /// The numeric identity behind it.
    identity: u32,
    /// The node that hosts it.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    host_ip: Option<String>,
    /// IPsec key index; left out where there is none.
    #[serde(skip_serializing_if = "is_zero_byte")]
    #[schema(required = false)]
    encryption_key: u8,
    /// Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    /// Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pod_name: Option<String>,
    /// The pod's UID.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pod_uid: Option<String>,
    /// The pod's service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account: Option<String>,
    /// Ports that have names, in the order of the source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    named_ports: Vec<Port>,
    /// Where the entry comes from: `clustermesh`, or `node` for one derived from a node's addresses or pod CIDRs.
    source: &'static str,
    /// Only in lookups: the labels of the identity, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    labels: Option<LabelsOfIdentity>,
    /// The node that the entry is derived from; of others, and only in lookups, the node that has the host address, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    node_name: Option<String>,
}

/// What is known of exactly one prefix.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpcacheAnswer {
    /// The newest entry; a host entry comes before a CIDR of full length.
    #[serde(flatten)]
    pub(crate) entry: IpcacheEntry,
    /// Other entries for the same prefix.
    pub(crate) others: Vec<IpcacheEntry>,
    /// Where the entry comes from.
    pub(crate) meta: ItemMeta,
}

impl Node {
    pub(super) fn new(key: &EntryKey, node: &model::Node) -> Self {
        let addresses = node.addresses.iter();
        Self {
            name: node.name.clone(),
            cluster: key.cluster.to_string(),
            cluster_id: node.cluster_id,
            addresses: addresses.map(|one| NodeAddress { address_type: one.address_type.clone(), ip: one.ip.to_string() }).collect(),
            ipv4_pod_cidr: node.ipv4_pod_cidr.as_ref().map(ToString::to_string),
            ipv6_pod_cidr: node.ipv6_pod_cidr.as_ref().map(ToString::to_string),
            secondary_pod_cidrs: node.secondary_pod_cidrs.iter().map(ToString::to_string).collect(),
            health_ips: node.health_ips.iter().map(ToString::to_string).collect(),
            ingress_ips: node.ingress_ips.iter().map(ToString::to_string).collect(),
            encryption_key: node.encryption_key,
            wireguard_public_key: non_empty(&node.wireguard_public_key),
            labels: node.labels.clone(),
            annotations: node.annotations.clone(),
            boot_id: non_empty(&node.boot_id),
            meta: None,
        }
    }

    /// The node in a record, if it holds a usable one.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_node()?))
    }
}

impl Service {
    pub(super) fn new(key: &EntryKey, service: &model::Service) -> Self {
        Self {
            cluster: key.cluster.to_string(),
            cluster_id: service.cluster_id,
            namespace: service.namespace.clone(),
            name: service.name.clone(),
            frontends: service.frontends.iter().map(Frontend::from).collect(),
            backends: service.backends.iter().map(Backend::from).collect(),
            labels: service.labels.clone(),
            selector: service.selector.clone(),
            shared: service.shared,
            include_external: service.include_external,
            meta: None,
        }
    }

    /// The service in a record, if it holds a usable one.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_service()?))
    }
}

impl From<&model::Frontend> for Frontend {
    fn from(frontend: &model::Frontend) -> Self {
        Self { ip: frontend.ip.to_string(), ports: frontend.ports.iter().map(Port::from).collect() }
    }
}

impl From<&model::Backend> for Backend {
    fn from(backend: &model::Backend) -> Self {
        Self {
            ip: backend.ip.to_string(),
            hostname: non_empty(&backend.hostname),
            zone: backend.zone.as_ref().map(|zone| zone.zone.clone()),
            hint_zones: backend.zone.as_ref().map(|zone| zone.for_zones.clone()).unwrap_or_default(),
            ports: backend.ports.iter().map(Port::from).collect(),
        }
    }
}

impl From<&model::Port> for Port {
    fn from(port: &model::Port) -> Self {
        Self { name: non_empty(&port.name), protocol: port.protocol.clone(), port: port.port }
    }
}

impl Identity {
    pub(super) fn new(key: &EntryKey, identity: &model::Identity, ids: &ClusterIds<'_>) -> Self {
        Self {
            id: identity.id,
            cluster: Some(key.cluster.to_string()),
            cluster_id: ids.of(&key.cluster),
            scope: IdentityScope::of(identity.id).api_name(),
            reserved: reserved::name(identity.id),
            labels: LabelsOfIdentity(identity.labels.clone()),
        }
    }

    /// The identity in a record, if it holds a usable one.
    pub(crate) fn of(record: &Record, ids: &ClusterIds<'_>) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_identity()?, ids))
    }

    /// A reserved or well-known identity that no cluster has.
    pub(crate) fn reserved(id: u32) -> Option<Self> {
        let labels = reserved::labels(id, None)?;
        let scope = IdentityScope::of(id).api_name();
        Some(Self { id, cluster: None, cluster_id: None, scope, reserved: reserved::name(id), labels: LabelsOfIdentity(labels.into()) })
    }
}

impl IpcacheEntry {
    pub(super) fn new(key: &EntryKey, entry: &model::IpEntry) -> Self {
        let node = key.derived_from();
        let port = |one: &model::NamedPort| Port { name: non_empty(&one.name), protocol: one.protocol.clone(), port: one.port };
        Self {
            prefix: text_of_net(entry.prefix.net),
            host: entry.prefix.host,
            cluster: key.cluster.to_string(),
            identity: entry.identity,
            host_ip: entry.host_ip.map(text_of_ip),
            encryption_key: entry.encryption_key,
            namespace: non_empty(&entry.namespace),
            pod_name: non_empty(&entry.pod_name),
            pod_uid: non_empty(&entry.pod_uid),
            service_account: non_empty(&entry.service_account),
            named_ports: entry.named_ports.iter().map(port).collect(),
            source: if node.is_some() { "node" } else { "clustermesh" },
            labels: None,
            node_name: node.map(ToOwned::to_owned),
        }
    }

    /// The ip entry in a record, if it holds a usable one.
    pub(crate) fn of(record: &Record) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_ip()?))
    }

    /// The entry of a lookup with what it names.
    pub(crate) fn joined(found: &LookupMatch) -> Option<Self> {
        let entry = Self::of(&found.record)?;
        let reserved = || reserved::labels(entry.identity, Some(&found.record.key.cluster)).map(Into::into);
        let labels = found.labels.clone().or_else(reserved).map(LabelsOfIdentity);
        Some(Self { labels, node_name: found.node_name.clone(), ..entry })
    }
}

/// The id 0 is "not known" (Cilium) and is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The key index 0 is "no encryption" (Cilium) and is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero_byte(number: &u8) -> bool {
    *number == 0
}

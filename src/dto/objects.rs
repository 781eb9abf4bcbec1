//! Nodes, services, identities and ipcache entries, as lists, single answers and streams show them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::labels::LabelsOfIdentity;
use super::meta::ItemMeta;

/// A node of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    /// Its name within the cluster.
    pub(crate) name: String,
    /// Its cluster.
    pub(crate) cluster: String,
    /// The id of its cluster.
    #[serde(rename = "clusterID", default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(crate) cluster_id: u32,
    /// Addresses in the order of the source.
    pub(crate) addresses: Vec<NodeAddress>,
    /// The first IPv4 range of its pods.
    #[serde(rename = "ipv4PodCIDR", skip_serializing_if = "Option::is_none")]
    pub(crate) ipv4_pod_cidr: Option<String>,
    /// The first IPv6 range of its pods.
    #[serde(rename = "ipv6PodCIDR", skip_serializing_if = "Option::is_none")]
    pub(crate) ipv6_pod_cidr: Option<String>,
    /// Further ranges, IPv4 first.
    #[serde(rename = "secondaryPodCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) secondary_pod_cidrs: Vec<String>,
    /// Addresses of its health endpoint.
    #[serde(rename = "healthIPs", default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) health_ips: Vec<String>,
    /// Addresses of its ingress.
    #[serde(rename = "ingressIPs", default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) ingress_ips: Vec<String>,
    /// IPsec key index; left out where there is none.
    #[serde(default, skip_serializing_if = "is_zero_byte")]
    #[schema(required = false)]
    pub(crate) encryption_key: u8,
    /// Its WireGuard public key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wireguard_public_key: Option<String>,
    /// Kubernetes labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Kubernetes annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Changes with every boot.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub(crate) boot_id: Option<String>,
    /// Only with a single node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// One address of a node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `CiliumInternalIP` and others, as the source says.
    #[serde(rename = "type")]
    pub(crate) address_type: String,
    /// The address.
    pub(crate) ip: String,
}

/// A service as one cluster exports it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Service {
    /// The cluster that exports it.
    pub(crate) cluster: String,
    /// The id of that cluster.
    #[serde(rename = "clusterID", default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(crate) cluster_id: u32,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
    /// Its own addresses, ordered by address.
    pub(crate) frontends: Vec<Frontend>,
    /// The pods behind it, ordered by address.
    pub(crate) backends: Vec<Backend>,
    /// Kubernetes labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// The selector that picks its pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) selector: BTreeMap<String, String>,
    /// Whether other clusters may use its backends.
    pub(crate) shared: bool,
    /// Whether it uses other clusters' backends.
    pub(crate) include_external: bool,
    /// Only with a single service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// An address that a service listens on.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Frontend {
    /// The address.
    pub(crate) ip: String,
    /// Ports, ordered by name.
    pub(crate) ports: Vec<Port>,
}

/// A pod behind a service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Backend {
    /// The pod's address.
    pub(crate) ip: String,
    /// The hostname of a headless service's pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// The zone that it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// The zones that should use it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) hint_zones: Vec<String>,
    /// Ports, ordered by name.
    pub(crate) ports: Vec<Port>,
}

/// A port.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Port {
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// `TCP`, `UDP`, `SCTP` …, as the source says.
    pub(crate) protocol: String,
    /// The number.
    pub(crate) port: u16,
}

/// A numeric identity and its labels.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    /// The numeric identity.
    pub(crate) id: u32,
    /// The cluster that has it; left out for reserved identities that no cluster has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// The id of that cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Where it is valid: `global`, `local`, `remoteNode` or `unknown`.
    pub(crate) scope: Cow<'static, str>,
    /// The name of a reserved or well-known identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<Cow<'static, str>>,
    /// `source:key` to value.
    #[schema(value_type = BTreeMap<String, String>)]
    pub(crate) labels: LabelsOfIdentity,
}

/// What is known of one numeric identity: the newest, and what other clusters say of the same number.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
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
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpcacheEntry {
    /// The prefix, always with a length.
    pub(crate) prefix: String,
    /// True for a host entry, false for a CIDR, also for one of full length: these are two different entries.
    pub(crate) host: bool,
    /// The cluster that announces it, or whose node it is derived from.
    pub(crate) cluster: String,
    /// The numeric identity behind it.
    pub(crate) identity: u32,
    /// The node that hosts it.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub(crate) host_ip: Option<String>,
    /// IPsec key index; left out where there is none.
    #[serde(default, skip_serializing_if = "is_zero_byte")]
    #[schema(required = false)]
    pub(crate) encryption_key: u8,
    /// Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod_name: Option<String>,
    /// The pod's UID.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub(crate) pod_uid: Option<String>,
    /// The pod's service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_account: Option<String>,
    /// Ports that have names, in the order of the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) named_ports: Vec<Port>,
    /// Where the entry comes from: `clustermesh`, or `node` for one derived from a node's addresses or pod CIDRs.
    pub(crate) source: Cow<'static, str>,
    /// Only in lookups: the labels of the identity, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub(crate) labels: Option<LabelsOfIdentity>,
    /// The node that the entry is derived from; of others, and only in lookups, the node that has the host address, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
}

/// What is known of exactly one prefix.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
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

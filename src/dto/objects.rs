//! Nodes, services, identities and ipcache entries, as lists, single answers and streams show them.

pub(crate) mod exports;
pub(crate) mod global_services;
pub(crate) mod impact;
pub(crate) mod labels;
pub(crate) mod last_change;
pub(crate) mod prometheus;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::meta::ItemMeta;
use super::values::{EntrySource, IdentityScope};
use labels::LabelsOfIdentity;
use last_change::LastChange;

/// A node of a cluster.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Node {
    /// Name of the node within its cluster.
    pub(crate) name: String,
    /// Cluster of the node.
    pub(crate) cluster: String,
    /// Id of the node's cluster.
    #[serde(rename = "clusterID", default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(crate) cluster_id: u32,
    /// Addresses in the order of the source.
    pub(crate) addresses: Vec<NodeAddress>,
    /// First IPv4 pod CIDR.
    #[serde(rename = "ipv4PodCIDR", skip_serializing_if = "Option::is_none")]
    pub(crate) ipv4_pod_cidr: Option<String>,
    /// First IPv6 pod CIDR.
    #[serde(rename = "ipv6PodCIDR", skip_serializing_if = "Option::is_none")]
    pub(crate) ipv6_pod_cidr: Option<String>,
    /// Further pod CIDRs, IPv4 first.
    #[serde(rename = "secondaryPodCIDRs", default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) secondary_pod_cidrs: Vec<String>,
    /// Addresses of the node's health endpoint.
    #[serde(rename = "healthIPs", default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) health_ips: Vec<String>,
    /// Addresses of the node's ingress.
    #[serde(rename = "ingressIPs", default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) ingress_ips: Vec<String>,
    /// IPsec key index. Left out if there is none.
    #[serde(default, skip_serializing_if = "is_zero_byte")]
    #[schema(required = false)]
    pub(crate) encryption_key: u8,
    /// WireGuard public key of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wireguard_public_key: Option<String>,
    /// Kubernetes labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Kubernetes annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) annotations: BTreeMap<String, String>,
    /// Id of the boot; it changes with every boot.
    #[serde(rename = "bootID", skip_serializing_if = "Option::is_none")]
    pub(crate) boot_id: Option<String>,
    /// Time of the last change.
    #[serde(flatten)]
    pub(crate) change: LastChange,
    /// Present only if a single node was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<ItemMeta>,
}

/// One address of a node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeAddress {
    /// Type as the source has it: `InternalIP`, `ExternalIP`, `CiliumInternalIP` and others.
    #[serde(rename = "type")]
    pub(crate) address_type: String,
    /// The address.
    pub(crate) ip: String,
}

/// A service as one cluster exports it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Service {
    /// The cluster that exports the object.
    pub(crate) cluster: String,
    /// Id of that cluster.
    #[serde(rename = "clusterID", default, skip_serializing_if = "is_zero")]
    #[schema(required = false)]
    pub(crate) cluster_id: u32,
    /// Kubernetes namespace.
    pub(crate) namespace: String,
    /// Kubernetes name.
    pub(crate) name: String,
    /// Frontends, in order of address.
    pub(crate) frontends: Vec<Frontend>,
    /// Backends, in order of address.
    pub(crate) backends: Vec<Backend>,
    /// Kubernetes labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Selector of the service's pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    pub(crate) selector: BTreeMap<String, String>,
    /// `true` if other clusters may use its backends.
    pub(crate) shared: bool,
    /// `true` if the service uses backends of other clusters.
    pub(crate) include_external: bool,
    /// Time of the last change.
    #[serde(flatten)]
    pub(crate) change: LastChange,
    /// Present only if a single service was requested.
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

/// A backend of a service.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Backend {
    /// Address of the pod.
    pub(crate) ip: String,
    /// Hostname of the pod, for headless services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) hostname: Option<String>,
    /// Zone that the pod runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zone: Option<String>,
    /// Zones whose clients should use this backend (topology hints).
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
    /// Name of the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Protocol as the source has it: `TCP`, `UDP`, `SCTP` and others.
    pub(crate) protocol: String,
    /// Port number.
    pub(crate) port: u16,
}

/// A numeric identity and its labels.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    /// The numeric identity.
    pub(crate) id: u32,
    /// The cluster that has the identity. Left out for reserved identities that no cluster has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cluster: Option<String>,
    /// Id of that cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    pub(crate) cluster_id: Option<u32>,
    /// Scope: `global`, `local`, `remoteNode` or `unknown`.
    pub(crate) scope: IdentityScope,
    /// Name of a reserved or well-known identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserved: Option<Cow<'static, str>>,
    /// Map from `source:key` to the value of the label.
    #[schema(value_type = BTreeMap<String, String>)]
    pub(crate) labels: LabelsOfIdentity,
    /// Time of the last change.
    #[serde(flatten)]
    pub(crate) change: LastChange,
}

/// One numeric identity: the newest one, and identities of the same number in other clusters.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdentityAnswer {
    /// The newest.
    #[serde(flatten)]
    pub(crate) identity: Identity,
    /// Identities of this number in other clusters, newest first.
    pub(crate) others: Vec<Identity>,
    /// Source and age of the newest identity.
    pub(crate) meta: ItemMeta,
}

/// An address or prefix with its identity, host and pod.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpcacheEntry {
    /// Prefix, always with its length.
    pub(crate) prefix: String,
    /// `true` for a host entry, `false` for a CIDR. A host entry and a CIDR of full length are two
    /// different entries.
    pub(crate) host: bool,
    /// The cluster that announces the entry, or whose node it is derived from.
    pub(crate) cluster: String,
    /// Numeric identity of the address or prefix.
    pub(crate) identity: u32,
    /// Address of the node that hosts it.
    #[serde(rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub(crate) host_ip: Option<String>,
    /// IPsec key index. Left out if there is none.
    #[serde(default, skip_serializing_if = "is_zero_byte")]
    #[schema(required = false)]
    pub(crate) encryption_key: u8,
    /// Kubernetes namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// Name of the Kubernetes pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pod_name: Option<String>,
    /// UID of the pod.
    #[serde(rename = "podUID", skip_serializing_if = "Option::is_none")]
    pub(crate) pod_uid: Option<String>,
    /// Service account of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_account: Option<String>,
    /// Named ports, in the order of the source.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) named_ports: Vec<Port>,
    /// Source of the entry: `clustermesh`, or `node` if it is derived from a node's addresses or
    /// pod CIDRs.
    pub(crate) source: EntrySource,
    /// Labels of the identity. Present only in lookups, if the identity is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    pub(crate) labels: Option<LabelsOfIdentity>,
    /// Name of the node that the entry is derived from. In lookups, other entries have the name of
    /// the node with the address `hostIP`, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) node_name: Option<String>,
    /// Time of the last change.
    #[serde(flatten)]
    pub(crate) change: LastChange,
}

/// The entry for one exact prefix.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IpcacheAnswer {
    /// The newest entry; a host entry comes before a CIDR of full length.
    #[serde(flatten)]
    pub(crate) entry: IpcacheEntry,
    /// Other entries for the same prefix.
    pub(crate) others: Vec<IpcacheEntry>,
    /// Source and age of the entry.
    pub(crate) meta: ItemMeta,
}

/// Returns whether a cluster id is 0, which means "not known" in Cilium and is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Returns whether an IPsec key index is 0, which means "no encryption" in Cilium and is left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero_byte(number: &u8) -> bool {
    *number == 0
}

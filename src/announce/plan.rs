//! The desired contents of the etcd, computed from the files and the numbers of the identities.
//! Nothing here does I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::model::{ClusterConfig, ClusterId, ClusterName, EntryKey, IpEntry, Kind, MaxConnectedClusters, Node, ObjectPrefix, Service};
use crate::wire::keys::{canary_key, cluster_config_key, source_key};
use crate::wire::write::{cluster_config_value, ip_value, node_value, service_value};
use cilium_kvstore::allocator::{AllocatorKey, IdRange};

/// The validated contents of all files: one cluster with its nodes, workloads and services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPlan {
    /// Name of the cluster.
    pub cluster: ClusterName,
    /// Id of the cluster.
    pub id: ClusterId,
    /// Maximum number of clusters in the mesh, which determines the range of identities.
    pub max_connected_clusters: MaxConnectedClusters,
    pub(super) nodes: Vec<Node>,
    pub(super) workloads: Vec<Workload>,
    pub(super) services: Vec<Service>,
}

/// A workload, with its labels in `key`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Workload {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) service_account: String,
    pub(super) key: AllocatorKey,
    pub(super) ips: Vec<IpAddr>,
    pub(super) host_ip: Option<IpAddr>,
}

/// A group of published keys. The order is the order of writing: keys that refer to an identity are
/// written after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// `nodes/v1`.
    Nodes,
    /// `identities/v1`, which the allocator writes.
    Identities,
    /// `ip/v1`.
    Ips,
    /// `services/v1`.
    Services,
}

impl Resource {
    /// All resources, in the order of writing.
    pub const ALL: [Self; 4] = [Self::Nodes, Self::Identities, Self::Ips, Self::Services];

    /// Returns the kind of the resource's entries.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Nodes => Kind::Node,
            Self::Identities => Kind::Identity,
            Self::Ips => Kind::Ip,
            Self::Services => Kind::Service,
        }
    }
}

/// Desired values by key.
pub type DesiredKeys = BTreeMap<String, Vec<u8>>;

impl ClusterPlan {
    /// Returns the sets of labels that need an identity.
    #[must_use]
    pub fn identities(&self) -> BTreeSet<AllocatorKey> {
        self.workloads.iter().map(|workload| workload.key.clone()).collect()
    }

    /// Returns the range of identities that the cluster may allocate.
    #[must_use]
    pub fn range(&self) -> IdRange {
        let range = self.max_connected_clusters.identities_of(self.id).unwrap_or(1..=u32::MAX);
        IdRange::new((*range.start()).into(), (*range.end()).into()).unwrap_or(IdRange::ALL)
    }

    /// Returns key and value of the cluster config. It announces neither service exports nor
    /// endpoint slices.
    #[must_use]
    pub fn config(&self) -> (String, Vec<u8>) {
        let config = ClusterConfig {
            id: self.id,
            synced_canaries: true,
            cached: false,
            max_connected_clusters: self.max_connected_clusters.id_max(),
            service_exports_enabled: None,
            endpoint_slices_export_mode: None,
        };
        (cluster_config_key(&self.cluster), cluster_config_value(&config))
    }

    /// Returns the key of a resource's canary.
    #[must_use]
    pub fn canary(&self, resource: Resource) -> String {
        canary_key(resource.kind(), &self.cluster, false)
    }

    /// Returns the desired keys of a resource. Leaves out workloads whose identity has no number in
    /// `numbers`.
    #[must_use]
    pub fn keys(&self, resource: Resource, numbers: &BTreeMap<AllocatorKey, u32>) -> DesiredKeys {
        match resource {
            Resource::Nodes => self.nodes.iter().map(|node| self.entry(Kind::Node, &node.name, node_value(node, &self.cluster))).collect(),
            Resource::Identities => {
                let numbered = self.identities().into_iter().filter_map(|key| Some((*numbers.get(&key)?, key)));
                numbered.map(|(number, key)| self.entry(Kind::Identity, &number.to_string(), key.as_str().into())).collect()
            }
            Resource::Ips => self.ips(numbers),
            Resource::Services => {
                let name = |service: &Service| format!("{}/{}", service.namespace, service.name);
                self.services
                    .iter()
                    .map(|service| self.entry(Kind::Service, &name(service), service_value(service, &self.cluster)))
                    .collect()
            }
        }
    }

    fn ips(&self, numbers: &BTreeMap<AllocatorKey, u32>) -> DesiredKeys {
        let mut desired = DesiredKeys::new();
        for workload in &self.workloads {
            let Some(number) = numbers.get(&workload.key) else { continue };
            for ip in &workload.ips {
                let prefix = ObjectPrefix { net: (*ip).into(), host: true };
                let entry = IpEntry {
                    host_ip: workload.host_ip,
                    namespace: workload.namespace.clone(),
                    pod_name: workload.name.clone(),
                    service_account: workload.service_account.clone(),
                    ..IpEntry::new(prefix, *number)
                };
                desired.extend([self.entry(Kind::Ip, &prefix.to_string(), ip_value(&entry))]);
            }
        }
        desired
    }

    fn entry(&self, kind: Kind, name: &str, value: Vec<u8>) -> (String, Vec<u8>) {
        (source_key(&EntryKey::new(kind, self.cluster.clone(), name), false), value)
    }
}

//! Conversion of nodes, services, identities and ipcache entries, for lists, single answers and
//! streams.

use super::reserved;
use crate::dto::objects::labels::LabelsOfIdentity;
use crate::dto::objects::last_change::LastChange;
use crate::dto::objects::{Backend, Frontend, Identity, IpcacheEntry, Node, NodeAddress, Port, Service};
use crate::dto::text::{format_ip, format_net, non_empty};
use crate::dto::values::closed::EntrySource;
use crate::handle::{LookupMatch, Reading};
use crate::model::{self, EntryKey, IdentityScope, Record};

impl Node {
    pub(super) fn new(key: &EntryKey, node: &model::Node, change: LastChange) -> Self {
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
            change,
            meta: None,
        }
    }

    /// Converts the node of a record. `None` if the record has no valid object.
    pub(crate) fn from_record(record: &Record, reading: &Reading) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_node()?, LastChange::of_record(reading, record)))
    }
}

impl Service {
    pub(super) fn new(key: &EntryKey, service: &model::Service, change: LastChange) -> Self {
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
            change,
            meta: None,
        }
    }

    /// Converts the service of a record. `None` if the record has no valid object.
    pub(crate) fn from_record(record: &Record, reading: &Reading) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_service()?, LastChange::of_record(reading, record)))
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
    pub(super) fn new(key: &EntryKey, identity: &model::Identity, change: LastChange, reading: &Reading) -> Self {
        Self {
            id: identity.id,
            cluster: Some(key.cluster.to_string()),
            cluster_id: reading.cluster_id(&key.cluster).map(|id| id.0),
            scope: IdentityScope::of(identity.id).into(),
            reserved: reserved::name(identity.id).map(Into::into),
            labels: LabelsOfIdentity(identity.labels.clone()),
            change,
        }
    }

    /// Converts the identity of a record. `None` if the record has no valid object.
    pub(crate) fn from_record(record: &Record, reading: &Reading) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_identity()?, LastChange::of_record(reading, record), reading))
    }

    /// Returns a reserved or well-known identity that no cluster announces.
    pub(crate) fn reserved(id: u32) -> Option<Self> {
        let labels = reserved::labels(id, None)?;
        let (scope, name) = (IdentityScope::of(id).into(), reserved::name(id).map(Into::into));
        Some(Self {
            id,
            cluster: None,
            cluster_id: None,
            scope,
            reserved: name,
            labels: LabelsOfIdentity(labels.into()),
            change: LastChange::default(),
        })
    }
}

impl IpcacheEntry {
    pub(super) fn new(key: &EntryKey, entry: &model::IpEntry, change: LastChange) -> Self {
        let node = key.derived_from();
        let port = |one: &model::NamedPort| Port { name: non_empty(&one.name), protocol: one.protocol.clone(), port: one.port };
        Self {
            prefix: format_net(entry.prefix.net),
            host: entry.prefix.host,
            cluster: key.cluster.to_string(),
            identity: entry.identity,
            host_ip: entry.host_ip.map(format_ip),
            encryption_key: entry.encryption_key,
            namespace: non_empty(&entry.namespace),
            pod_name: non_empty(&entry.pod_name),
            pod_uid: non_empty(&entry.pod_uid),
            service_account: non_empty(&entry.service_account),
            named_ports: entry.named_ports.iter().map(port).collect(),
            source: if node.is_some() { EntrySource::Node } else { EntrySource::Clustermesh }.into(),
            labels: None,
            node_name: node.map(ToOwned::to_owned),
            change,
        }
    }

    /// Converts the ipcache entry of a record. `None` if the record has no valid object.
    pub(crate) fn from_record(record: &Record, reading: &Reading) -> Option<Self> {
        Some(Self::new(&record.key, record.object.as_deref()?.as_ip()?, LastChange::of_record(reading, record)))
    }

    /// Converts the match of a lookup, with the labels of its identity and the name of its node.
    pub(crate) fn from_match(found: &LookupMatch, reading: &Reading) -> Option<Self> {
        let entry = Self::from_record(&found.record, reading)?;
        let reserved = || reserved::labels(entry.identity, Some(&found.record.key.cluster)).map(Into::into);
        let labels = found.labels.clone().or_else(reserved).map(LabelsOfIdentity);
        Some(Self { labels, node_name: found.node_name.clone(), ..entry })
    }
}

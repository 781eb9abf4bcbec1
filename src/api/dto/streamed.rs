//! Objects as the change stream carries them.

use serde::Serialize;
use utoipa::ToSchema;

use super::exports::{EndpointSlice, ServiceExport};
use super::objects::{ClusterIds, Identity, IpcacheEntry, Node, Service};
use super::problems::Finding;
use super::status::Cluster;
use crate::model::{EntryKey, Object};

/// An object as the change stream carries it: the `kind` of the event says which. No object of one kind has all members that another kind requires, so
/// that whoever tries one after the other finds the right one.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum StreamedObject {
    Node(Node),
    Service(Service),
    Identity(Identity),
    Ipcache(IpcacheEntry),
    Cluster(Box<Cluster>),
    ServiceExport(ServiceExport),
    EndpointSlice(EndpointSlice),
    Finding(Box<Finding>),
}

impl StreamedObject {
    pub(crate) fn new(key: &EntryKey, object: &Object, ids: &ClusterIds<'_>) -> Self {
        match object {
            Object::Node(node) => Self::Node(Node::new(key, node)),
            Object::Service(service) => Self::Service(Service::new(key, service)),
            Object::Identity(identity) => Self::Identity(Identity::new(key, identity, ids)),
            Object::Ip(entry) => Self::Ipcache(IpcacheEntry::new(key, entry)),
            Object::Cluster(told) => Self::Cluster(Box::new(Cluster::told(&key.cluster, *told, ids.reading))),
            Object::ServiceExport(export) => Self::ServiceExport(ServiceExport::new(key, export)),
            Object::EndpointSlice(slice) => Self::EndpointSlice(EndpointSlice::new(key, &slice.decoded())),
            Object::Finding(told) => Self::Finding(Box::new(Finding::from(&**told))),
        }
    }
}

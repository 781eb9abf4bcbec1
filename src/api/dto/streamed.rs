//! Conversion of objects for the change stream.

use crate::dto::findings::Finding;
use crate::dto::objects::exports::{EndpointSlice, ServiceExport};
use crate::dto::objects::{Identity, IpcacheEntry, Node, Service};
use crate::dto::status::Cluster;
use crate::dto::streamed::StreamedObject;
use crate::handle::Reading;
use crate::model::{EntryKey, Object};

impl StreamedObject {
    pub(crate) fn new(key: &EntryKey, object: &Object, reading: &Reading) -> Self {
        match object {
            Object::Node(node) => Self::Node(Node::new(key, node)),
            Object::Service(service) => Self::Service(Service::new(key, service)),
            Object::Identity(identity) => Self::Identity(Identity::new(key, identity, reading)),
            Object::Ip(entry) => Self::Ipcache(IpcacheEntry::new(key, entry)),
            Object::Cluster(object) => Self::Cluster(Box::new(Cluster::with_phase(&key.cluster, *object, reading))),
            Object::ServiceExport(export) => Self::ServiceExport(ServiceExport::new(key, export)),
            Object::EndpointSlice(slice) => Self::EndpointSlice(EndpointSlice::new(key, &slice.decoded())),
            Object::Finding(object) => Self::Finding(Box::new(Finding::from(&**object))),
        }
    }
}

//! Conversion of objects for the change stream.

use crate::dto::findings::Finding;
use crate::dto::objects::exports::{EndpointSlice, ServiceExport};
use crate::dto::objects::last_change::LastChange;
use crate::dto::objects::{Identity, IpcacheEntry, Node, Service};
use crate::dto::status::Cluster;
use crate::dto::streamed::StreamedObject;
use crate::handle::Reading;
use crate::model::{EntryKey, Object, Sequence};

impl StreamedObject {
    pub(crate) fn new(key: &EntryKey, object: &Object, sequence: Sequence, reading: &Reading) -> Self {
        let change = || LastChange::of(reading, key, sequence);
        match object {
            Object::Node(node) => Self::Node(Node::new(key, node, change())),
            Object::Service(service) => Self::Service(Service::new(key, service, change())),
            Object::Identity(identity) => Self::Identity(Identity::new(key, identity, change(), reading)),
            Object::Ip(entry) => Self::Ipcache(IpcacheEntry::new(key, entry, change())),
            Object::Cluster(object) => Self::Cluster(Box::new(Cluster::with_phase(&key.cluster, *object, reading))),
            Object::ServiceExport(export) => Self::ServiceExport(ServiceExport::new(key, export, change())),
            Object::EndpointSlice(slice) => Self::EndpointSlice(EndpointSlice::new(key, &slice.decoded(), change())),
            Object::Finding(object) => Self::Finding(Box::new(Finding::from(&**object))),
        }
    }
}

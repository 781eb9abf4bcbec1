//! Objects as the change stream carries them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dto::findings::Finding;
use crate::dto::objects::exports::{EndpointSlice, ServiceExport};
use crate::dto::objects::last_change::LastChange;
use crate::dto::objects::{Identity, IpcacheEntry, Node, Service};
use crate::dto::status::Cluster;

/// An object in the change stream; the event's `kind` names its type. No object of one kind has
/// all members that another kind requires, so a client that tries the schemas one after the
/// other finds the right one.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
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
    /// Returns the time of the object's last change. Clusters and findings have none.
    pub(crate) fn last_change(&self) -> Option<&LastChange> {
        match self {
            Self::Node(node) => Some(&node.change),
            Self::Service(service) => Some(&service.change),
            Self::Identity(identity) => Some(&identity.change),
            Self::Ipcache(entry) => Some(&entry.change),
            Self::ServiceExport(export) => Some(&export.change),
            Self::EndpointSlice(slice) => Some(&slice.change),
            Self::Cluster(_) | Self::Finding(_) => None,
        }
    }
}

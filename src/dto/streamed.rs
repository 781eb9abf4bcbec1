//! Objects of any kind, as the change stream and the history carry them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::dto::findings::Finding;
use crate::dto::meta::UnknownPeriod;
use crate::dto::objects::exports::{EndpointSlice, ServiceExport};
use crate::dto::objects::last_change::LastChange;
use crate::dto::objects::{Identity, IpcacheEntry, Node, Service};
use crate::dto::status::Cluster;
use crate::dto::values::{StreamedKind, VersionEnd};

/// An object in the change stream; the event's `kind` names its type. No object of one kind has
/// all members that another kind requires, so a client that tries the schemas one after the
/// other finds the right one.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
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

/// A page of versions, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VersionList {
    /// The current versions, in order of their keys, and then the ended ones, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required)]
    pub(crate) items: Vec<EntryVersion>,
    /// `false` if there may be versions that the answer does not have: see `gaps`.
    pub(crate) complete: bool,
    /// Periods whose changes are not known, or not known exactly, newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) gaps: Vec<UnknownPeriod>,
    /// Time of the oldest change that the history has. Left out if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    /// Send it as `pageToken=` to get more versions. Left out on the last page. A page ends after
    /// `limit` versions, 4 MiB or 5 s, so it can have fewer versions, even none. A version that
    /// ends between two pages can be in both, first without its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_page_token: Option<String>,
    /// Position of the answer.
    pub(crate) position: String,
}

/// One version of an entry.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryVersion {
    /// Kind of the object.
    pub(crate) kind: StreamedKind,
    /// The key in `cilium/cache` form.
    pub(crate) key: String,
    /// The object, as in the lists of its `kind`. Left out if the value could not be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<StreamedObject>,
    /// Start of the version.
    pub(crate) from: LastChange,
    /// End of the version. Left out for the current version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<LastChange>,
    /// End of the version: `updated`, `deleted` or `clusterRemoved`. Left out for the current
    /// version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<VersionEnd>,
}

impl StreamedObject {
    /// Sets the time of the object's last change. Clusters and findings have none.
    pub(crate) fn set_last_change(&mut self, change: LastChange) {
        match self {
            Self::Node(node) => node.change = change,
            Self::Service(service) => service.change = change,
            Self::Identity(identity) => identity.change = change,
            Self::Ipcache(entry) => entry.change = change,
            Self::ServiceExport(export) => export.change = change,
            Self::EndpointSlice(slice) => slice.change = change,
            Self::Cluster(_) | Self::Finding(_) => {}
        }
    }

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

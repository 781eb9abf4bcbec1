//! What goes over the wire: one flat struct for each shape of docs/use/api.md. Unset members are left out, never null.
//!
//! Written by `api`, which makes them from readings, and read by `cli`. A reader takes what a newer server says: it passes over members that it does not
//! know, and members that hold one of a few texts are texts here too (`api::openapi::closed` has the sets). Deliberately lacks: where anything comes from.

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod exports;
pub(crate) mod global_services;
pub(crate) mod labels;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod meta;
pub(crate) mod objects;
pub(crate) mod problem;
pub(crate) mod problems;
pub(crate) mod raw;
pub(crate) mod reflection;
pub(crate) mod status;
pub(crate) mod streamed;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use meta::ListMeta;

macro_rules! list_of {
    ($($(#[$meta:meta])* $name:ident: $item:ty;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "camelCase")]
        #[allow(dead_code, reason = "a shape for the document: most pages are written item by item")]
        pub(crate) struct $name {
            /// The items, in key order.
            pub(crate) items: Vec<$item>,
            /// Asks for the next page as `pageToken=`; left out on the last page.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) next_page_token: Option<String>,
            /// What of the request is probably a mistake: a filter that names a cluster or node that is not known.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schema(required = false)]
            pub(crate) warnings: Vec<String>,
            /// Where the list comes from and how old it is.
            pub(crate) meta: ListMeta,
        }
    )*};
}

list_of! {
    /// A page of whatever it is, to a reader that takes the items as they are.
    Page: serde_json::Value;
    /// A page of clusters.
    ClusterList: status::Cluster;
    /// A page of nodes.
    NodeList: objects::Node;
    /// A page of services.
    ServiceList: objects::Service;
    /// A page of global services.
    GlobalServiceList: global_services::GlobalService;
    /// A page of service exports.
    ServiceExportList: exports::ServiceExport;
    /// A page of endpoint slices.
    EndpointSliceList: exports::EndpointSlice;
    /// A page of identities.
    IdentityList: objects::Identity;
    /// A page of ipcache entries.
    IpcacheList: objects::IpcacheEntry;
    /// A page of raw entries.
    EntryList: raw::Entry;
    /// A page of values that could not be used.
    RejectedList: raw::Rejected;
}

#[cfg(test)]
mod tests;

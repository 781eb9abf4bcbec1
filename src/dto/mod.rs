//! JSON shapes of answers and events: one flat struct each. Unset members are left out, never null.
//!
//! `api` builds them from readings, and `cli` reads them. `cli` may be older than the server, so it
//! ignores unknown members, and accepts unknown values of enumerations ([`values::Open`]).

pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod findings;
pub(crate) mod log;
pub(crate) mod lookup;
pub(crate) mod meta;
pub(crate) mod objects;
pub(crate) mod problem;
pub(crate) mod raw;
pub(crate) mod reflection;
pub(crate) mod status;
pub(crate) mod streamed;
pub(crate) mod text;
pub(crate) mod values;

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
            /// Send it as `pageToken=` to get the next page. Left out on the last page.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) next_page_token: Option<String>,
            /// Probable mistakes in the request: a filter names a cluster or node that meshkeep
            /// does not know.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            #[schema(required = false)]
            pub(crate) warnings: Vec<String>,
            /// Sources and age of the list.
            pub(crate) meta: ListMeta,
        }
    )*};
}

list_of! {
    /// A page of items of any type, for clients that do not decode them.
    Page: serde_json::Value;
    /// A page of clusters.
    ClusterList: status::Cluster;
    /// A page of nodes.
    NodeList: objects::Node;
    /// A page of services.
    ServiceList: objects::Service;
    /// A page of global services.
    GlobalServiceList: objects::global_services::GlobalService;
    /// A page of service exports.
    ServiceExportList: objects::exports::ServiceExport;
    /// A page of endpoint slices.
    EndpointSliceList: objects::exports::EndpointSlice;
    /// A page of identities.
    IdentityList: objects::Identity;
    /// A page of ipcache entries.
    IpcacheList: objects::IpcacheEntry;
    /// A page of objects that are affected if a cluster or a namespace leaves the mesh.
    ImpactList: objects::impact::Impact;
    /// A page of raw entries.
    EntryList: raw::Entry;
    /// A page of rejected values.
    RejectedList: raw::Rejected;
}

#[cfg(test)]
mod tests;

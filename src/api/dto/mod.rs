//! What goes over the wire: one flat struct for each shape of api.md. Unset members are left out, never null.

pub(crate) mod exports;
pub(crate) mod global_services;
pub(crate) mod lookup;
pub(crate) mod meta;
pub(crate) mod objects;
pub(crate) mod problems;
pub(crate) mod raw;
pub(crate) mod reserved;
pub(crate) mod status;

use std::time::{Duration, SystemTime};

use serde::Serialize;
use utoipa::ToSchema;

use meta::ListMeta;

/// A time as RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let millis = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// A duration in seconds, to the millisecond.
pub(crate) fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// A text, unless it is empty.
pub(crate) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

macro_rules! list_of {
    ($($(#[$meta:meta])* $name:ident: $item:ty;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Serialize, ToSchema)]
        #[serde(rename_all = "camelCase")]
        pub(crate) struct $name {
            /// The items, in key order.
            pub(crate) items: Vec<$item>,
            /// Asks for the next page as `pageToken=`; left out on the last page.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub(crate) next_page_token: Option<String>,
            /// Where the list comes from and how old it is.
            pub(crate) meta: ListMeta,
        }
    )*};
}

list_of! {
    /// A page of clusters.
    ClusterList: status::Cluster;
    /// A page of nodes.
    NodeList: objects::Node;
    /// A page of services.
    ServiceList: objects::Service;
    /// A page of global services.
    GlobalServiceList: global_services::GlobalService;
    /// A page of findings.
    FindingList: problems::Finding;
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

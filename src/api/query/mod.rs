//! Query parameters. They are parsed strictly, so that a typo in a filter never silently returns
//! more than the client asked for.
//!
//! Each route has one struct. It defines both the parameters that are parsed and their description
//! in the OpenAPI document. Unknown parameters, empty values and repeated single parameters are
//! refused by name.

mod errors;
pub(crate) mod fields;
mod filters;
mod stream;
pub(crate) mod time_parameter;
pub(crate) mod words;

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use axum_extra::extract::Query;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use crate::api::dto::meta::MetaOptions;
use crate::api::problem::Problem;
use crate::api::render::answer_properties::MediaType;
use crate::dto::values::{Affinity, ConflictFilter, FindingKind, IdentityScope, MetaDetail, NeverRead, Severity};
use crate::handle::Filter;
use fields::Fields;
use filters::{Filters, NodeAddresses};

pub(crate) use filters::{parse_clusters, parse_network};
pub(crate) use stream::{ChangesQuery, EventsQuery, StreamParameters, StreamQuery};

/// Parameters that do not change the content of a list or stream, but only its pages, its format or
/// its start.
const NOT_IN_FINGERPRINT: [&str; 11] =
    ["limit", "fields", "maxAge", "neverRead", "meta", "pageToken", "after", "since", "snapshot", "onExpired", "waitSeconds"];

/// Parameters of a request, and a fingerprint of them.
#[derive(Debug)]
pub(crate) struct Parameters<T> {
    pub(crate) values: T,
    /// Hash of the path and filters: equal for all pages of one list, different for any other list.
    pub(crate) fingerprint: String,
    /// Negotiated media type of the answer.
    pub(crate) media_type: MediaType,
    /// Selected members of each item; `None` for all.
    pub(crate) fields: Option<Fields>,
}

impl<T: DeserializeOwned + IntoParams, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Query(mut pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state).await.map_err(|_| {
            Problem::bad_parameter("query", "cannot be read: percent-encode names and values, like ?labelSelector=app%3Dcart")
        })?;
        if let Some((name, _)) = pairs.iter().find(|(_, value)| value.is_empty()) {
            return Err(Problem::bad_parameter(name, "has no value: add one, or omit the parameter"));
        }
        let read = Query::<T>::from_request_parts(parts, state).await;
        let Query(values) = read.map_err(|_| errors::explain_error::<T>(&pairs))?;
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let fields = pairs.iter().find(|(name, _)| name == "fields").map(|(_, fields)| Fields::parse(route, fields)).transpose()?;
        pairs.retain(|(name, _)| !NOT_IN_FINGERPRINT.contains(&name.as_str()));
        pairs.sort();
        let digest = Sha256::digest(format!("{} {pairs:?}", parts.uri.path()));
        let fingerprint = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let media_type = parts.extensions.get().copied().unwrap_or(MediaType::Json);
        Ok(Self { values, fingerprint, media_type, fields })
    }
}

/// Parameters that every list accepts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListParameters<'a> {
    pub(crate) limit: Option<u32>,
    pub(crate) page_token: Option<&'a str>,
    pub(crate) meta_options: MetaOptions,
    /// Time of a list of the past.
    pub(crate) at: Option<&'a str>,
}

/// Parameters of a list.
pub(crate) trait ListQuery {
    /// Returns the parameters that every list accepts.
    fn common(&self) -> Result<ListParameters<'_>, Problem>;

    /// Returns the filter of the list. `node_host_ips` returns the addresses of the nodes with a
    /// name.
    fn filter(&self, node_host_ips: &NodeAddresses<'_>) -> Result<Filter, Problem>;
}

/// No parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NoQuery {}

/// Parameters of the results of verifications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct VerificationsQuery {
    /// Only this cluster; repeatable.
    #[serde(default)]
    pub(crate) cluster: Vec<String>,
}

/// Parameters of the start of verifications.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StartVerificationsQuery {
    /// Only this cluster; repeatable.
    #[serde(default)]
    pub(crate) cluster: Vec<String>,
    /// `true` to compare the values too, not only the revisions.
    pub(crate) values: Option<bool>,
}

macro_rules! item_query {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize, IntoParams)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            /// Answer 503 if the answer is older than this number of seconds.
            max_age: Option<u32>,
            /// `ignore`: `maxAge` ignores clusters that were never read.
            never_read: Option<NeverRead>,
            /// `full`: every source in `meta`; `none`: only the position.
            meta: Option<MetaDetail>,
        }

        impl $name {
            pub(crate) fn meta_options(&self) -> Result<MetaOptions, Problem> {
                MetaOptions::parse(self.max_age, self.never_read.clone(), self.meta.clone())
            }
        }
    };
}

macro_rules! list_query {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* } filtered by [$($filter:ident)*] $(at [$at:ident])?) => {
        item_query! {
            $(#[$meta])*
            $name {
                $($(#[$field_meta])* $field: $type,)*
                /// Only this cluster; repeatable.
                #[serde(default)]
                cluster: Vec<String>,
                /// Maximum number of items in a page; default 500.
                #[param(minimum = 1, maximum = 10000)]
                limit: Option<u32>,
                /// Only these members of each item, separated by commas. A dot selects a nested
                /// member: `name,labels.app`.
                #[allow(dead_code, reason = "read where all parameters are: see Parameters")]
                fields: Option<String>,
                /// The `nextPageToken` of the previous page. All other parameters must be the same.
                page_token: Option<String>,
                $(
                    /// The list at this time: RFC 3339, or a duration before now (`10m`, `2h`).
                    /// `meta.complete` says whether all changes since then are known.
                    $at: Option<String>,
                )?
            }
        }

        impl ListQuery for $name {
            fn common(&self) -> Result<ListParameters<'_>, Problem> {
                let at = None$(.or(self.$at.as_deref()))?;
                Ok(ListParameters { limit: self.limit, page_token: self.page_token.as_deref(), meta_options: self.meta_options()?, at })
            }

            fn filter(&self, node_host_ips: &NodeAddresses<'_>) -> Result<Filter, Problem> {
                Filters { $($filter: self.$filter.clone(),)* ..Filters::default() }.parse(Some(node_host_ips))
            }
        }
    };
}

/// Parameters of the list of versions. Exactly one of the first six is needed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryQuery {
    /// Versions of the ipcache entries that cover this address.
    pub(crate) ip: Option<String>,
    /// Versions of this key, in cache form.
    pub(crate) key: Option<String>,
    /// Versions of the identities with this number, and of the ipcache entries that name it.
    pub(crate) identity: Option<u32>,
    /// Versions of the ipcache entries of this pod: `NAMESPACE/NAME`.
    pub(crate) pod: Option<String>,
    /// Versions of this node: `CLUSTER/NAME`.
    pub(crate) node: Option<String>,
    /// Versions of everything in this cluster that changes ended, without the current ones.
    pub(crate) cluster: Option<String>,
    /// Maximum number of versions in a page; default 500.
    #[param(minimum = 1, maximum = 10000)]
    pub(crate) limit: Option<u32>,
    /// The `nextPageToken` of the previous page. All other parameters must be the same.
    pub(crate) page_token: Option<String>,
}

list_query! {
    /// Parameters of lists that can only be filtered by cluster.
    PlainQuery {} filtered by [cluster]
}

list_query! {
    /// Parameters of the list of findings.
    ProblemsQuery {
        /// Only findings of this kind, for example `danglingIdentity`.
        kind: Option<FindingKind>,
        /// Only findings of this severity.
        severity: Option<Severity>,
    } filtered by [cluster]
}

list_query! {
    /// Parameters of the list of raw entries.
    EntriesQuery {
        /// Only keys that begin with this, in cache form: `cilium/cache/nodes/v1/paris/`.
        prefix: Option<String>,
    } filtered by [cluster]
}

list_query! {
    /// Parameters of the list of nodes.
    NodesQuery {
        /// Only nodes whose labels match, in kubectl's syntax.
        label_selector: Option<String>,
        /// Only nodes with this name.
        name: Option<String>,
        /// Only nodes that have this address.
        ip: Option<String>,
        /// Only nodes whose name contains this text, ignoring case, or one of whose addresses
        /// begins with it.
        search: Option<String>,
    } filtered by [cluster label_selector name ip search] at [at]
}

list_query! {
    /// Parameters of the list of services.
    ServicesQuery {
        /// Only services whose labels match, in kubectl's syntax.
        label_selector: Option<String>,
        /// Only in this namespace.
        namespace: Option<String>,
        /// Only services with this name.
        name: Option<String>,
        /// Only services that are shared with other clusters (`true`) or not shared (`false`).
        shared: Option<bool>,
        /// Only services whose `namespace/name` contains this text, ignoring case, or one of whose
        /// frontend addresses begins with it.
        search: Option<String>,
    } filtered by [cluster label_selector namespace name shared search] at [at]
}

list_query! {
    /// Parameters of the list of global services.
    GlobalServicesQuery {
        /// Only services with a service, service export or endpoint slice whose labels match, in
        /// kubectl's syntax, in any cluster or, with `cluster=`, in one of these clusters.
        label_selector: Option<String>,
        /// Only in this namespace.
        namespace: Option<String>,
        /// Only services with this name.
        name: Option<String>,
        /// Only the backends that would be used with this affinity: `none`, `local` or `remote`.
        affinity: Option<Affinity>,
        /// With `affinity=`: the cluster whose agents select the backends; default: the own
        /// cluster.
        from: Option<String>,
        /// Only services whose exports have this conflict, for example `PortConflict`. `any`: any
        /// conflict.
        conflict: Option<ConflictFilter>,
        /// Only services whose `namespace/name` contains this text, ignoring case.
        search: Option<String>,
    } filtered by [cluster label_selector namespace name search]
}

list_query! {
    /// Parameters of the lists of service exports and endpoint slices.
    ExportsQuery {
        /// Only objects whose labels match, in kubectl's syntax.
        label_selector: Option<String>,
        /// Only in this namespace.
        namespace: Option<String>,
        /// Only objects with this name.
        name: Option<String>,
        /// Only objects whose `namespace/name` contains this text, ignoring case.
        search: Option<String>,
    } filtered by [cluster label_selector namespace name search] at [at]
}

list_query! {
    /// Parameters of the list of identities.
    IdentitiesQuery {
        /// Only identities whose labels match, in kubectl's syntax; a key without a source (`app`)
        /// matches any source (`k8s:app`).
        label_selector: Option<String>,
        /// One requirement in the same syntax (`k8s:app=cart`); repeatable, all must match.
        #[serde(default)]
        label: Vec<String>,
        /// Only identities of this scope: `global`, `local`, `remoteNode` or `unknown`.
        scope: Option<IdentityScope>,
        /// Only identities with a label that contains this text, ignoring case, or whose number
        /// begins with it. If it is the only filter, reserved identities with such a name (`world`)
        /// come first.
        search: Option<String>,
    } filtered by [cluster label_selector label scope search] at [at]
}

list_query! {
    /// Parameters of the list of ipcache entries.
    IpcacheQuery {
        /// Only entries inside this CIDR.
        cidr: Option<String>,
        /// Only entries of this numeric identity.
        identity: Option<u32>,
        /// Only entries that this node hosts: a host address or a node's name.
        node: Option<String>,
        /// Only entries of pods in this namespace.
        namespace: Option<String>,
        /// Only entries of pods with this name.
        pod: Option<String>,
        /// Only entries of pods whose `namespace/name` contains this text, ignoring case, and
        /// entries whose prefix begins with it.
        search: Option<String>,
    } filtered by [cluster cidr identity node namespace pod search] at [at]
}

item_query! {
    /// Parameters of the impact of a cluster or a namespace.
    ImpactQuery {
        /// The cluster that leaves the mesh.
        cluster: Option<String>,
        /// The namespace that leaves the mesh, in all clusters.
        namespace: Option<String>,
        /// Maximum number of items in a page; default 500.
        #[param(minimum = 1, maximum = 10000)]
        limit: Option<u32>,
        /// Only these members of each item, separated by commas.
        #[allow(dead_code, reason = "read where all parameters are: see Parameters")]
        fields: Option<String>,
        /// The `nextPageToken` of the previous page. All other parameters must be the same.
        page_token: Option<String>,
    }
}

impl ListQuery for ImpactQuery {
    fn common(&self) -> Result<ListParameters<'_>, Problem> {
        Ok(ListParameters { limit: self.limit, page_token: self.page_token.as_deref(), meta_options: self.meta_options()?, at: None })
    }

    fn filter(&self, node_host_ips: &NodeAddresses<'_>) -> Result<Filter, Problem> {
        let cluster = self.cluster.iter().cloned().collect();
        Filters { cluster, namespace: self.namespace.clone(), ..Filters::default() }.parse(Some(node_host_ips))
    }
}

/// Parameters of the targets for Prometheus.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PrometheusQuery {
    /// The backends of this global service, as `namespace/name`.
    pub(crate) service: Option<String>,
    /// The pods in this namespace.
    pub(crate) namespace: Option<String>,
    /// The pods whose identity has matching labels, in kubectl's syntax.
    pub(crate) label_selector: Option<String>,
    /// The port to scrape, by number or name. Default: every TCP port of the backends, and every
    /// named TCP port of the pods.
    pub(crate) port: Option<String>,
    /// Only targets of this cluster; repeatable.
    #[serde(default)]
    pub(crate) cluster: Vec<String>,
    /// Answer 503 if the answer is older than this number of seconds. Prometheus then keeps the
    /// targets that it has.
    pub(crate) max_age: Option<u32>,
    /// `ignore`: `maxAge` ignores clusters that were never read.
    pub(crate) never_read: Option<NeverRead>,
}

item_query! {
    /// Parameters of a request for one object.
    ItemQuery {}
}

item_query! {
    /// Parameters of a request for one object, now or at an earlier time.
    PastItemQuery {
        /// The answer at this time: RFC 3339, or a duration before now (`10m`, `2h`).
        at: Option<String>,
    }
}

item_query! {
    /// Parameters of a request for one global service.
    GlobalServiceQuery {
        /// Only the backends that would be used with this affinity: `none`, `local` or `remote`.
        affinity: Option<Affinity>,
        /// With `affinity=`: the cluster whose agents select the backends; default: the own
        /// cluster.
        from: Option<String>,
    }
}

item_query! {
    /// Parameters of a request for one object that several clusters may have.
    SharedItemQuery {
        /// Only this cluster; repeatable.
        #[serde(default)]
        cluster: Vec<String>,
        /// The object at this time: RFC 3339, or a duration before now (`10m`, `2h`).
        at: Option<String>,
    }
}

item_query! {
    /// Parameters of a lookup of one address.
    LookupQuery {
        /// The address, IPv4 or IPv6.
        ip: String,
        /// The entry at this time: RFC 3339, or a duration before now (`10m`, `2h`).
        at: Option<String>,
    }
}

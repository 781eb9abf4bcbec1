//! Query parameters. They are parsed strictly, so that a typing error never widens an answer
//! silently.
//!
//! Each route has one struct, which is both what is parsed and what the OpenAPI document describes.
//! Unknown parameters, empty values and repeated single parameters are refused by name.

mod errors;
pub(crate) mod fields;
mod stream;
pub(crate) mod words;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum_extra::extract::Query;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use crate::api::dto::meta::MetaOptions;
use crate::api::problem::Problem;
use crate::api::render::accept::MediaType;
use crate::dto::objects::global_services::ANY_CONFLICT;
use crate::handle::{Affinity, CONFLICT_REASONS, Filter, LabelSelector, Reading};
use crate::model::{ClusterName, IdentityScope, Kind, check_exact_name};
use fields::Fields;

pub(crate) use stream::{ChangesQuery, EventsQuery, OnExpired, StreamQuery};

/// Parameters that do not change the content of a list or stream, only its pages, its form or its
/// start.
const NOT_IN_FINGERPRINT: [&str; 10] =
    ["limit", "fields", "maxAge", "neverRead", "meta", "pageToken", "after", "snapshot", "onExpired", "waitSeconds"];

/// Parameters of a request, and a fingerprint of them.
#[derive(Debug)]
pub(crate) struct Parameters<T> {
    pub(crate) values: T,
    /// Hash of the path and filters: equal for all pages of one list, different for any other list.
    pub(crate) fingerprint: String,
    /// Negotiated form of the answer.
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
        let fields =
            pairs.iter().find(|(name, _)| name == "fields").map(|(_, fields)| Fields::parse(parts.uri.path(), fields)).transpose()?;
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
}

/// Parameters of a list.
pub(crate) trait ListQuery {
    /// Returns the parameters that every list accepts.
    fn common(&self) -> Result<ListParameters<'_>, Problem>;

    /// Returns the filter of the list.
    fn filter(&self, reading: &Reading) -> Result<Filter, Problem>;
}

/// No parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NoQuery {}

macro_rules! list_query {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* } $(narrowed by $narrow:ident)?) => {
        $(#[$meta])*
        #[derive(Debug, Deserialize, IntoParams)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
            /// Only this cluster; repeatable.
            #[serde(default)]
            pub(crate) cluster: Vec<String>,
            /// Maximum number of items in a page; default 500.
            #[param(minimum = 1, maximum = 10000)]
            pub(crate) limit: Option<u32>,
            /// Only these members of each item, separated by commas. A dot selects a nested member:
            /// `name,labels.app`.
            #[allow(dead_code, reason = "read where all parameters are: see Parameters")]
            pub(crate) fields: Option<String>,
            /// The `nextPageToken` of the previous page. All other parameters must be the same.
            pub(crate) page_token: Option<String>,
            /// Answer 503 if the answer is older than this number of seconds.
            pub(crate) max_age: Option<u32>,
            /// `ignore`: `maxAge` ignores clusters that were never read.
            pub(crate) never_read: Option<String>,
            /// `full`: every source in `meta`; `none`: only the position.
            pub(crate) meta: Option<String>,
        }

        impl ListQuery for $name {
            fn common(&self) -> Result<ListParameters<'_>, Problem> {
                let meta_options = MetaOptions::parse(self.max_age, self.never_read.as_deref(), self.meta.as_deref())?;
                Ok(ListParameters { limit: self.limit, page_token: self.page_token.as_deref(), meta_options })
            }

            #[allow(unused_variables, reason = "few filters need what is there")]
            fn filter(&self, reading: &Reading) -> Result<Filter, Problem> {
                let filter = Filter { clusters: parse_clusters(&self.cluster)?, ..Filter::default() };
                $(let filter = $narrow(self, filter, reading)?;)?
                Ok(filter)
            }
        }
    };
}

list_query! {
    /// Parameters of lists that can only be filtered by cluster.
    PlainQuery {}
}

list_query! {
    /// Parameters of the list of findings.
    ProblemsQuery {
        /// Only findings of this kind, for example `danglingIdentity`.
        kind: Option<String>,
        /// Only findings of this severity.
        severity: Option<String>,
    }
}

list_query! {
    /// Parameters of the list of raw entries.
    EntriesQuery {
        /// Only keys that begin with this, in cache form: `cilium/cache/nodes/v1/paris/`.
        prefix: Option<String>,
    }
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
    } narrowed by narrow_nodes
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
    } narrowed by narrow_services
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
        affinity: Option<String>,
        /// With `affinity=`: the cluster whose agents select the backends; default: the own
        /// cluster.
        from: Option<String>,
        /// Only services whose exports have this conflict, for example `PortConflict`. `any`: any
        /// conflict.
        conflict: Option<String>,
    } narrowed by narrow_global_services
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
    } narrowed by narrow_exports
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
        scope: Option<String>,
    } narrowed by narrow_identities
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
    } narrowed by narrow_ipcache
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
            never_read: Option<String>,
            /// `full`: every source in `meta`; `none`: only the position.
            meta: Option<String>,
        }

        impl $name {
            pub(crate) fn meta_options(&self) -> Result<MetaOptions, Problem> {
                MetaOptions::parse(self.max_age, self.never_read.as_deref(), self.meta.as_deref())
            }
        }
    };
}

item_query! {
    /// Parameters of a request for one object.
    ItemQuery {}
}

item_query! {
    /// Parameters of a request for one global service.
    GlobalServiceQuery {
        /// Only the backends that would be used with this affinity: `none`, `local` or `remote`.
        affinity: Option<String>,
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
    }
}

item_query! {
    /// Parameters of a lookup of one address.
    LookupQuery {
        /// The address, IPv4 or IPv6.
        ip: String,
    }
}

fn narrow_nodes(query: &NodesQuery, filter: Filter, _: &Reading) -> Result<Filter, Problem> {
    let ip = parse_address("ip", query.ip.as_deref())?;
    let name = parse_exact_name("name", query.name.as_deref())?;
    Ok(Filter { labels: parse_labels(query.label_selector.as_deref(), &[])?, name, ip, ..filter })
}

fn narrow_services(query: &ServicesQuery, filter: Filter, _: &Reading) -> Result<Filter, Problem> {
    let filter = Filter { shared: query.shared, ..filter };
    narrow_namespaced(filter, query.label_selector.as_deref(), query.namespace.as_ref(), query.name.as_ref())
}

fn narrow_global_services(query: &GlobalServicesQuery, filter: Filter, _: &Reading) -> Result<Filter, Problem> {
    narrow_namespaced(filter, query.label_selector.as_deref(), query.namespace.as_ref(), query.name.as_ref())
}

fn narrow_exports(query: &ExportsQuery, filter: Filter, _: &Reading) -> Result<Filter, Problem> {
    narrow_namespaced(filter, query.label_selector.as_deref(), query.namespace.as_ref(), query.name.as_ref())
}

fn narrow_namespaced(filter: Filter, selector: Option<&str>, namespace: Option<&String>, name: Option<&String>) -> Result<Filter, Problem> {
    let namespace = parse_exact_name("namespace", namespace.map(String::as_str))?;
    let name = parse_exact_name("name", name.map(String::as_str))?;
    Ok(Filter { labels: parse_labels(selector, &[])?, namespace, name, ..filter })
}

fn narrow_identities(query: &IdentitiesQuery, filter: Filter, _: &Reading) -> Result<Filter, Problem> {
    let labels = parse_labels(query.label_selector.as_deref(), &query.label)?;
    Ok(Filter { labels, scope: parse_scope(query.scope.as_deref())?, ..filter })
}

fn narrow_ipcache(query: &IpcacheQuery, filter: Filter, reading: &Reading) -> Result<Filter, Problem> {
    let node = parse_exact_name("node", query.node.as_deref())?;
    let hosts = node.as_deref().map(|node| match node.parse::<std::net::IpAddr>() {
        Ok(ip) => vec![(None, ip.to_canonical())],
        Err(_) => reading.node_host_ips(node),
    });
    let (namespace, pod) = (parse_exact_name("namespace", query.namespace.as_deref())?, parse_exact_name("pod", query.pod.as_deref())?);
    let identity = query.identity;
    Ok(Filter { cidr: parse_cidr(query.cidr.as_deref())?, identity, hosts, namespace, pod, ..filter })
}

/// Checks a name that objects are compared with. Refuses a pattern, because it would match no
/// object.
fn parse_exact_name(parameter: &str, text: Option<&str>) -> Result<Option<String>, Problem> {
    let read = |text: &str| check_exact_name(text).map(|()| text.to_owned()).map_err(|error| Problem::bad_parameter(parameter, error));
    text.map(read).transpose()
}

/// Parses cluster names.
pub(crate) fn parse_clusters(names: &[String]) -> Result<Vec<ClusterName>, Problem> {
    names.iter().map(|name| ClusterName::parse(name).map_err(|error| Problem::bad_parameter("cluster", error))).collect()
}

/// Parses an address or prefix, and clears its host bits.
///
/// An IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2) becomes an IPv4 address, because entries never
/// have the mapped form.
pub(crate) fn parse_network(text: &str) -> Option<ipnet::IpNet> {
    let net: Option<ipnet::IpNet> = text.parse().ok();
    let net = net.map(|net| net.trunc()).or_else(|| text.parse::<std::net::IpAddr>().ok().map(ipnet::IpNet::from))?;
    let mapped = net.prefix_len().checked_sub(IPV4_MAPPED_BITS).zip(match net.addr() {
        std::net::IpAddr::V6(address) => address.to_ipv4_mapped(),
        std::net::IpAddr::V4(_) => None,
    });
    mapped.map_or(Some(net), |(length, address)| ipnet::IpNet::new(address.into(), length).ok())
}

/// Number of bits before the IPv4 address in an IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2).
const IPV4_MAPPED_BITS: u8 = 96;

fn parse_cidr(text: Option<&str>) -> Result<Option<ipnet::IpNet>, Problem> {
    let read = |text| parse_network(text).ok_or_else(|| Problem::bad_parameter("cidr", format!("{text:?} is not an address or CIDR")));
    text.map(read).transpose()
}

fn parse_kind(name: &str) -> Result<Kind, Problem> {
    let unknown = || {
        Problem::bad_parameter(
            "kind",
            format!("{name:?} is not one of node, service, identity, ipcache, serviceExport, endpointSlice, cluster and problem"),
        )
    };
    Kind::STREAMED.into_iter().find(|kind| kind.api_name() == name).ok_or_else(unknown)
}

fn parse_scope(name: Option<&str>) -> Result<Option<IdentityScope>, Problem> {
    let read = |name| {
        let unknown = || Problem::bad_parameter("scope", format!("{name:?} is not one of global, local, remoteNode and unknown"));
        IdentityScope::ALL.into_iter().find(|scope| scope.api_name() == name).ok_or_else(unknown)
    };
    name.map(read).transpose()
}

/// Parses the reason of a conflict between exports, or [`ANY_CONFLICT`].
pub(crate) fn parse_conflict(name: &str) -> Result<&'static str, Problem> {
    let known = || std::iter::once(ANY_CONFLICT).chain(CONFLICT_REASONS);
    let unknown = || Problem::bad_parameter("conflict", format!("{name:?} is not one of {}", known().collect::<Vec<_>>().join(", ")));
    known().find(|reason| *reason == name).ok_or_else(unknown)
}

/// Parses an affinity.
pub(crate) fn parse_affinity(name: &str) -> Result<Affinity, Problem> {
    let unknown = || Problem::bad_parameter("affinity", format!("{name:?} is not one of none, local and remote"));
    Affinity::ALL.into_iter().find(|affinity| affinity.api_name() == name).ok_or_else(unknown)
}

fn parse_labels(selector: Option<&str>, requirements: &[String]) -> Result<Option<LabelSelector>, Problem> {
    let parts: Vec<&str> = selector.into_iter().chain(requirements.iter().map(String::as_str)).collect();
    if parts.is_empty() {
        return Ok(None);
    }
    let name = if selector.is_some() { "labelSelector" } else { "label" };
    LabelSelector::parse(&parts.join(",")).map(Some).map_err(|error| Problem::bad_parameter(name, error))
}

/// Parses an address. An IPv4-mapped IPv6 address becomes an IPv4 address.
fn parse_address(name: &str, text: Option<&str>) -> Result<Option<std::net::IpAddr>, Problem> {
    let read =
        |text: &str| text.parse::<std::net::IpAddr>().map_err(|_| Problem::bad_parameter(name, format!("{text:?} is not an IP address")));
    Ok(text.map(read).transpose()?.map(|ip| ip.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::parse_network;

    #[test]
    fn an_ipv4_mapped_address_becomes_ipv4() {
        for (text, expected) in [
            ("::ffff:10.3.0.10", "10.3.0.10/32"),
            ("::ffff:10.3.0.10/112", "10.3.0.0/16"),
            ("::ffff:0:0/96", "0.0.0.0/0"),
            ("::ffff:0:0/95", "::fffe:0:0/95"),
            ("10.3.0.10/16", "10.3.0.0/16"),
            ("2001:db8::1", "2001:db8::1/128"),
        ] {
            assert_eq!(parse_network(text).map(|net| net.to_string()).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(parse_network("10.3.0"), None);
    }
}

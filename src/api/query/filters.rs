//! Filters of lists and streams. A list accepts some of them as parameters, the change stream
//! accepts all of them.

use std::net::IpAddr;

use crate::api::problem::Problem;
use crate::dto::values::{IdentityScope, StreamedKind, closed};
use crate::handle::{Filter, LabelSelector, SearchText};
use crate::model::{ClusterName, Kind, check_exact_name};

/// Parameters that are filters, as the query has them.
#[derive(Debug, Default)]
pub(super) struct Filters {
    pub(super) kind: Vec<StreamedKind>,
    pub(super) cluster: Vec<String>,
    pub(super) label_selector: Option<String>,
    pub(super) label: Vec<String>,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) shared: Option<bool>,
    pub(super) ip: Option<String>,
    pub(super) scope: Option<IdentityScope>,
    pub(super) cidr: Option<String>,
    pub(super) identity: Option<u32>,
    pub(super) node: Option<String>,
    pub(super) pod: Option<String>,
    pub(super) search: Option<String>,
}

impl Filters {
    /// Parses the filters. A list passes a function that returns the addresses of the nodes with a
    /// name. A stream has none, because it filters each object separately.
    pub(super) fn parse(self, node_host_ips: Option<&NodeAddresses<'_>>) -> Result<Filter, Problem> {
        Ok(Filter {
            kinds: self.kind.into_iter().map(parse_kind).collect::<Result<_, _>>()?,
            clusters: parse_clusters(&self.cluster)?,
            namespace: self.namespace.map(|text| parse_exact_name("namespace", text)).transpose()?,
            name: self.name.map(|text| parse_exact_name("name", text)).transpose()?,
            labels: parse_labels(self.label_selector.as_deref(), &self.label)?,
            shared: self.shared,
            ip: parse_address("ip", self.ip.as_deref())?,
            scope: self.scope.map(parse_scope).transpose()?,
            cidr: parse_cidr(self.cidr.as_deref())?,
            identity: self.identity,
            hosts: self.node.map(|node| parse_hosts(node, node_host_ips)).transpose()?,
            pod: self.pod.map(|text| parse_exact_name("pod", text)).transpose()?,
            search: self.search.as_deref().map(SearchText::new),
        })
    }
}

/// Function that returns the addresses of the nodes with a name, each with the cluster of its node.
pub(crate) type NodeAddresses<'a> = dyn Fn(&str) -> Vec<(Option<ClusterName>, IpAddr)> + 'a;

/// Returns the addresses of a host. `node` is one of its addresses or, if there is a function for
/// them, the name of its node.
fn parse_hosts(node: String, node_host_ips: Option<&NodeAddresses<'_>>) -> Result<Vec<(Option<ClusterName>, IpAddr)>, Problem> {
    let node_name = "is not a host address: a stream cannot follow a node's name, use one of its addresses";
    match (node.parse::<IpAddr>(), node_host_ips) {
        (Ok(ip), _) => Ok(vec![(None, ip.to_canonical())]),
        (Err(_), Some(node_host_ips)) => Ok(node_host_ips(&parse_exact_name("node", node)?)),
        (Err(_), None) => Err(Problem::bad_parameter("node", node_name)),
    }
}

/// Checks a name that is compared with the names of objects. Refuses a pattern, because no name
/// would be equal to it.
fn parse_exact_name(parameter: &str, text: String) -> Result<String, Problem> {
    check_exact_name(&text).map(|()| text).map_err(|error| Problem::bad_parameter(parameter, error))
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

fn parse_kind(kind: StreamedKind) -> Result<Kind, Problem> {
    let unknown = |name| {
        Problem::bad_parameter(
            "kind",
            format!("{name:?} is not one of node, service, identity, ipcache, serviceExport, endpointSlice, cluster and problem"),
        )
    };
    kind.into_known().map(|kind| kind.0).map_err(unknown)
}

fn parse_scope(scope: IdentityScope) -> Result<closed::IdentityScope, Problem> {
    let unknown = |name| Problem::bad_parameter("scope", format!("{name:?} is not one of global, local, remoteNode and unknown"));
    scope.into_known().map_err(unknown)
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

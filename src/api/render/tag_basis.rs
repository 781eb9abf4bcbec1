//! Inputs of an answer's entity tag, chosen by the path of the request.

use crate::handle::Reading;
use crate::model::{ClusterName, Kind};

/// Input from which the tag of an answer is computed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TagBasis<'a> {
    /// These kinds, of the clusters in the query, or of all clusters.
    Listed(&'a [Kind]),
    /// These kinds of the cluster with this name.
    Cluster(&'a str, &'a [Kind]),
    /// These kinds of all clusters.
    AllClusters(&'a [Kind]),
    /// The content of the answer without times and ages.
    Content,
    /// The bytes of the answer.
    Document,
    /// No tag.
    None,
}

impl<'a> TagBasis<'a> {
    /// Returns the basis of the tag of a path.
    pub(super) fn for_path(path: &'a str) -> Self {
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match segments.as_slice() {
            ["v1", "global-services", ..] => Self::AllClusters(&[Kind::EndpointSlice, Kind::ServiceExport, Kind::Service]),
            ["v1", "identities"] => Self::Listed(&[Kind::Identity]),
            ["v1", "identities", _, "ips"] | ["v1", "ipcache"] => Self::Listed(&[Kind::Ip, Kind::Node]),
            ["v1", "identities", _] => Self::AllClusters(&[Kind::Identity]),
            ["v1", "ipcache", "lookup"] => Self::AllClusters(&[Kind::Ip, Kind::Identity, Kind::Node]),
            ["v1", "ipcache", ..] => Self::AllClusters(&[Kind::Ip, Kind::Node]),
            ["v1", "entries"] => Self::Listed(&Kind::ALL),
            ["v1", "entries", ..] => Self::AllClusters(&Kind::ALL),
            ["v1", "clusters" | "config" | "rejected" | "problems" | "explain" | "status", ..] => Self::Content,
            ["openapi.json" | "openapi-3.0.json" | ""] | ["docs" | "problems", ..] => Self::Document,
            ["v1", list] => kinds_of_list(list).map_or(Self::None, Self::Listed),
            ["v1", list, cluster, ..] => kinds_of_list(list).map_or(Self::None, |kinds| Self::Cluster(cluster, kinds)),
            _ => Self::None,
        }
    }

    /// Returns the mirror's change counter; `None` if the answer depends on more than the mirror.
    pub(super) fn change_count(&self, query: &str, reading: &Reading) -> Option<u64> {
        match self {
            Self::Listed(kinds) => Some(reading.content_version(&named_clusters(query), kinds)),
            Self::Cluster(cluster, kinds) => {
                // an invalid name gets 404, which has no tag, so any counter will do
                let named: Vec<ClusterName> = ClusterName::parse(cluster).into_iter().collect();
                Some(reading.content_version(&named, kinds))
            }
            Self::AllClusters(kinds) => Some(reading.content_version(&[], kinds)),
            Self::Content | Self::Document | Self::None => None,
        }
    }
}

/// Returns the kind of a list, by the list's name.
fn kinds_of_list(list_name: &str) -> Option<&'static [Kind]> {
    let kinds: &'static [Kind] = &Kind::ALL;
    kinds.iter().find(|kind| kind.list_name() == list_name).map(std::slice::from_ref)
}

/// Returns whether answers of a path have a tag.
pub(crate) fn is_tagged(path: &str) -> bool {
    TagBasis::for_path(path) != TagBasis::None
}

/// Returns the clusters in a query. Empty, which means all, if the query is escaped or depends on
/// other clusters' data, as `node=` with a name does.
fn named_clusters(query: &str) -> Vec<ClusterName> {
    if query.contains(['%', '+']) || query.contains("node=") {
        return Vec::new();
    }
    let names = query.split('&').filter_map(|pair| pair.strip_prefix("cluster="));
    let parsed: Result<Vec<_>, _> = names.map(ClusterName::parse).collect();
    parsed.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ambiguous_query_means_all_clusters() {
        let paris = ClusterName::parse("paris").unwrap();
        for (query, expected) in [
            ("", vec![]),
            ("cluster=paris&limit=1", vec![paris.clone()]),
            ("limit=1&cluster=paris&cluster=paris", vec![paris.clone(), paris]),
            ("%63luster=paris", vec![]),
            ("cluster=paris&node=worker", vec![]),
            ("cluster=NO/name", vec![]),
        ] {
            assert_eq!(named_clusters(query), expected, "{query}");
        }
    }
}

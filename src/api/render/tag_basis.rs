//! Inputs of an answer's entity tag.

use axum::http::Uri;

use crate::handle::Reading;
use crate::model::{ClusterName, Kind};

/// Input from which the tag of an answer is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagBasis {
    /// These kinds, of the clusters in the query, or of all clusters.
    Listed(&'static [Kind]),
    /// These kinds of the cluster in the path, whose third segment is its name.
    OneCluster(&'static [Kind]),
    /// These kinds of all clusters.
    AllClusters(&'static [Kind]),
    /// The content of the answer without times and ages.
    Content,
    /// The bytes of the answer.
    Document,
    /// No tag.
    None,
}

impl TagBasis {
    /// Returns the mirror's change counter; `None` if the answer depends on more than the mirror.
    pub(super) fn change_count(self, uri: &Uri, reading: &Reading) -> Option<u64> {
        match self {
            Self::Listed(kinds) => Some(reading.content_version(&named_clusters(uri.query().unwrap_or_default()), kinds)),
            Self::OneCluster(kinds) => {
                // an invalid name gets 404, which has no tag, so any counter will do
                let named = uri.path().split('/').nth(3).and_then(|name| ClusterName::parse(name).ok());
                Some(reading.content_version(named.as_slice(), kinds))
            }
            Self::AllClusters(kinds) => Some(reading.content_version(&[], kinds)),
            Self::Content | Self::Document | Self::None => None,
        }
    }
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

//! Inputs of an answer's entity tag.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::http::Uri;

use crate::findings::{FindingSources, UnreadNodes, current_findings};
use crate::handle::Reading;
use crate::model::{ClusterName, Kind};

/// Maximum number of rejected keys up to which a page of findings has a tag
/// (docs/use/api/age-and-caching.md). Counting each takes about 50 ns.
const REJECTED_COUNT_MAX: u64 = 10_000;

/// Hash of an answer without the members that only say when it was made. The handler of an answer
/// with [`TagBasis::Content`] adds it to the response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContentHash(pub(super) u64);

impl ContentHash {
    pub(crate) fn new(content: impl Hash) -> Self {
        Self(hash_of(content))
    }
}

pub(super) fn hash_of(content: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// Input from which the tag of an answer is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TagBasis {
    /// These kinds, of the clusters in the query, or of all clusters.
    Listed(&'static [Kind]),
    /// These kinds of the cluster in the path, whose third segment is its name.
    OneCluster(&'static [Kind]),
    /// These kinds of all clusters.
    AllClusters(&'static [Kind]),
    /// Everything about all clusters: the mirror and the statuses.
    Mesh,
    /// The mirror, the statuses and all findings.
    Findings,
    /// What explanations read: the mirror, its tombstones, and the findings across keys.
    Explanation,
    /// The [`ContentHash`] of the answer.
    Content,
    /// The bytes of the answer.
    Document,
    /// No tag.
    None,
}

impl TagBasis {
    /// Returns whether the answer contains findings across keys.
    pub(super) const fn has_findings_across_keys(self) -> bool {
        matches!(self, Self::Findings | Self::Explanation)
    }

    /// Returns a number that changes with the answer. `None` means that only the answer itself
    /// shows that it has changed. The number is computed from counters of changes, each of which
    /// may also count changes that the answer does not show.
    pub(super) fn change_count(self, uri: &Uri, reading: &Reading, findings: &FindingSources) -> Option<u64> {
        let mirror = || (reading.position().sequence, reading.content_version(&[], &Kind::ALL));
        // findings across keys are not shown while the nodes of a cluster are being read
        let across_keys = || (findings.index.newest().map(|index| index.content_version()), UnreadNodes::new(reading).is_loading);
        match self {
            Self::Listed(kinds) => Some(reading.content_version(&named_clusters(uri.query().unwrap_or_default()), kinds)),
            Self::OneCluster(kinds) => {
                // an invalid name gets 404, which has no tag, so any counter will do
                let named = uri.path().split('/').nth(3).and_then(|name| ClusterName::parse(name).ok());
                Some(reading.content_version(named.as_slice(), kinds))
            }
            Self::AllClusters(kinds) => Some(reading.content_version(&[], kinds)),
            Self::Mesh => Some(hash_of((mirror(), reading.status_version()))),
            // too many to count them here
            Self::Findings if reading.rejected_count() > REJECTED_COUNT_MAX => None,
            Self::Findings => Some(hash_of((mirror(), across_keys(), current_findings(findings, reading)))),
            Self::Explanation => {
                let trimmed = reading.feed().trimmed;
                Some(hash_of((mirror(), across_keys(), trimmed.by_age, trimmed.by_count)))
            }
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

//! Findings in the change stream. `api` writes their texts, and the committer gives each of their
//! changes a sequence.

use std::sync::Arc;

use crate::model::{ClusterName, EntryKey, Object};

/// Severity of a finding, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Data is not served, or will soon not be.
    Critical,
    /// Data is served that is probably not intended.
    Warning,
    /// The finding resolves itself, or needs no action today.
    Info,
}

impl Severity {
    /// All severities, most severe first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Warning, Self::Info];

    /// Returns the name in the API.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A finding with its human-readable texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingObject {
    /// Id that stays the same while the finding lasts: its kind, and, if it has one, `/` and its
    /// subject.
    pub id: String,
    /// Kind of the finding.
    pub kind: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Affected clusters; empty if only this process is affected.
    pub clusters: Vec<String>,
    /// Description of the problem.
    pub detail: String,
    /// Advice on how to solve it.
    pub advice: String,
    /// Time since which the finding exists, as text.
    pub since: Option<String>,
    /// Number of affected keys or pod CIDRs.
    pub count: Option<u64>,
    /// Example of an affected key.
    pub key: Option<String>,
}

/// New state of a finding, by its key: `None` if it was resolved.
pub type FindingChange = (EntryKey, Option<Arc<Object>>);

impl FindingObject {
    /// Returns the finding's key in the change stream. If the finding has one cluster, the
    /// cluster's name moves from the id into its part of the key.
    #[must_use]
    pub fn stream_key(&self) -> EntryKey {
        let subject = self.id.strip_prefix(self.kind).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        let [cluster] = self.clusters.as_slice() else { return EntryKey::of_problem(self.kind, None, subject) };
        let Ok(name) = ClusterName::parse(cluster) else { return EntryKey::of_problem(self.kind, None, subject) };
        let rest = subject.strip_prefix(name.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        EntryKey::of_problem(self.kind, Some(name), rest.map_or(subject, |rest| rest.trim_start_matches('/')))
    }

    /// Returns whether another finding has the same content. Ignores `since`, because some findings
    /// restart it each time.
    #[must_use]
    pub fn has_same_content(&self, other: &Self) -> bool {
        let Self { id, kind, severity, clusters, detail, advice, since: _, count, key } = other;
        (&self.id, self.kind, self.severity, &self.clusters, self.count, &self.key) == (id, *kind, *severity, clusters, *count, key)
            && self.detail == *detail
            && self.advice == *advice
    }

    /// Returns the number of bytes of the texts.
    #[must_use]
    pub fn text_bytes(&self) -> usize {
        let clusters: usize = self.clusters.iter().map(|cluster| size_of::<String>() + cluster.len()).sum();
        let others = [&self.since, &self.key].into_iter().flatten().map(String::len).sum::<usize>();
        self.id.len() + self.detail.len() + self.advice.len() + clusters + others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_contains_the_kind_the_only_cluster_and_the_subject() {
        for (id, kind, clusters, key) in [
            ("clusterUnreachable/paris", "clusterUnreachable", vec!["paris"], "problem/clusterUnreachable/paris"),
            ("danglingIdentity/paris/68352", "danglingIdentity", vec!["paris"], "problem/danglingIdentity/paris/68352"),
            ("duplicateAddress/host/10.0.0.1", "duplicateAddress", vec!["paris", "tokyo"], "problem/duplicateAddress/-/host/10.0.0.1"),
            ("overlappingPodCIDR/paris", "overlappingPodCIDR", vec!["paris", "tokyo"], "problem/overlappingPodCIDR/-/paris"),
            ("clusterFileInvalid/Paris.yaml", "clusterFileInvalid", vec![], "problem/clusterFileInvalid/-/Paris.yaml"),
            ("x/paris-2", "x", vec!["paris"], "problem/x/paris/paris-2"),
            ("logGap", "logGap", vec![], "problem/logGap/-"),
        ] {
            let finding = FindingObject {
                id: id.to_owned(),
                kind,
                severity: Severity::Info,
                clusters: clusters.into_iter().map(str::to_owned).collect(),
                detail: String::new(),
                advice: String::new(),
                since: None,
                count: None,
                key: None,
            };
            let listed = finding.stream_key();
            assert_eq!((listed.to_string().as_str(), EntryKey::from_cache_form(key)), (key, Some(listed.clone())));
        }
    }
}

//! Findings in the change stream. `api` writes their texts, and the committer gives each of their
//! changes a sequence.

use std::sync::Arc;

use crate::model::{ClusterName, EntryKey, FindingKind, Object, Severity};

/// A finding with its human-readable texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FindingObject {
    /// Id that stays the same while the finding lasts: its kind, and, if it has one, `/` and its
    /// subject.
    pub id: String,
    /// Kind of the finding.
    pub kind: FindingKind,
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
    /// Creates a finding about a subject, with the severity and the advice of its kind. `detail`
    /// says what is wrong.
    #[must_use]
    pub fn new(kind: FindingKind, subject: &str, clusters: impl IntoIterator<Item = impl ToString>, detail: impl Into<String>) -> Self {
        Self {
            id: if subject.is_empty() { kind.to_string() } else { format!("{kind}/{subject}") },
            kind,
            severity: kind.severity(),
            clusters: clusters.into_iter().map(|cluster| cluster.to_string()).collect(),
            detail: detail.into(),
            advice: kind.advice().replace("{subject}", subject),
            since: None,
            count: None,
            key: None,
        }
    }

    /// Returns the finding's key in the change stream. If the finding concerns one cluster, the
    /// name is taken out of the id and becomes the cluster part of the key.
    #[must_use]
    pub fn stream_key(&self) -> EntryKey {
        let kind = self.kind.api_name();
        let subject = self.id.strip_prefix(kind).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        let [cluster] = self.clusters.as_slice() else { return EntryKey::of_problem(kind, None, subject) };
        let Ok(name) = ClusterName::parse(cluster) else { return EntryKey::of_problem(kind, None, subject) };
        let rest = subject.strip_prefix(name.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        EntryKey::of_problem(kind, Some(name), rest.map_or(subject, |rest| rest.trim_start_matches('/')))
    }

    /// Returns whether another finding has the same content. Ignores `since`, because some findings
    /// get a new `since` whenever they are computed.
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
        for (kind, subject, clusters, key) in [
            (FindingKind::ClusterUnreachable, "paris", vec!["paris"], "problem/clusterUnreachable/paris"),
            (FindingKind::DanglingIdentity, "paris/68352", vec!["paris"], "problem/danglingIdentity/paris/68352"),
            (FindingKind::DuplicateAddress, "host/10.0.0.1", vec!["paris", "tokyo"], "problem/duplicateAddress/-/host/10.0.0.1"),
            (FindingKind::OverlappingPodCidr, "paris", vec!["paris", "tokyo"], "problem/overlappingPodCIDR/-/paris"),
            (FindingKind::ClusterFileInvalid, "Paris.yaml", vec![], "problem/clusterFileInvalid/-/Paris.yaml"),
            (FindingKind::HeldEntries, "paris-2", vec!["paris"], "problem/heldEntries/paris/paris-2"),
            (FindingKind::LogGap, "", vec![], "problem/logGap/-"),
        ] {
            let finding = FindingObject::new(kind, subject, clusters, "");
            let listed = finding.stream_key();
            assert_eq!((listed.to_string().as_str(), EntryKey::from_cache_form(key)), (key, Some(listed.clone())));
        }
    }
}

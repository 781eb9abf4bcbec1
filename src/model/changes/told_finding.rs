//! What looks wrong, as it is told in the change stream: `api` has the words, the writer gives each change of it a place among all others.

use std::sync::Arc;

use crate::model::{ClusterName, EntryKey, Object};

/// How bad a finding is. The worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something is not served, or not for long.
    Critical,
    /// Something is served that is probably not meant.
    Warning,
    /// It passes by itself, or nobody need do anything about it today.
    Info,
}

impl Severity {
    /// All, the worst first.
    pub const ALL: [Self; 3] = [Self::Critical, Self::Warning, Self::Info];

    /// The name that the API uses.
    #[must_use]
    pub const fn api_name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// Something that looks wrong, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldFinding {
    /// Its name: the same as long as it lasts. Its kind, and where there is one behind a `/` its subject.
    pub id: String,
    /// What kind of trouble it is.
    pub kind: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The clusters that it concerns; none where it concerns this process alone.
    pub clusters: Vec<String>,
    /// What is wrong.
    pub detail: String,
    /// What to do about it.
    pub advice: String,
    /// Since when, as text.
    pub since: Option<String>,
    /// How many keys it concerns, or pod CIDRs.
    pub count: Option<u64>,
    /// One of the keys that it concerns.
    pub key: Option<String>,
}

/// What a finding is now, by its key: `None` where it is over.
pub type FindingChange = (EntryKey, Option<Arc<Object>>);

impl ToldFinding {
    /// The key under which it is told: what its id says of its one cluster stands in the place for that.
    #[must_use]
    pub fn stream_key(&self) -> EntryKey {
        let subject = self.id.strip_prefix(self.kind).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
        let [cluster] = self.clusters.as_slice() else { return EntryKey::of_problem(self.kind, None, subject) };
        let Ok(name) = ClusterName::parse(cluster) else { return EntryKey::of_problem(self.kind, None, subject) };
        let rest = subject.strip_prefix(name.as_str()).filter(|rest| rest.is_empty() || rest.starts_with('/'));
        EntryKey::of_problem(self.kind, Some(name), rest.map_or(subject, |rest| rest.trim_start_matches('/')))
    }

    /// Whether another one says the same; since when is not asked, as some count that anew each time.
    #[must_use]
    pub fn says_the_same(&self, other: &Self) -> bool {
        let Self { id, kind, severity, clusters, detail, advice, since: _, count, key } = other;
        (&self.id, self.kind, self.severity, &self.clusters, self.count, &self.key) == (id, *kind, *severity, clusters, *count, key)
            && self.detail == *detail
            && self.advice == *advice
    }

    /// How many bytes its texts have.
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
    fn the_key_names_the_type_the_one_cluster_and_the_rest() {
        for (id, kind, clusters, key) in [
            ("clusterUnreachable/paris", "clusterUnreachable", vec!["paris"], "problem/clusterUnreachable/paris"),
            ("danglingIdentity/paris/68352", "danglingIdentity", vec!["paris"], "problem/danglingIdentity/paris/68352"),
            ("duplicateAddress/host/10.0.0.1", "duplicateAddress", vec!["paris", "tokyo"], "problem/duplicateAddress/-/host/10.0.0.1"),
            ("overlappingPodCIDR/paris", "overlappingPodCIDR", vec!["paris", "tokyo"], "problem/overlappingPodCIDR/-/paris"),
            ("clusterFileInvalid/Paris.yaml", "clusterFileInvalid", vec![], "problem/clusterFileInvalid/-/Paris.yaml"),
            ("x/paris-2", "x", vec!["paris"], "problem/x/paris/paris-2"),
            ("logGap", "logGap", vec![], "problem/logGap/-"),
        ] {
            let finding = ToldFinding {
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
            let told = finding.stream_key();
            assert_eq!((told.to_string().as_str(), EntryKey::from_cache_form(key)), (key, Some(told.clone())));
        }
    }
}

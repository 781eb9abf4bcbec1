//! The result of a comparison: differences, their reasons, and what was not compared.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::dto::objects::last_change::LastChange;
use crate::dto::status::Cluster;
use crate::dto::values::closed::{Origin, Phase};
use crate::model::{ClusterId, MaxConnectedClusters};

/// Time before a dump within which a change may not have reached the agent yet. Agents apply a
/// change of a remote cluster within seconds; a KVStoreMesh and etcd's watches add some more.
const RECENT_SECONDS: f64 = 60.0;

/// What is wrong with an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum DifferenceKind {
    /// The mirror has the object, and the agent does not.
    Missing,
    /// The agent has the object, and the mirror does not.
    Additional,
    /// Both have the object, with different values.
    Different,
}

impl DifferenceKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Additional => "additional",
            Self::Different => "different",
        }
    }
}

/// Likely reason of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Reason {
    /// The agent has nothing of the cluster.
    AgentNotConnected,
    /// meshkeep itself has old data of the cluster.
    MeshkeepNotConnected,
    /// The object changed shortly before the agent was asked, or afterwards.
    ChangedRecently,
    /// Several clusters announce the prefix.
    SeveralClusters,
    /// The object was deleted.
    Deleted,
    /// meshkeep rejected the newest value.
    Rejected,
}

/// Reason why objects of the agent or of the mirror are not compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum NotCompared {
    /// Objects of clusters that meshkeep does not mirror, such as the agent's own.
    OtherCluster,
    /// Entries with reserved identities that belong to no mirrored node.
    ReservedIdentity,
    /// Identities that the agent allocated itself, for CIDRs of policies.
    LocalIdentity,
    /// Entries of an address family that the agent does not use.
    AddressFamily,
    /// Entries for pod CIDRs, which agents before 1.18 do not have.
    #[serde(rename = "podCIDR")]
    PodCidr,
}

impl NotCompared {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::OtherCluster => "of clusters that meshkeep does not mirror, such as the agent's own",
            Self::ReservedIdentity => "with reserved identities, of no mirrored node",
            Self::LocalIdentity => "with identities of the agent's own policies",
            Self::AddressFamily => "of an address family that the agent does not use",
            Self::PodCidr => "for pod CIDRs, which agents before Cilium 1.18 do not have",
        }
    }
}

/// A value that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FieldDifference {
    pub(super) field: String,
    /// Value in the agent; empty if it has none.
    pub(super) agent: String,
    /// Value in the mirror; empty if it has none.
    pub(super) meshkeep: String,
}

impl FieldDifference {
    /// Compares two values as text.
    pub(super) fn new(field: &str, agent: impl ToString, meshkeep: impl ToString) -> Option<Self> {
        let (field, agent, meshkeep) = (field.to_owned(), agent.to_string(), meshkeep.to_string());
        (agent != meshkeep).then_some(Self { field, agent, meshkeep })
    }

    /// Compares two sets. Only the members that one of them lacks are shown.
    pub(super) fn of_sets<T: Ord + ToString>(field: &str, agent: &BTreeSet<T>, meshkeep: &BTreeSet<T>) -> Option<Self> {
        let text = |one: &BTreeSet<T>, other: &BTreeSet<T>| one.difference(other).map(T::to_string).collect::<Vec<_>>().join(",");
        Self::new(field, text(agent, meshkeep), text(meshkeep, agent))
    }
}

/// An object that the agent and the mirror do not have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Difference {
    pub(super) kind: DifferenceKind,
    /// Prefix, number of the identity, or `cluster/name` of the node; `*` for all objects of a
    /// cluster.
    pub(super) object: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cluster: Option<String>,
    /// Number of objects, if the object is `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) count: Option<usize>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) fields: Vec<FieldDifference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Reason>,
    /// The reason as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<String>,
}

impl Difference {
    pub(super) fn new(kind: DifferenceKind, object: impl ToString, cluster: Option<&str>) -> Self {
        let (object, cluster) = (object.to_string(), cluster.map(str::to_owned));
        Self { kind, object, cluster, count: None, fields: Vec::new(), reason: None, detail: None }
    }

    /// Sets the reason. `None` leaves the difference unexplained.
    pub(super) fn because(mut self, reason: Option<(Reason, String)>) -> Self {
        (self.reason, self.detail) = reason.unzip();
        self
    }
}

/// Result of the comparison of one table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TableComparison {
    /// Number of objects that either side has and that were compared.
    pub(super) compared: usize,
    pub(super) differences: Vec<Difference>,
    pub(super) not_compared: BTreeMap<NotCompared, usize>,
}

impl TableComparison {
    pub(super) fn skip(&mut self, reason: NotCompared) {
        *self.not_compared.entry(reason).or_default() += 1;
    }

    /// Adds the objects that the agent lacks. If it has none of a cluster's objects, they are one
    /// difference.
    pub(super) fn add_missing(&mut self, missing: Vec<Difference>, clusters_of_agent: &BTreeSet<&str>) {
        let mut counts = BTreeMap::<String, usize>::new();
        for difference in missing {
            match difference.cluster.as_ref().filter(|cluster| !clusters_of_agent.contains(cluster.as_str())) {
                Some(cluster) => *counts.entry(cluster.clone()).or_default() += 1,
                None => self.differences.push(difference),
            }
        }
        let whole = counts.into_iter().map(|(cluster, count)| {
            let detail = format!(
                "the agent has nothing of {cluster}: `cilium-dbg status --verbose` on its node shows its connections to other clusters"
            );
            let reason = Some((Reason::AgentNotConnected, detail));
            Difference { count: Some(count), ..Difference::new(DifferenceKind::Missing, "*", Some(&cluster)).because(reason) }
        });
        self.differences.splice(0..0, whole);
    }
}

/// The mirrored clusters, and the time at which the agent was asked.
#[derive(Debug)]
pub(super) struct MirrorFacts {
    clusters: Vec<Cluster>,
    mesh_size: MaxConnectedClusters,
    dump_time: jiff::Timestamp,
}

impl MirrorFacts {
    pub(super) fn new(clusters: Vec<Cluster>, dump_time: jiff::Timestamp) -> Self {
        let sizes = clusters.iter().filter_map(|cluster| cluster.config.as_ref()?.max_connected_clusters);
        let mesh_size = sizes.max().and_then(MaxConnectedClusters::from_number).unwrap_or_default();
        Self { clusters, mesh_size, dump_time }
    }

    pub(super) fn has_cluster(&self, name: &str) -> bool {
        self.clusters.iter().any(|cluster| cluster.name == name)
    }

    pub(super) fn cluster_names(&self) -> Vec<String> {
        self.clusters.iter().map(|cluster| cluster.name.clone()).collect()
    }

    /// Returns the mirrored cluster that allocated an identity.
    pub(super) fn cluster_of_identity(&self, id: u32) -> Option<&str> {
        let ClusterId(owner) = self.mesh_size.cluster_of_identity(id)?;
        self.clusters.iter().find(|cluster| cluster.cluster_id == Some(owner)).map(|cluster| cluster.name.as_str())
    }

    /// Returns the reason why an agent may have another value than the mirror, or none.
    pub(super) fn reason_of_old_value(&self, cluster: &str, change: &LastChange) -> Option<(Reason, String)> {
        self.recent_change(change).or_else(|| self.old_data(cluster))
    }

    /// Returns that an object may have changed too recently. The latest possible time of the change
    /// counts; an object of a first list may be much older than the list.
    fn recent_change(&self, change: &LastChange) -> Option<(Reason, String)> {
        let LastChange { changed_at, changed_between, first_seen_at: _ } = change;
        let latest = changed_at.as_ref().or(changed_between.as_ref().map(|[_, to]| to));
        let seconds = self.dump_time.duration_since(latest?.parse().ok()?).as_secs_f64();
        let detail = match changed_between {
            _ if seconds >= RECENT_SECONDS => return None,
            Some([from, to]) => format!("it changed between {from} and {to}, and the agent was asked at {:.0}", self.dump_time),
            None if seconds >= 0.0 => format!("it changed {seconds:.0} s before the agent was asked"),
            None => "it changed after the agent was asked".to_owned(),
        };
        Some((Reason::ChangedRecently, detail))
    }

    /// Returns that meshkeep has old data of a cluster.
    pub(super) fn old_data(&self, cluster: &str) -> Option<(Reason, String)> {
        let cluster = self.clusters.iter().find(|one| one.name == cluster)?;
        if cluster.origin == Origin::Dump || cluster.phase.as_ref().is_some_and(|phase| *phase == Phase::Live) {
            return None;
        }
        let phase = cluster.phase.as_ref().map_or("noFile", |phase| phase.name());
        let detail = format!("meshkeep is not up to date with {} ({phase}): its own data may be old", cluster.name);
        Some((Reason::MeshkeepNotConnected, detail))
    }
}

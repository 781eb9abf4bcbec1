//! Comparison of an agent's identities with the mirror's.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::comparison::{Difference, DifferenceKind, FieldDifference, MirrorFacts, NotCompared, TableComparison};
use crate::dto::objects::last_change::LastChange;
use crate::dump::agent::AgentIdentity;
use crate::model::{ALLOCATED_IDENTITY_MIN, IdentityScope};

/// An identity of `/v1/identities`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MirrorIdentity {
    id: u32,
    cluster: Option<String>,
    labels: BTreeMap<String, String>,
    #[serde(flatten)]
    change: LastChange,
}

impl MirrorIdentity {
    /// Returns the labels as Cilium prints them (`Label.String` in `pkg/labels`).
    fn printed_labels(&self) -> BTreeSet<String> {
        let print = |(key, value): (&String, &String)| if value.is_empty() { key.clone() } else { format!("{key}={value}") };
        self.labels.iter().map(print).collect()
    }
}

/// Compares the identities of an agent with those of the mirror. Reserved and local identities are
/// not compared.
pub(super) fn compare(agent: &[AgentIdentity], mirror: &[MirrorIdentity], facts: &MirrorFacts) -> TableComparison {
    let mut comparison = TableComparison::default();
    let known: BTreeMap<u32, &AgentIdentity> = agent.iter().map(|identity| (identity.id, identity)).collect();
    let (mut missing, mut clusters_of_agent, mut mirrored) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for identity in mirror {
        let Some(cluster) = identity.cluster.as_deref() else { continue };
        mirrored.insert(identity.id);
        comparison.compared += 1;
        let reason = || facts.reason_of_old_value(cluster, &identity.change);
        let Some(found) = known.get(&identity.id) else {
            missing.push(Difference::new(DifferenceKind::Missing, identity.id, Some(cluster)).because(reason()));
            continue;
        };
        clusters_of_agent.insert(cluster);
        let fields: Vec<_> = FieldDifference::of_sets("labels", &found.labels, &identity.printed_labels()).into_iter().collect();
        if !fields.is_empty() {
            let difference = Difference::new(DifferenceKind::Different, identity.id, Some(cluster)).because(reason());
            comparison.differences.push(Difference { fields, ..difference });
        }
    }
    for id in known.keys().filter(|id| !mirrored.contains(*id)) {
        match (IdentityScope::of(*id), facts.cluster_of_identity(*id)) {
            (IdentityScope::Local | IdentityScope::RemoteNode | IdentityScope::Unknown, _) => comparison.skip(NotCompared::LocalIdentity),
            (IdentityScope::Global, _) if *id < ALLOCATED_IDENTITY_MIN => comparison.skip(NotCompared::ReservedIdentity),
            (IdentityScope::Global, None) => comparison.skip(NotCompared::OtherCluster),
            (IdentityScope::Global, Some(cluster)) => {
                comparison.compared += 1;
                let difference = Difference::new(DifferenceKind::Additional, id, Some(cluster)).because(facts.old_data(cluster));
                comparison.differences.push(difference);
            }
        }
    }
    comparison.add_missing(missing, &clusters_of_agent);
    comparison
}

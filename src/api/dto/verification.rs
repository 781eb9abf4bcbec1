//! Conversion of the results of requested verifications.

use crate::dto::status::{ClusterVerification, KindVerification};
use crate::dto::text::rfc3339;
use crate::handle::ClusterReading;
use crate::model;

impl ClusterVerification {
    /// Converts the newest result of a cluster. `requested` is the number of requests.
    pub(crate) fn new(cluster: &ClusterReading, requested: u64) -> Self {
        let run = cluster.status.as_ref().and_then(|status| status.verification_run.as_ref());
        Self {
            cluster: cluster.name.to_string(),
            phase: cluster.phase.map(Into::into),
            requested,
            answered: run.map_or(0, |run| run.number),
            ended_at: run.map(|run| rfc3339(run.ended)),
            values: run.is_some_and(|run| run.with_values),
            kinds: run.into_iter().flat_map(|run| &run.kinds).map(KindVerification::from).collect(),
        }
    }
}

impl From<&model::KindVerification> for KindVerification {
    fn from(one: &model::KindVerification) -> Self {
        Self {
            kind: one.kind.into(),
            compared: one.compared,
            keys_compared: one.key_count,
            revision: one.revision.map(|revision| revision.0),
            differing_count: one.differing_count,
            differing: one.differing.clone(),
        }
    }
}

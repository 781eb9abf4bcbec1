//! The summary of all clusters at one position, and what is computed from it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::handle::reading::{Reading, stored_age};
use crate::handle::summary::{ClusterSummary, MeshSummary};
use crate::model::{Kind, Origin, Phase};

impl Reading {
    /// Returns the facts about all clusters at this position.
    #[must_use]
    pub fn summary(&self) -> Arc<MeshSummary> {
        let version = self.published.view.source_version();
        self.summary.get(version, &self.statuses, || self.summarize(version))
    }

    /// Returns the number of clusters in each phase.
    #[must_use]
    pub fn phase_counts(&self) -> BTreeMap<Phase, u64> {
        let summary = self.summary();
        let mut counts = summary.phases.clone();
        for status in &summary.unannounced {
            *counts.entry(status.borrow().phase).or_default() += 1;
        }
        counts
    }

    /// Returns the age of a cluster's data, as [`Reading::source`] does.
    #[must_use]
    pub fn age_of(&self, cluster: &ClusterSummary) -> Option<Duration> {
        let age = cluster.status.as_ref().and_then(|status| {
            let status = status.borrow();
            status.last_contact.map(|contact| status.writer.age(contact, self.now))
        });
        age.or_else(|| stored_age(self.published.view.cluster(&cluster.name)?.last_contact))
    }

    fn summarize(&self, source_version: u64) -> MeshSummary {
        let (view, statuses) = (&self.published.view, &self.statuses);
        let (mut phases, mut unannounced, mut live_count) = (BTreeMap::new(), Vec::new(), 0);
        let (mut never_read, mut restored, mut unread_nodes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut clusters, mut has_first_lists) = (Vec::new(), false);
        for name in view.cluster_names().into_iter().filter(|name| self.is_known(name)) {
            let origins = Kind::ALL.map(|kind| self.origin(&name, kind));
            let status = statuses.get(&name).cloned();
            let phase = view.phase(&name);
            match (phase, &status) {
                (Some(phase), _) => *phases.entry(phase).or_default() += 1,
                (None, Some(status)) => unannounced.push(status.clone()),
                (None, None) => {}
            }
            let (ip, node) = (origins[Kind::Ip.index()], origins[Kind::Node.index()]);
            match ip.min(node) {
                Origin::NeverRead => never_read.push(name.clone()),
                Origin::Restored => restored.push(name.clone()),
                Origin::Live | Origin::Dump => {}
            }
            if node == Origin::NeverRead {
                unread_nodes.push(name.clone());
            }
            let is_live = phase == Some(Phase::Live) && origins.iter().all(|origin| *origin == Origin::Live);
            live_count += usize::from(is_live && status.is_some());
            has_first_lists |= phase == Some(Phase::Listing) && origins.contains(&Origin::NeverRead);
            let config_id = view.cluster(&name).and_then(|record| record.config.as_ref()).map(|config| config.id);
            clusters.push(ClusterSummary { name, origins, config_id, status });
        }
        let is_synced = live_count == statuses.len();
        let statuses = Arc::clone(statuses);
        MeshSummary {
            source_version,
            statuses,
            clusters,
            phases,
            unannounced,
            never_read,
            restored,
            unread_nodes,
            is_synced,
            has_first_lists,
        }
    }
}

#[cfg(test)]
mod tests;

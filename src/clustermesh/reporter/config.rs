//! Reports about the cluster config: it is missing, cannot be used, or was read.

use std::time::Instant;

use super::Reporter;
use crate::model::{ClusterStatus, Kind, MissingConfig, MissingConfigState, Phase};
use crate::wire::keys::cluster_config_key;

impl Reporter {
    /// Enters the phase of a new connection. A cluster without a config stays in `readingConfig`,
    /// because the next connection probably leads to the same etcd.
    pub(in crate::clustermesh) fn enter_connecting(&self) {
        let keeps_phase = |status: &ClusterStatus| status.missing_config.is_some() && status.phase == Phase::ReadingConfig;
        if !keeps_phase(&self.status.borrow()) {
            self.enter_phase(Phase::Connecting);
        }
    }

    /// Clears the report of a missing config. It is no longer valid: the config exists, or the next
    /// connection may lead to another etcd.
    pub(in crate::clustermesh) fn forget_missing_config(&self) {
        self.status.send_if_modified(|status| status.missing_config.take().is_some());
    }

    /// Reports that the etcd has no config of the cluster, or none that the user may read, and
    /// which clusters the etcd describes instead.
    pub(in crate::clustermesh) fn set_missing_config(&self, missing: MissingConfig) {
        let reason = missing.describe(&self.cluster);
        self.status.send_if_modified(|status| {
            let since = status.missing_config.as_ref().map_or_else(Instant::now, |known| known.since);
            let state = Some(MissingConfigState { since, missing });
            let changed = status.missing_config != state;
            status.missing_config = state;
            changed
        });
        self.enter_waiting(Phase::ReadingConfig, &reason);
    }

    /// Reports an unusable cluster config with its bytes and the reason. `None` clears the report.
    pub(in crate::clustermesh) fn set_config_refusal(&self, refused: Option<(&[u8], &str)>) {
        if refused.is_some() {
            self.forget_missing_config();
        }
        let key = cluster_config_key(&self.cluster);
        self.set_refused_keys(Kind::Cluster, refused.map(|(value, reason)| (key.as_bytes(), value, reason)));
    }
}

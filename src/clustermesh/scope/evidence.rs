//! Reads the evidence that decides whether a delete is trusted (docs/develop/invariants.md, 4).

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;

use super::super::connection_error::ConnectionError;
use super::super::resync::{DeleteEvidence, WriterKey};
use super::ScopeTask;
use crate::model::{ClusterId, EntryKey, LeaseId};
use crate::wire::keys;
use cilium_kvstore::{Event, KeyValue, LeaseLife};

/// Number of leases that are read at the same time. A lost source has one lease per thousand keys,
/// and each answer takes a round trip.
const CONCURRENT_LEASE_READS: usize = 16;

impl ScopeTask<'_> {
    /// Returns the evidence for the deletes among `events`. It is read once, after all of the
    /// events have arrived, so it is never older than they are.
    pub(super) async fn event_evidence(&mut self, events: &[Event]) -> Result<DeleteEvidence, ConnectionError> {
        if events.iter().all(|event| matches!(event, Event::Put(_))) {
            return Ok(DeleteEvidence::default());
        }
        let mut evidence = self.writer_key_evidence(false).await?;
        if self.source.info.cached {
            let leases = self.leases_of_deleted(events).await;
            evidence.lost = self.keys_without_lease(leases).await?;
        }
        Ok(evidence)
    }

    /// Returns the evidence for the deletion of keys that are missing from a list or comparison.
    pub(super) async fn missing_key_evidence(&mut self, missing: &[&EntryKey]) -> Result<DeleteEvidence, ConnectionError> {
        if missing.is_empty() {
            return Ok(DeleteEvidence::default());
        }
        let mut evidence = self.writer_key_evidence(true).await?;
        if self.source.info.cached {
            let mirror = self.context.mirror.current();
            let lease = |key: &EntryKey| mirror.view.record(key).map(|record| record.source.lease);
            let leases = missing.iter().filter_map(|key| Some(((*key).clone(), lease(key)?))).collect();
            evidence.lost = self.keys_without_lease(leases).await?;
        }
        Ok(evidence)
    }

    /// Reads the cluster config and the canary, if the cluster writes them. Also reads their leases
    /// if `with_leases` is true.
    pub(super) async fn writer_key_evidence(&self, with_leases: bool) -> Result<DeleteEvidence, ConnectionError> {
        let (source, cluster) = (&self.source.info, &self.scope.cluster);
        let config = (source.cluster_id != ClusterId(0)).then(|| keys::cluster_config_key(cluster));
        let canary = source.canaries.then(|| keys::canary_key(self.scope.kind, cluster, source.cached));
        let keys: Vec<Vec<u8>> = config.iter().chain(&canary).map(|key| key.clone().into_bytes()).collect();
        if keys.is_empty() {
            return Ok(DeleteEvidence::default());
        }
        let (key_values, _) = self.source.connection.get_many(&keys).await?;
        let mut key_values = key_values.into_iter();
        let mut evidence = DeleteEvidence::default();
        for (expected, key) in [(config.is_some(), &mut evidence.config), (canary.is_some(), &mut evidence.canary)] {
            if expected {
                *key = self.writer_key(key_values.next().flatten(), with_leases).await?;
            }
        }
        Ok(evidence)
    }

    async fn writer_key(&self, key_value: Option<KeyValue>, with_lease: bool) -> Result<WriterKey, ConnectionError> {
        let Some(key_value) = key_value else { return Ok(WriterKey::Deleted) };
        let (created, lease) = (key_value.create_revision, key_value.lease);
        let life = if with_lease { self.source.connection.lease_life(lease).await? } else { LeaseLife::Unknown };
        Ok(WriterKey::Present { created, lease, life })
    }

    /// Returns the lease of each deleted key: the lease of its last put among the events, otherwise
    /// the lease in the mirror.
    async fn leases_of_deleted(&self, events: &[Event]) -> Vec<(EntryKey, LeaseId)> {
        let mirror = self.applied_mirror().await;
        let mut put: BTreeMap<&[u8], LeaseId> = BTreeMap::new();
        let mut leases = Vec::new();
        for event in events {
            match event {
                Event::Put(key_value) => {
                    put.insert(&key_value.key, key_value.lease);
                }
                Event::Delete { key, .. } => {
                    let Some(entry) = self.entry_key(key) else { continue };
                    let stored = || mirror.view.record(&entry).map(|record| record.source.lease);
                    let lease = put.get(key.as_slice()).copied().or_else(stored);
                    leases.extend(lease.map(|lease| (entry, lease)));
                }
            }
        }
        leases
    }

    /// Returns the keys whose lease does not exist any more. Each lease is read once per call, and
    /// never again once it has expired.
    async fn keys_without_lease(&mut self, leases: Vec<(EntryKey, LeaseId)>) -> Result<BTreeSet<EntryKey>, ConnectionError> {
        let unknown: BTreeSet<LeaseId> =
            leases.iter().map(|(_, lease)| *lease).filter(|lease| lease.0 != 0 && !self.expired_leases.contains(lease)).collect();
        for chunk in unknown.into_iter().collect::<Vec<_>>().chunks(CONCURRENT_LEASE_READS) {
            let connection = &self.source.connection;
            let lives = try_join_all(chunk.iter().map(|lease| connection.lease_life(*lease))).await?;
            let expired = chunk.iter().zip(lives).filter(|(_, life)| *life == LeaseLife::NotFound);
            self.expired_leases.extend(expired.map(|(lease, _)| *lease));
        }
        Ok(leases.into_iter().filter(|(_, lease)| self.expired_leases.contains(lease)).map(|(key, _)| key).collect())
    }
}

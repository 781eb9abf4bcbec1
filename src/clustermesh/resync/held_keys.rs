//! The rules for holds (docs/develop/invariants.md, 4): which deletes of a source are held, and
//! when a hold ends.
//!
//! Every key in a source has a lease. When a KVStoreMesh or clustermesh-apiserver dies, its leases
//! expire and its keys disappear as ordinary deletes. A client renews its leases after each third
//! of their TTL, so between two thirds and all of a TTL is left when the client dies. The deletes
//! are therefore spread over a third of the TTL. The rules here follow from this; docs/use/holds.md
//! explains them to users. Pure: the state of the source is passed in as [`DeleteEvidence`], the
//! time as an argument.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{Resync, ResyncState, ResyncStep};
use crate::model::{Change, Command, EntryKey, LeaseId, Revision};
use cilium_kvstore::LeaseLife;

/// TTL of a lease if none of the writer's keys reports one: Cilium's default (`kvstore-lease-ttl`,
/// 15 minutes, `pkg/defaults`).
const LEASE_TTL_DEFAULT: Duration = Duration::from_secs(900);

/// Number of renewals of a lease within its TTL: a client renews it after each third (etcd's
/// `clientv3/lease.go`).
const RENEWALS_PER_TTL: u32 = 3;

/// Evidence for or against deletes of one kind of a cluster. It is never older than the deletes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteEvidence {
    /// State of the cluster config.
    pub config: WriterKey,
    /// State of the canary of the kind.
    pub canary: WriterKey,
    /// Deleted keys whose lease does not exist any more.
    pub lost: BTreeSet<EntryKey>,
}

/// State of the cluster config or of a canary, which exist while their writer is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriterKey {
    /// The cluster does not write this key: it is a legacy cluster, or it has no canaries.
    #[default]
    NotWritten,
    /// The key existed before and was deleted.
    Deleted,
    /// The key exists.
    Present {
        /// Create revision. It changes if the key is deleted and written again.
        created: Revision,
        /// Lease of the key.
        lease: LeaseId,
        /// State of the lease; `Unknown` if it was not read.
        life: LeaseLife,
    },
}

/// Relation of the history in which a list was read to the stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HistoryMatch {
    /// The stored history.
    Same,
    /// Another history, in which the leases of the stored keys mean nothing.
    Other,
    /// Possibly the stored history.
    Unknown,
}

/// Held keys of one kind of one cluster, and the observation of the writer that ends their hold.
#[derive(Debug, Default)]
pub(super) struct HeldKeys {
    keys: BTreeSet<EntryKey>,
    /// True if a list or a comparison found some of the keys missing. The time of their deletion is
    /// then unknown, and etcd may have been restarted since, which resets the remaining time of
    /// every lease.
    found_by_list: bool,
    observation: Option<HoldObservation>,
}

/// State of the writer's two keys when an uninterrupted observation of them began.
#[derive(Debug)]
struct HoldObservation {
    since: Instant,
    config: WriterKey,
    canary: WriterKey,
}

impl WriterKey {
    fn is_deleted(&self) -> bool {
        matches!(self, Self::Deleted)
    }

    /// Returns whether the writer renewed the lease within the last half of its TTL, so that no
    /// other key of the writer can have expired. A key without a lease, or with an unknown one,
    /// counts as fresh.
    fn is_fresh(&self) -> bool {
        match self {
            Self::NotWritten => true,
            Self::Deleted | Self::Present { life: LeaseLife::NotFound, .. } => false,
            Self::Present { life: LeaseLife::Unknown, .. } => true,
            Self::Present { life: LeaseLife::Alive { granted, remaining }, .. } => *remaining * 2 >= *granted,
        }
    }

    fn lease_ttl(&self) -> Option<Duration> {
        match self {
            Self::Present { life: LeaseLife::Alive { granted, .. }, .. } => Some(*granted),
            Self::NotWritten | Self::Deleted | Self::Present { .. } => None,
        }
    }

    fn created(&self) -> Option<Revision> {
        match self {
            Self::Present { created, .. } => Some(*created),
            Self::NotWritten | Self::Deleted => None,
        }
    }

    /// Returns whether the lease was renewed or replaced between `before` and now. True if that
    /// cannot be determined.
    fn was_renewed_since(&self, before: &Self, elapsed: Duration) -> bool {
        let (Self::Present { lease: lease_before, life: old, .. }, Self::Present { lease: lease_now, life: new, .. }) = (before, self)
        else {
            return true;
        };
        match (old, new) {
            _ if lease_before != lease_now => true,
            (LeaseLife::Alive { remaining: remaining_before, .. }, LeaseLife::Alive { granted, remaining: remaining_now }) => {
                // half the time between two renewals, because etcd reports whole seconds
                *remaining_now + elapsed > *remaining_before + *granted / (2 * RENEWALS_PER_TTL)
            }
            (LeaseLife::NotFound, _) | (_, LeaseLife::NotFound) => false,
            (LeaseLife::Unknown, _) | (_, LeaseLife::Unknown) => true,
        }
    }
}

impl DeleteEvidence {
    /// Returns whether a key that is missing at the source must be held. `cached` says that the
    /// source is a KVStoreMesh's copy.
    pub(super) fn requires_hold(&self, key: &EntryKey, cached: bool, history: HistoryMatch) -> bool {
        if self.config.is_deleted() || self.canary.is_deleted() {
            return true;
        }
        match history {
            _ if !cached => false,
            HistoryMatch::Same | HistoryMatch::Unknown => self.lost.contains(key),
            HistoryMatch::Other => !self.config.is_fresh() || !self.canary.is_fresh(),
        }
    }
}

impl HeldKeys {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn contains(&self, key: &EntryKey) -> bool {
        self.keys.contains(key)
    }

    /// Holds or deletes a key that is missing at the source. `found_by_list` says that a list or a
    /// comparison found it missing.
    pub(super) fn delete_or_hold(&mut self, key: EntryKey, hold: bool, found_by_list: bool) -> Change {
        if hold {
            self.keys.insert(key.clone());
            self.found_by_list |= found_by_list;
            self.observation = None;
            Change::Hold { key }
        } else {
            self.keys.remove(&key);
            Change::Delete { key }
        }
    }

    /// Ends the hold of a key that exists again.
    pub(super) fn release(&mut self, key: &EntryKey) {
        self.keys.remove(key);
        self.reset_if_empty();
    }

    /// Forgets all holds for a new connection, which finds the missing keys again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Ends all holds and returns their keys.
    pub(super) fn release_all(&mut self) -> Vec<EntryKey> {
        let keys = std::mem::take(&mut self.keys).into_iter().collect();
        self.reset_if_empty();
        keys
    }

    /// Returns whether the holds are over.
    ///
    /// The cluster config and the canary must have existed, without interruption, for a third of
    /// the TTL and a margin. That is the longest time by which the leases of a dead writer can
    /// outlive each other. A restart of etcd may have extended the leases of a dead writer. If that
    /// is possible, both keys must also have been renewed, or have outlived a whole TTL and the
    /// margin.
    pub(super) fn are_holds_over(&mut self, evidence: &DeleteEvidence, now: Instant, margin: Duration) -> bool {
        if self.keys.is_empty() || evidence.config.is_deleted() || evidence.canary.is_deleted() {
            self.observation = None;
            return false;
        }
        let created = |config: &WriterKey, canary: &WriterKey| (config.created(), canary.created());
        let uninterrupted = |observation: &&HoldObservation| {
            created(&observation.config, &observation.canary) == created(&evidence.config, &evidence.canary)
        };
        let Some(observation) = self.observation.as_ref().filter(uninterrupted) else {
            self.observation = Some(HoldObservation { since: now, config: evidence.config, canary: evidence.canary });
            return false;
        };
        let elapsed = now.saturating_duration_since(observation.since);
        let ttl = [evidence.config.lease_ttl(), evidence.canary.lease_ttl()].into_iter().flatten().max().unwrap_or(LEASE_TTL_DEFAULT);
        let renewed = || {
            evidence.config.was_renewed_since(&observation.config, elapsed)
                && evidence.canary.was_renewed_since(&observation.canary, elapsed)
        };
        elapsed >= ttl + margin || (elapsed >= ttl / RENEWALS_PER_TTL + margin && (!self.found_by_list || renewed()))
    }

    fn reset_if_empty(&mut self) {
        if self.keys.is_empty() {
            (self.found_by_list, self.observation) = (false, None);
        }
    }
}

impl Resync {
    /// If the hold is over, lists the keys again and removes the absent ones.
    pub(super) fn check_hold(&mut self, evidence: &DeleteEvidence, now: Instant, margin: Duration) -> ResyncStep {
        match (&self.state, &self.cursor) {
            (ResyncState::Watching { prune_pending: false }, Some(cursor)) if self.held_keys.are_holds_over(evidence, now, margin) => {
                self.interrupts_watch = true;
                let cursor = cursor.clone();
                self.list_changes(cursor, true)
            }
            _ => ResyncStep::default(),
        }
    }

    /// Ends all holds and removes their entries.
    pub(super) fn revoke(&mut self) -> ResyncStep {
        if !matches!(self.state, ResyncState::Watching { .. }) {
            return ResyncStep::default();
        }
        let changes = self.held_keys.release_all().into_iter().map(|key| Change::Delete { key }).collect();
        let (scope, cursor) = (self.scope.clone(), self.cursor.clone());
        ResyncStep { commands: vec![Command::Apply { scope, changes, cursor }], ..ResyncStep::default() }
    }
}

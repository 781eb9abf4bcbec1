//! The rules for holds (docs/develop/invariants.md, 4): which deletes of a source are held, and
//! when a hold ends.
//!
//! Every key in a source has a lease. When a KVStoreMesh or clustermesh-apiserver dies, its leases
//! expire and its keys disappear as ordinary deletes. A client renews its leases after each third
//! of their TTL, so between two thirds and all of a TTL is left when it dies. The deletes are
//! therefore spread over a third of the TTL. The rules here follow from this; docs/use/holds.md
//! explains them to users. Pure: the state of the source is passed in as [`Signs`], the time as an
//! argument.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::model::{Change, EntryKey, LeaseId, Revision};
use cilium_kvstore::LeaseLife;

/// TTL of a lease if no sign reports one: Cilium's default (`kvstore-lease-ttl`, 15 minutes,
/// `pkg/defaults`).
const LEASE_LIFE_DEFAULT: Duration = Duration::from_secs(900);

/// Number of renewals of a lease within its TTL: a client renews it after each third (etcd's
/// `clientv3/lease.go`).
const RENEWALS_PER_LIFE: u32 = 3;

/// Evidence for or against deletes of one kind of a cluster. It is never older than the deletes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signs {
    /// Sign of the cluster config.
    pub config: Sign,
    /// Sign of the canary of the kind.
    pub canary: Sign,
    /// Deleted keys whose lease does not exist any more.
    pub lost: BTreeSet<EntryKey>,
}

/// State of the cluster config or of a canary, which exist while their writer is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sign {
    /// The cluster does not write this key: it is a legacy cluster, or it has no canaries.
    #[default]
    NotExpected,
    /// The key existed before and was deleted.
    Gone,
    /// The key exists.
    Standing {
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
pub(super) enum History {
    /// The stored history.
    Same,
    /// Another history, in which the leases of the stored keys mean nothing.
    Other,
    /// Possibly the stored history.
    Unknown,
}

/// Held keys of one kind of one cluster, and the observation of the signs that ends their hold.
#[derive(Debug, Default)]
pub(super) struct Holds {
    keys: BTreeSet<EntryKey>,
    /// True if a list or a comparison found some of the keys missing. The time of their deletion is
    /// then unknown, and etcd may have been restarted since, which resets the remaining time of
    /// every lease.
    found_gone: bool,
    vigil: Option<Vigil>,
}

/// Observation of the signs since a moment from which both have existed.
#[derive(Debug)]
struct Vigil {
    since: Instant,
    config: Sign,
    canary: Sign,
}

impl Sign {
    fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }

    /// Returns whether the sign's writer was alive within the last half of the lease's TTL, so that
    /// no other key of the writer can have expired. A sign without a lease, or with an unknown one,
    /// counts as fresh.
    fn is_fresh(&self) -> bool {
        match self {
            Self::NotExpected => true,
            Self::Gone | Self::Standing { life: LeaseLife::Gone, .. } => false,
            Self::Standing { life: LeaseLife::Unknown, .. } => true,
            Self::Standing { life: LeaseLife::Alive { granted, remaining }, .. } => *remaining * 2 >= *granted,
        }
    }

    fn granted(&self) -> Option<Duration> {
        match self {
            Self::Standing { life: LeaseLife::Alive { granted, .. }, .. } => Some(*granted),
            Self::NotExpected | Self::Gone | Self::Standing { .. } => None,
        }
    }

    fn created(&self) -> Option<Revision> {
        match self {
            Self::Standing { created, .. } => Some(*created),
            Self::NotExpected | Self::Gone => None,
        }
    }

    /// Returns whether the lease was renewed or replaced between `before` and now. True if that
    /// cannot be determined.
    fn was_renewed_since(&self, before: &Self, elapsed: Duration) -> bool {
        let (Self::Standing { lease: then, life: old, .. }, Self::Standing { lease: now, life: new, .. }) = (before, self) else {
            return true;
        };
        match (old, new) {
            _ if then != now => true,
            (LeaseLife::Alive { remaining: left_then, .. }, LeaseLife::Alive { granted, remaining: left_now }) => {
                // half the time between two renewals, because etcd reports whole seconds
                *left_now + elapsed > *left_then + *granted / (2 * RENEWALS_PER_LIFE)
            }
            (LeaseLife::Gone, _) | (_, LeaseLife::Gone) => false,
            (LeaseLife::Unknown, _) | (_, LeaseLife::Unknown) => true,
        }
    }
}

impl Signs {
    /// Returns whether a key that is missing at the source must be held. `cached` says that the
    /// source is a KVStoreMesh's copy.
    pub(super) fn hold(&self, key: &EntryKey, cached: bool, history: History) -> bool {
        if self.config.is_gone() || self.canary.is_gone() {
            return true;
        }
        match history {
            _ if !cached => false,
            History::Same | History::Unknown => self.lost.contains(key),
            History::Other => !self.config.is_fresh() || !self.canary.is_fresh(),
        }
    }
}

impl Holds {
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(super) fn has(&self, key: &EntryKey) -> bool {
        self.keys.contains(key)
    }

    /// Holds or deletes a key that is missing at the source. `found` says that a list or a
    /// comparison noticed it.
    pub(super) fn gone(&mut self, key: EntryKey, hold: bool, found: bool) -> Change {
        if hold {
            self.keys.insert(key.clone());
            self.found_gone |= found;
            self.vigil = None;
            Change::Hold { key }
        } else {
            self.keys.remove(&key);
            Change::Delete { key }
        }
    }

    /// Ends the hold of a key that exists again.
    pub(super) fn came(&mut self, key: &EntryKey) {
        self.keys.remove(key);
        self.tidy();
    }

    /// Forgets all holds for a new connection, which finds the missing keys again.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Ends all holds and returns their keys.
    pub(super) fn take(&mut self) -> Vec<EntryKey> {
        let keys = std::mem::take(&mut self.keys).into_iter().collect();
        self.tidy();
        keys
    }

    /// Returns whether the holds are over.
    ///
    /// Both signs must have existed, without interruption, for a third of the TTL and a margin.
    /// That is the longest time by which the leases of a dead writer can outlive each other. A
    /// restart of etcd may have extended the leases of a dead writer. If that is possible, the
    /// signs must also have been renewed, or have outlived a whole TTL and the margin.
    pub(super) fn is_over(&mut self, signs: &Signs, now: Instant, margin: Duration) -> bool {
        if self.keys.is_empty() || signs.config.is_gone() || signs.canary.is_gone() {
            self.vigil = None;
            return false;
        }
        let created = |config: &Sign, canary: &Sign| (config.created(), canary.created());
        let unbroken = |vigil: &&Vigil| created(&vigil.config, &vigil.canary) == created(&signs.config, &signs.canary);
        let Some(vigil) = self.vigil.as_ref().filter(unbroken) else {
            self.vigil = Some(Vigil { since: now, config: signs.config, canary: signs.canary });
            return false;
        };
        let elapsed = now.saturating_duration_since(vigil.since);
        let life = [signs.config.granted(), signs.canary.granted()].into_iter().flatten().max().unwrap_or(LEASE_LIFE_DEFAULT);
        let renewed = || signs.config.was_renewed_since(&vigil.config, elapsed) && signs.canary.was_renewed_since(&vigil.canary, elapsed);
        elapsed >= life + margin || (elapsed >= life / RENEWALS_PER_LIFE + margin && (!self.found_gone || renewed()))
    }

    fn tidy(&mut self) {
        if self.keys.is_empty() {
            (self.found_gone, self.vigil) = (false, None);
        }
    }
}

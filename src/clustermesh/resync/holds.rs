//! The source's loss is not deletion (docs/develop/invariants.md, 4): which deletes are held, and when a hold ends.
//!
//! Everything in a source hangs on leases. A KVStoreMesh (or clustermesh-apiserver) that dies lets them expire, and what it wrote
//! vanishes as ordinary deletes, spread over a third of a lease's life: a client renews its leases at every third, so that each has
//! between two thirds and all of its life left when the client dies. From this follows all that is decided here; docs/use/holds.md says it
//! for people. Pure: what was read of the source comes in as [`Signs`], the time as an argument.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::kvstore::LeaseLife;
use crate::model::{Change, EntryKey, LeaseId, Revision};

/// The life of a lease where nobody says it: Cilium's default (`kvstore-lease-ttl`, 15 minutes, `pkg/defaults`).
const LEASE_LIFE_DEFAULT: Duration = Duration::from_secs(900);

/// How often a living client renews a lease within its life (etcd's `clientv3/lease.go`: at every third).
const RENEWALS_PER_LIFE: u32 = 3;

/// What vouches for the deletes of a cluster's kind, as of one moment not before them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signs {
    /// The cluster config.
    pub config: Sign,
    /// The canary of the kind.
    pub canary: Sign,
    /// Of the keys in question, those whose lease is gone from the source.
    pub lost: BTreeSet<EntryKey>,
}

/// One of the two keys that a living writer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sign {
    /// The cluster has none: it is read as one from before there were any, or it announces no canaries.
    #[default]
    NotExpected,
    /// It was there, and is not.
    Gone,
    /// It is there.
    Standing {
        /// When it was created: another one was deleted in between.
        created: Revision,
        /// The lease that it hangs on.
        lease: LeaseId,
        /// How that is; `Unknown` where nobody asked.
        life: LeaseLife,
    },
}

/// What is known of the history that a list was read in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum History {
    /// The stored one.
    Same,
    /// Another one: the leases that the stored keys hung on mean nothing in it.
    Other,
    /// Perhaps the stored one.
    Unknown,
}

/// The held keys of one kind of one cluster, and the watch over the signs that ends their hold.
#[derive(Debug, Default)]
pub(super) struct Holds {
    keys: BTreeSet<EntryKey>,
    /// Some were found gone by a list or a comparison: it is not known when they went, nor whether etcd was restarted since, which
    /// gives every lease its full life again.
    found_gone: bool,
    vigil: Option<Vigil>,
}

/// Both signs have stood since.
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

    /// Whether its writer must have been alive within the last half of a lease's life, so that nothing else that it wrote can have
    /// expired. A sign on no lease, or on one that cannot be asked for, says nothing against it.
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

    /// Whether somebody renewed its lease, or put it on another one, between `before` and now. True where that cannot be seen.
    fn was_renewed_since(&self, before: &Self, elapsed: Duration) -> bool {
        let (Self::Standing { lease: then, life: old, .. }, Self::Standing { lease: now, life: new, .. }) = (before, self) else {
            return true;
        };
        match (old, new) {
            _ if then != now => true,
            (LeaseLife::Alive { remaining: left_then, .. }, LeaseLife::Alive { granted, remaining: left_now }) => {
                // half a renewal's step: etcd tells whole seconds
                *left_now + elapsed > *left_then + *granted / (2 * RENEWALS_PER_LIFE)
            }
            (LeaseLife::Gone, _) | (_, LeaseLife::Gone) => false,
            (LeaseLife::Unknown, _) | (_, LeaseLife::Unknown) => true,
        }
    }
}

impl Signs {
    /// Whether a key that is gone from the source has to stay. `cached`: the source is a copy made by a KVStoreMesh.
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
    /// How many keys are held.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether a key is held.
    pub(super) fn has(&self, key: &EntryKey) -> bool {
        self.keys.contains(key)
    }

    /// What to do about a key that is gone from the source.
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

    /// A key is there again.
    pub(super) fn came(&mut self, key: &EntryKey) {
        self.keys.remove(key);
        self.tidy();
    }

    /// A new connection: what is held is found gone again, or not.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }

    /// Gives up every held key.
    pub(super) fn take(&mut self) -> Vec<EntryKey> {
        let keys = std::mem::take(&mut self.keys).into_iter().collect();
        self.tidy();
        keys
    }

    /// Whether the hold is over. It is when both signs have stood, unbroken, for as long as the leases of a writer that died can
    /// outlive each other, a third of a life. Where a restart of etcd could have given the leases of a dead writer their life
    /// back, somebody must have renewed them meanwhile, or they must have outlived a whole life.
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

//! Commands from the tasks of remote clusters to the committer, and the cursors that record the
//! progress of the mirror.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

#[cfg(doc)]
use crate::model::ObservationGap;
use crate::model::{ClusterName, ClusterRecord, EntryKey, EtcdClusterId, FindingChange, Kind, Object, Phase, Revision, SourceStamp};

/// One kind of one cluster: listed, watched, confirmed and pruned as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// Cluster of the scope.
    pub cluster: ClusterName,
    /// Kind of the scope's objects.
    pub kind: Kind,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.kind)
    }
}

/// One change of one key at the source.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The key has a new value.
    Put {
        /// Key that was put.
        key: EntryKey,
        /// Raw bytes as in the source.
        value: Arc<[u8]>,
        /// Decoded object, or why the bytes cannot be used.
        decoded: Result<Arc<Object>, Arc<str>>,
        /// Revision and lease of the value.
        source: SourceStamp,
    },
    /// The key was deleted.
    Delete {
        /// Key that was deleted.
        key: EntryKey,
    },
    /// The source lost the key: the entry stays and is marked as held (docs/develop/invariants.md,
    /// 4).
    Hold {
        /// Key that the source lost.
        key: EntryKey,
    },
}

/// Newest stored put of a scope: its key had exactly these bytes at this revision
/// (docs/develop/measurements.md §2 calls it M).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutPoint {
    /// The key as the *source* names it.
    pub source_key: Vec<u8>,
    /// Mod revision of the key.
    pub revision: Revision,
    /// SHA-256 of the bytes and, if the key has a lease, of the lease.
    pub value_digest: [u8; 32],
}

/// Newest stored delete of a scope: its key existed before this revision and did not exist at it
/// (docs/develop/measurements.md §2 calls it D).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletePoint {
    /// The key as the *source* names it.
    pub source_key: Vec<u8>,
    /// The revision that deleted it.
    pub revision: Revision,
}

/// Canary of a scope when the scope was complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanaryPoint {
    /// Mod revision of the canary.
    pub revision: Revision,
    /// Value of the canary, a time stamp.
    pub value: Vec<u8>,
}

/// Progress of a scope: complete up to `revision`, in one history of one etcd. A scope has no
/// cursor while it is listed (docs/develop/invariants.md, 1 and 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The etcd that the revisions belong to.
    pub etcd_cluster_id: EtcdClusterId,
    /// The scope is complete up to and including this revision.
    pub revision: Revision,
    /// Whether the source's keys were in cache form.
    pub cached: bool,
    /// Newest put at or below `revision`; `None` if the scope was empty and has seen none.
    pub last_put: Option<PutPoint>,
    /// Newest delete at or below `revision` that was seen.
    pub last_delete: Option<DeletePoint>,
    /// Canary, if the cluster announces canaries.
    pub canary: Option<CanaryPoint>,
}

impl Cursor {
    /// Creates a cursor without a put, a delete and a canary.
    #[must_use]
    pub const fn new(etcd_cluster_id: EtcdClusterId, revision: Revision, cached: bool) -> Self {
        Self { etcd_cluster_id, revision, cached, last_put: None, last_delete: None, canary: None }
    }
}

/// Why a key was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeleteReason {
    /// The source deleted it.
    Deleted,
    /// The key's cluster was removed from the mesh.
    ClusterRemoved,
}

/// Record of a deleted entry, so that subscribers can resume at positions before the deletion.
#[derive(Debug, Clone, PartialEq)]
pub struct Tombstone {
    /// Key that was deleted.
    pub key: EntryKey,
    /// Reason of the deletion.
    pub reason: DeleteReason,
    /// Time of the deletion.
    pub time: SystemTime,
}

/// Command to the committer. Each command is applied, announced and stored as one atomic step.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Begins an [`ObservationGap`] of the scope: changes that follow may have happened at any time
    /// after the last contact. A gap that already exists continues.
    BeginObservationGap {
        /// Scope that was not observed.
        scope: Scope,
        /// Time up to which it was observed; `None` if it was never complete.
        last_contact: Option<SystemTime>,
    },
    /// Ends the current [`ObservationGap`] of the scope, if there is one: changes that follow are
    /// seen when they happen.
    EndObservationGap(Scope),
    /// Starts a full list of the scope: clears its cursor, and marks all its entries as not yet
    /// confirmed by this list.
    BeginList(Scope),
    /// Applies changes of one scope. It has a cursor if the changes complete a source revision or a
    /// list, and none inside a list. Entries that a complete list did not confirm stay,
    /// unconfirmed, until they are deleted or [`Command::Prune`] follows (invariant 3).
    Apply {
        /// Scope of all the keys.
        scope: Scope,
        /// Changes in the order of the source.
        changes: Vec<Change>,
        /// New cursor, stored with the changes.
        cursor: Option<Cursor>,
    },
    /// Removes every key of the scope that neither the last list nor a later change confirmed.
    Prune(Scope),
    /// Confirms all entries of the scope, because the source still has the history of the stored
    /// cursor.
    Confirm(Scope),
    /// Stores a cluster's record.
    StoreCluster {
        /// Cluster that the record describes.
        cluster: ClusterName,
        /// Record to store.
        record: ClusterRecord,
    },
    /// Publishes and announces the phase of a cluster, and records that the cluster exists.
    Phase {
        /// Cluster that has entered the phase.
        cluster: ClusterName,
        /// New phase.
        phase: Phase,
        /// Cause of the phase, as in [`ClusterPhase`](crate::model::ClusterPhase).
        cause: u64,
    },
    /// Publishes and announces findings that were added, updated or resolved. They are not stored:
    /// each start detects them again.
    Findings(Vec<FindingChange>),
    /// Heartbeat of the etcd API, once a minute. The first one also reports that the mirror has
    /// clients that read it as an etcd.
    Heartbeat,
    /// Removes all data of a cluster: its keys, cursors and record.
    Remove {
        /// Cluster to remove.
        cluster: ClusterName,
        /// Reason in the delete events of its keys.
        reason: DeleteReason,
    },
}

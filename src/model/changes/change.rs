//! What travels from a remote cluster's task to the one writer, and the cursors that say how far the mirror got.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::model::{ClusterName, ClusterRecord, EntryKey, EtcdClusterId, FindingChange, Kind, Object, Phase, Revision, SourceStamp};

/// One cluster's share of one kind: what is listed, watched, confirmed and pruned as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope {
    /// The cluster.
    pub cluster: ClusterName,
    /// The kind.
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
    /// The key has these bytes.
    Put {
        /// The key.
        key: EntryKey,
        /// The bytes as they came.
        value: Arc<[u8]>,
        /// What they mean, or why they cannot be used.
        decoded: Result<Arc<Object>, Arc<str>>,
        /// Where they come from.
        source: SourceStamp,
    },
    /// The key is gone.
    Delete {
        /// The key.
        key: EntryKey,
    },
    /// The source has lost the key: it stays, marked (docs/develop/invariants.md, 4).
    Hold {
        /// The key.
        key: EntryKey,
    },
}

/// The newest put of a scope that is stored: its key had exactly these bytes at this revision (docs/develop/measurements.md §2, "M").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutPoint {
    /// The key as the *source* names it.
    pub source_key: Vec<u8>,
    /// Its mod revision.
    pub revision: Revision,
    /// A SHA-256 of its bytes and, where it hung on one, its lease.
    pub value_digest: [u8; 32],
}

/// The newest delete of a scope that is stored: its key existed before this revision and did not at it ("D").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletePoint {
    /// The key as the *source* names it.
    pub source_key: Vec<u8>,
    /// The revision that deleted it.
    pub revision: Revision,
}

/// The canary of a scope as it was when the scope was complete (§2, test 1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// Its mod revision.
    pub revision: Revision,
    /// Its bytes, a time stamp.
    pub value: Vec<u8>,
}

/// How far a scope is mirrored: complete up to `revision`, in one history of one etcd. There is none while a list runs
/// (docs/develop/invariants.md, 1 and 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The etcd that the revisions belong to.
    pub etcd_cluster_id: EtcdClusterId,
    /// Complete up to and including this revision.
    pub revision: Revision,
    /// Whether the source's keys were in cache form.
    pub cached: bool,
    /// The newest put at or below `revision`; `None` if the scope was empty and has seen none.
    pub last_put: Option<PutPoint>,
    /// The newest delete at or below `revision` that was seen.
    pub last_delete: Option<DeletePoint>,
    /// The canary, where the cluster announces canaries.
    pub canary: Option<Sentinel>,
}

/// Why a key left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeleteReason {
    /// The source deleted it.
    Deleted,
    /// Its cluster was removed from the mesh.
    ClusterRemoved,
}

/// What is left of a key that is gone, so that positions from before can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct Tombstone {
    /// The key.
    pub key: EntryKey,
    /// Why it went.
    pub reason: DeleteReason,
    /// When.
    pub time: SystemTime,
}

/// An order to the one writer. Each is applied, announced and stored as one atomic step.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A full list of the scope begins: its cursor is cleared and nothing of it is confirmed by this list yet.
    BeginList(Scope),
    /// Changes of one scope. With a cursor where they complete a source revision or a list; without one inside a list. What a complete list did not
    /// confirm stays, unconfirmed, until it is deleted or [`Command::Prune`] comes (invariant 3).
    Apply {
        /// The scope that all the keys belong to.
        scope: Scope,
        /// In the order of the source.
        changes: Vec<Change>,
        /// The new cursor, stored with the changes.
        cursor: Option<Cursor>,
    },
    /// Removes every key of the scope that the last list, and the changes since, did not confirm.
    Prune(Scope),
    /// The history is the stored one: everything that is held of the scope is confirmed.
    Confirm(Scope),
    /// Remembers what a cluster says about itself.
    Remember {
        /// The cluster.
        cluster: ClusterName,
        /// What to keep.
        record: ClusterRecord,
    },
    /// Shows and announces where a cluster is in its life, and remembers that there is such a cluster.
    Phase {
        /// The cluster.
        cluster: ClusterName,
        /// Where it is.
        phase: Phase,
        /// As in [`ClusterPhase`](crate::model::ClusterPhase).
        cause: u64,
    },
    /// Shows and announces what looks wrong by now, or no longer does. Of it nothing is stored: each start finds it anew.
    Findings(Vec<FindingChange>),
    /// The heartbeat of the etcd that the mirror is to some readers, once a minute. The first one says that there are such readers.
    Beat,
    /// Removes everything of a cluster: its keys, cursors and record.
    Remove {
        /// The cluster.
        cluster: ClusterName,
        /// What its keys' delete events say.
        reason: DeleteReason,
    },
}

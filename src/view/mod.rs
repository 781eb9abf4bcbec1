//! The mirror in memory, as indices that answer every lookup.
//!
//! Owns: the newest [`Record`] of every key, the ipcache index, the reverse indices and the state of every scope. Receives
//! [`crate::model::Command`]s from the one writer and says in [`Effects`] what changed. Deliberately lacks: IO, awaiting, locks. The maps are
//! persistent: a clone costs a few pointers and is a snapshot that no later change touches, so readers never wait for the
//! writer (design.md, "The way of the data").

mod apply;
mod ipcache;
mod lookup;
mod phases;

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};

use crate::model::{Announcement, Change, ClusterName, ClusterRecord, Cursor, EntryKey, Kind, Object, Record, Scope, Sequence};

pub use ipcache::IpIndex;
pub use lookup::LookupMatch;

/// The mirror in memory. Cloning makes a snapshot.
#[derive(Debug, Clone, Default)]
pub struct View {
    entries: OrdMap<EntryKey, Arc<Record>>,
    /// Usable ip entries by prefix.
    ipcache: IpIndex,
    /// Usable identities: numeric id and key.
    identities: OrdSet<(u32, EntryKey)>,
    /// Usable ip entries by the identity that they name.
    identity_ips: OrdSet<(u32, EntryKey)>,
    /// Nodes by each of their addresses.
    node_addresses: OrdSet<(std::net::IpAddr, EntryKey)>,
    /// Keys whose newest bytes could not be used.
    rejected: OrdSet<EntryKey>,
    scopes: OrdMap<Scope, ScopeState>,
    clusters: OrdMap<ClusterName, ClusterRecord>,
    phases: OrdMap<ClusterName, phases::Placed>,
    /// How many records of a kind have an object.
    object_counts: [u64; Kind::ALL.len()],
    sequence: Sequence,
}

/// What is known of one scope as a whole.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScopeState {
    /// How far it is mirrored; `None` before the first complete list and while a list runs.
    pub cursor: Option<Cursor>,
    /// Whether everything of it was confirmed by the source since meshkeep started.
    pub confirmed: bool,
    /// The number of the last list that began, from 2 on (1: changes before any list).
    pub generation: u64,
    /// How many keys it holds.
    pub entry_count: u64,
    /// How many of them come from the store and were not confirmed yet.
    pub restored_count: u64,
}

/// What one command did: what to announce and what to store. Everything in it belongs into one atomic batch.
#[derive(Debug, Default, PartialEq)]
pub struct Effects {
    /// In order of sequence.
    pub announcements: Vec<Announcement>,
    /// Keys to be stored anew (`Some`) or removed (`None`), silent updates included.
    pub records: BTreeMap<EntryKey, Option<Arc<Record>>>,
    /// Cursors to be stored or cleared.
    pub cursors: BTreeMap<Scope, Option<Cursor>>,
    /// Cluster records to be stored or removed.
    pub clusters: BTreeMap<ClusterName, Option<ClusterRecord>>,
}

impl View {
    /// An empty mirror whose first change gets the sequence after `sequence`.
    #[must_use]
    pub fn starting_at(sequence: Sequence) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// Takes in what the store held, unconfirmed and unannounced.
    pub fn restore(&mut self, record: Record) {
        assert!(record.generation == 0, "a restored record must not claim to be confirmed");
        let scope = self.scopes.entry(scope_of(&record.key)).or_default();
        scope.entry_count += 1;
        scope.restored_count += 1;
        self.index(&record);
        self.entries.insert(record.key.clone(), Arc::new(record));
    }

    /// Takes in a cursor that the store held.
    pub fn restore_cursor(&mut self, scope: Scope, cursor: Cursor) {
        self.scopes.entry(scope).or_default().cursor = Some(cursor);
    }

    /// Takes in a cluster record that the store held.
    pub fn restore_cluster(&mut self, cluster: ClusterName, record: ClusterRecord) {
        self.clusters.insert(cluster, record);
    }

    /// The sequence of the newest change.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.sequence
    }

    /// Adds a record to the indices over objects.
    fn index(&mut self, record: &Record) {
        if record.rejection.is_some() {
            self.rejected.insert(record.key.clone());
        }
        let Some(object) = &record.object else { return };
        self.object_counts[record.key.kind as usize] += 1;
        match &**object {
            Object::Ip(entry) => {
                self.ipcache.insert(entry.prefix, record.key.clone());
                self.identity_ips.insert((entry.identity, record.key.clone()));
            }
            Object::Identity(identity) => {
                self.identities.insert((identity.id, record.key.clone()));
            }
            Object::Node(node) => {
                for address in &node.addresses {
                    self.node_addresses.insert((address.ip, record.key.clone()));
                }
            }
            Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) | Object::Cluster(_) => {}
        }
    }

    /// Takes a record out of the indices over objects.
    fn unindex(&mut self, record: &Record) {
        if record.rejection.is_some() {
            self.rejected.remove(&record.key);
        }
        let Some(object) = &record.object else { return };
        self.object_counts[record.key.kind as usize] -= 1;
        match &**object {
            Object::Ip(entry) => {
                self.ipcache.remove(entry.prefix, &record.key);
                self.identity_ips.remove(&(entry.identity, record.key.clone()));
            }
            Object::Identity(identity) => {
                self.identities.remove(&(identity.id, record.key.clone()));
            }
            Object::Node(node) => {
                for address in &node.addresses {
                    self.node_addresses.remove(&(address.ip, record.key.clone()));
                }
            }
            Object::Service(_) | Object::ServiceExport(_) | Object::EndpointSlice(_) | Object::Cluster(_) => {}
        }
    }
}

/// The scope that a key belongs to.
fn scope_of(key: &EntryKey) -> Scope {
    Scope { cluster: key.cluster.clone(), kind: key.kind }
}

/// The key of a change.
fn key_of(change: &Change) -> &EntryKey {
    match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key } => key,
    }
}

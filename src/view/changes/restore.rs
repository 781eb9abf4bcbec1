//! Loading of what the store held, unconfirmed and unannounced.

use std::net::IpAddr;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use crate::model::{ClusterName, ClusterRecord, Cursor, EntryKey, Kind, ObjectPrefix, Record, Scope};
use crate::pack::{Chunk, Meaning, build_noted};
use crate::view::base::location::RecordLocation;
use crate::view::index::ipcache::HostEntries;
use crate::view::index::node_index::NodeAddresses;
use crate::view::{ScopeState, View, scope_of};

/// Rows of the ipcache from which two threads are worth starting: ten chunks. An early answer of a start reads a few chunks, which are indexed
/// sooner than a thread begins.
const ROWS_BESIDE_MIN: usize = 10_240;

/// Rows of a scope, in a chunk, with the number of their cluster.
struct ScopeRows {
    chunk: Chunk,
    rows: Range<usize>,
    cluster: u32,
}

impl View {
    /// Takes in chunks that do not overlap each other or anything that is held. Nothing is decoded but what they do not note for the indices.
    pub fn restore_chunks(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        let chunks: Vec<Chunk> = chunks.into_iter().flat_map(noted).collect();
        let (mut announced, mut derived, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in &chunks {
            for (rows, cluster) in chunk.clusters() {
                let (kind, _) = chunk.scope(rows.start);
                if kind.is_mirrored() {
                    let scope = self.scopes.entry(Scope { cluster: cluster.clone(), kind });
                    // a chunk has 4,096 rows at most
                    let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
                    scope.entry_count += count;
                    scope.restored_count += count;
                    self.entry_count += rows.len();
                }
                let rows = ScopeRows { chunk: chunk.clone(), rows, cluster: self.indices.clusters.assign(cluster) };
                match kind {
                    Kind::Ip => announced.push(rows),
                    Kind::NodeIp => derived.push(rows),
                    _ => others.push(rows),
                }
            }
            self.base.add(chunk.clone());
        }
        // each into indices that have none of its sort yet, where many at once go quickly
        let (announced, others_derived) = if count_of(&announced) + count_of(&derived) < ROWS_BESIDE_MIN {
            self.restore_others(&others);
            (Announced::of(&announced), self.take_derived(Derived::of(&derived)))
        } else {
            // a start waits for it: the indices of the ipcache, which are most, are made beside the rest
            thread::scope(|scope| {
                let announced = scope.spawn(|| Announced::of(&announced));
                let derived = scope.spawn(|| Derived::of(&derived));
                self.restore_others(&others);
                let others_derived = self.take_derived(made(derived));
                (made(announced), others_derived)
            })
        };
        self.indices.take_hosts(announced.count, announced.hosts);
        for (chunk, row) in announced.others.into_iter().chain(others_derived) {
            self.indices.add(&chunk.key(row), &RecordLocation::meaning_of_row(&chunk, row), chunk.is_rejected(row));
        }
    }

    /// Takes in what is not of the ipcache.
    fn restore_others(&mut self, others: &[ScopeRows]) {
        let (mut node_count, mut addresses) = (0, NodeAddresses::default());
        for (chunk, row, cluster) in each(others) {
            let (meaning, rejected) = (RecordLocation::meaning_of_row(chunk, row), chunk.is_rejected(row));
            match meaning {
                Meaning::Node { addresses: own } if !rejected => {
                    node_count += 1;
                    let name = chunk.key(row).name;
                    own.into_iter().for_each(|ip| addresses.push(ObjectPrefix::of_host(ip), cluster, name.as_bytes()));
                }
                meaning => self.indices.add(&chunk.key(row), &meaning, rejected),
            }
        }
        addresses.sort();
        self.indices.take_nodes(node_count, addresses);
    }

    /// Takes in what is derived from nodes, and returns the rows that are not usable.
    fn take_derived(&mut self, derived: Derived) -> Vec<(Chunk, usize)> {
        self.indices.take_node_ips(derived.count, derived.addresses);
        derived.others
    }

    /// Takes in a record: a new one, or a newer one of a key that is held.
    pub fn restore(&mut self, record: impl Into<Arc<Record>>) {
        let record = record.into();
        assert!(record.generation == 0, "a restored record must not claim to be confirmed");
        self.restore_deleted(&record.key);
        self.count_entry(&record.key, true);
        if record.key.kind.is_mirrored() {
            self.scope_mut(&record.key).restored_count += 1;
        }
        self.hold(record);
    }

    /// Forgets a key that is gone by what the store held beside its chunks.
    pub fn restore_deleted(&mut self, key: &EntryKey) {
        if let Some(place) = self.place(key) {
            self.release(&place, key);
            if !key.kind.is_mirrored() {
                return;
            }
            let scope = self.scope_mut(key);
            scope.entry_count -= 1;
            scope.restored_count -= 1;
            let scope = *scope;
            if scope == ScopeState::default() && self.cursor(&scope_of(key)).is_none() {
                self.scopes.remove(&scope_of(key));
            }
        }
    }

    /// Takes in a cursor that the store held.
    pub fn restore_cursor(&mut self, scope: Scope, cursor: Cursor) {
        self.scopes.set_cursor(scope, cursor);
    }

    /// Takes in a cluster record that the store held.
    pub fn restore_cluster(&mut self, cluster: ClusterName, record: ClusterRecord) {
        self.restore_notices(&record.notices);
        self.clusters.insert(cluster, record);
    }
}

/// A chunk as chunks that note the meaning of every record, on which lookups by identity rely: as a rule the chunk itself.
pub(in crate::view) fn noted(chunk: Chunk) -> Vec<Chunk> {
    if !chunk.has_unknown() {
        return vec![chunk];
    }
    let records: Vec<_> = (0..chunk.len()).map(|row| (chunk.record(row), RecordLocation::meaning_of_row(&chunk, row))).collect();
    build_noted(records.iter().map(|(record, meaning)| (record, meaning.clone())))
}

/// What a thread made.
fn made<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn count_of(rows: &[ScopeRows]) -> usize {
    rows.iter().map(|rows| rows.rows.len()).sum()
}

/// Each row with its chunk and the number of its cluster.
fn each(all: &[ScopeRows]) -> impl Iterator<Item = (&Chunk, usize, u32)> {
    all.iter().flat_map(|ScopeRows { chunk, rows, cluster }| rows.clone().map(move |row| (chunk, row, *cluster)))
}

/// What clusters announce for the ipcache, indexed.
struct Announced {
    count: usize,
    hosts: HostEntries,
    /// Rows that are no hosts, or not usable.
    others: Vec<(Chunk, usize)>,
}

impl Announced {
    fn of(all: &[ScopeRows]) -> Self {
        // room that is not used is no memory
        let (mut ipv4, mut ipv6) = (Vec::with_capacity(count_of(all)), Vec::with_capacity(count_of(all)));
        let mut others = Vec::new();
        for (chunk, row, cluster) in each(all) {
            match host_at(chunk, row) {
                Some(IpAddr::V4(ip)) => ipv4.push((ip.to_bits(), cluster)),
                Some(IpAddr::V6(ip)) => ipv6.push((ip.to_bits(), cluster)),
                None => others.push((chunk.clone(), row)),
            }
        }
        Self { count: ipv4.len() + ipv6.len(), hosts: HostEntries::of(ipv4, ipv6), others }
    }
}

/// The address of a row whose newest value is a usable host entry with that address as its key.
fn host_at(chunk: &Chunk, row: usize) -> Option<IpAddr> {
    if chunk.is_rejected(row) {
        return None;
    }
    if let Some(ip) = chunk.ipv4_host(row) {
        return Some(ip.into());
    }
    let ObjectPrefix { net, host } = chunk.prefix(row)?;
    (host && net.addr().to_string() == *chunk.key(row).name).then(|| net.addr())
}

/// What is derived from nodes.
struct Derived {
    count: usize,
    addresses: NodeAddresses,
    /// Rows that are not usable.
    others: Vec<(Chunk, usize)>,
}

impl Derived {
    fn of(all: &[ScopeRows]) -> Self {
        let mut derived = Self { count: 0, addresses: NodeAddresses::default(), others: Vec::new() };
        let mut name = Vec::new();
        for (chunk, row, cluster) in each(all) {
            match chunk.node_ip(row, &mut name).filter(|_| !chunk.is_rejected(row)) {
                Some(prefix) => {
                    derived.count += 1;
                    derived.addresses.push(prefix, cluster, &name);
                }
                None => derived.others.push((chunk.clone(), row)),
            }
        }
        derived.addresses.sort();
        derived
    }
}

//! Restores the mirror from the store at the start, unconfirmed and without announcements.

use std::net::IpAddr;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};

use crate::model::{ClusterName, ClusterRecord, Cursor, EntryKey, Kind, ObjectPrefix, Record, Scope};
use crate::pack::{Chunk, IndexedFields};
use crate::view::index::IndexUpdate;
use crate::view::index::ipcache::HostEntries;
use crate::view::index::node_index::NodeAddresses;
use crate::view::records::decoding::{indexed_fields_of_row, with_indexed_fields};
use crate::view::{ScopeState, View, scope_of};

/// Number of ipcache rows from which two threads are faster than one: ten chunks. Answers while the
/// store loads (`runtime::early`) index only a few chunks, which takes less time than starting a
/// thread.
const PARALLEL_ROWS_MIN: usize = 10_240;

/// Rows of one scope in a chunk.
struct ScopeRows {
    chunk: Chunk,
    rows: Range<usize>,
    cluster: u32,
}

impl View {
    /// Restores chunks that overlap neither each other nor existing records. Decodes only rows
    /// whose indexed fields the chunk does not store.
    pub fn restore_chunks(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        let chunks: Vec<Chunk> = chunks.into_iter().flat_map(with_indexed_fields).collect();
        let (mut announced, mut derived, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in &chunks {
            for (rows, cluster) in chunk.scopes() {
                let (kind, _) = chunk.scope(rows.start);
                if kind.is_mirrored() {
                    let scope = self.scopes.entry(Scope { cluster: cluster.clone(), kind });
                    // a chunk has at most 4,096 rows
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
            self.records.add_chunk(chunk.clone());
        }
        // bulk insertion is fast only into an empty index
        let (announced, unusable_derived) = if row_count(&announced) + row_count(&derived) < PARALLEL_ROWS_MIN {
            self.restore_others(&others);
            (IpEntryIndex::from_rows(&announced), self.add_derived(NodeIpIndex::from_rows(&derived)))
        } else {
            // the start waits for this: other threads build the indices of the ipcache, which has
            // most rows
            thread::scope(|scope| {
                let announced = scope.spawn(|| IpEntryIndex::from_rows(&announced));
                let derived = scope.spawn(|| NodeIpIndex::from_rows(&derived));
                self.restore_others(&others);
                let unusable_derived = self.add_derived(join_thread(derived));
                (join_thread(announced), unusable_derived)
            })
        };
        self.indices.add_hosts(announced.count, announced.hosts);
        for (chunk, row) in announced.others.into_iter().chain(unusable_derived) {
            self.indices.update(IndexUpdate::Add, &chunk.key(row), &indexed_fields_of_row(&chunk, row), chunk.is_rejected(row));
        }
    }

    /// Indexes rows of all kinds except ipcache entries.
    fn restore_others(&mut self, others: &[ScopeRows]) {
        let (mut node_count, mut addresses) = (0, NodeAddresses::default());
        for (chunk, row, cluster) in each_row(others) {
            let (fields, rejected) = (indexed_fields_of_row(chunk, row), chunk.is_rejected(row));
            match fields {
                IndexedFields::Node { addresses: node_addresses } if !rejected => {
                    node_count += 1;
                    let name = chunk.key(row).name;
                    node_addresses.into_iter().for_each(|ip| addresses.push(ObjectPrefix::of_host(ip), cluster, name.as_bytes()));
                }
                other => self.indices.update(IndexUpdate::Add, &chunk.key(row), &other, rejected),
            }
        }
        addresses.sort();
        self.indices.add_nodes(node_count, addresses);
    }

    /// Indexes derived entries. Returns the rows that are not usable.
    fn add_derived(&mut self, derived: NodeIpIndex) -> Vec<(Chunk, usize)> {
        self.indices.add_node_ips(derived.count, derived.addresses);
        derived.others
    }

    /// Restores a record, which may replace an older one of the same key.
    pub fn restore(&mut self, record: impl Into<Arc<Record>>) {
        let record = record.into();
        assert!(record.generation == 0, "a restored record must not claim to be confirmed");
        self.restore_deleted(&record.key);
        self.add_to_indices(&record);
        if record.key.kind.is_mirrored() {
            self.scope_mut(&record.key).restored_count += 1;
        }
        self.records.insert(record);
    }

    /// Removes a key that the store deleted after it packed the chunk.
    pub fn restore_deleted(&mut self, key: &EntryKey) {
        if let Some(location) = self.records.locate(key) {
            self.remove_record(&location, key);
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

    /// Restores a cursor.
    pub fn restore_cursor(&mut self, scope: Scope, cursor: Cursor) {
        self.scopes.set_cursor(scope, cursor);
    }

    /// Restores a cluster record and its notices.
    pub fn restore_cluster(&mut self, cluster: ClusterName, record: ClusterRecord) {
        self.restore_notices(&record.notices);
        self.clusters.insert(cluster, record);
    }
}

fn join_thread<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

fn row_count(rows: &[ScopeRows]) -> usize {
    rows.iter().map(|rows| rows.rows.len()).sum()
}

/// Iterates over the rows with their chunks and the numbers of their clusters.
fn each_row(all: &[ScopeRows]) -> impl Iterator<Item = (&Chunk, usize, u32)> {
    all.iter().flat_map(|ScopeRows { chunk, rows, cluster }| rows.clone().map(move |row| (chunk, row, *cluster)))
}

/// Index of the ipcache entries that clusters announce.
struct IpEntryIndex {
    count: usize,
    hosts: HostEntries,
    /// Rows that are CIDRs, are not usable, or have a key that is not the address.
    others: Vec<(Chunk, usize)>,
}

impl IpEntryIndex {
    fn from_rows(all: &[ScopeRows]) -> Self {
        // unused capacity uses no physical memory
        let (mut ipv4, mut ipv6) = (Vec::with_capacity(row_count(all)), Vec::with_capacity(row_count(all)));
        let mut others = Vec::new();
        for (chunk, row, cluster) in each_row(all) {
            match host_address(chunk, row) {
                Some(IpAddr::V4(ip)) => ipv4.push((ip.to_bits(), cluster)),
                Some(IpAddr::V6(ip)) => ipv6.push((ip.to_bits(), cluster)),
                None => others.push((chunk.clone(), row)),
            }
        }
        Self { count: ipv4.len() + ipv6.len(), hosts: HostEntries::from_unsorted(ipv4, ipv6), others }
    }
}

/// Returns the address of a row whose newest value is a usable host entry and whose key is that
/// address.
fn host_address(chunk: &Chunk, row: usize) -> Option<IpAddr> {
    if chunk.is_rejected(row) {
        return None;
    }
    if let Some(ip) = chunk.ipv4_host(row) {
        return Some(ip.into());
    }
    let ObjectPrefix { net, host } = chunk.prefix(row)?;
    (host && net.addr().to_string() == *chunk.key(row).name).then(|| net.addr())
}

/// Index of the ipcache entries that are derived from nodes.
struct NodeIpIndex {
    count: usize,
    addresses: NodeAddresses,
    /// Rows that are not usable.
    others: Vec<(Chunk, usize)>,
}

impl NodeIpIndex {
    fn from_rows(all: &[ScopeRows]) -> Self {
        let mut derived = Self { count: 0, addresses: NodeAddresses::default(), others: Vec::new() };
        let mut name = Vec::new();
        for (chunk, row, cluster) in each_row(all) {
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

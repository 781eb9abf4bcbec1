//! What the store held, unconfirmed and unannounced.

use std::net::IpAddr;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use super::node_index::NodeName;
use super::place::Place;
use super::{ScopeState, View, scope_of};
use crate::model::{ClusterName, ClusterRecord, Cursor, EntryKey, Kind, ObjectPrefix, Record, Scope};
use crate::pack::{Chunk, Meaning, build_noted};

/// Rows of a scope that belong to the ipcache, in a chunk, with the number of their cluster.
struct IpRows {
    chunk: Chunk,
    rows: Range<usize>,
    cluster: u32,
}

impl View {
    /// Takes in chunks that do not overlap each other or anything that is held. Nothing is decoded but what they do not note for the indices.
    pub fn restore_chunks(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        let chunks: Vec<Chunk> = chunks.into_iter().flat_map(noted).collect();
        let mut ip_rows = Vec::new();
        for chunk in &chunks {
            for (rows, cluster) in chunk.clusters() {
                let (kind, _) = chunk.scope(rows.start);
                if kind.is_mirrored() {
                    let scope = self.scopes.entry(Scope { cluster: cluster.clone(), kind });
                    scope.entry_count += rows.len() as u64;
                    scope.restored_count += rows.len() as u64;
                    self.entry_count += rows.len();
                }
                let cluster = self.indices.cluster_number(cluster);
                if kind.listed_as() == Kind::Ip {
                    ip_rows.push(IpRows { chunk: chunk.clone(), rows, cluster });
                }
            }
        }
        // a start waits for it: the ipcache, which is most, is gathered beside the rest
        let hosts = thread::scope(|scope| {
            let gathered = scope.spawn(|| Hosts::of(&ip_rows));
            let mut nodes = Nodes::default();
            for chunk in &chunks {
                self.restore_others(chunk, &mut nodes);
                self.base.add(chunk.clone());
            }
            self.indices.fill_nodes(nodes.count, nodes.addresses);
            gathered.join()
        });
        let hosts = hosts.unwrap_or_else(|panic| resume_unwind(panic));
        // before any other: many at once go only into an empty index
        self.indices.fill_hosts(hosts.ipv4, hosts.ipv6);
        self.indices.fill_node_ips(hosts.node_ips);
        for (at, row) in hosts.others {
            let IpRows { chunk, .. } = &ip_rows[at];
            self.indices.add(&chunk.key(row), &Place::meaning_of_row(chunk, row), chunk.is_rejected(row));
        }
    }

    /// Takes in what is not of the ipcache.
    fn restore_others(&mut self, chunk: &Chunk, nodes: &mut Nodes) {
        for (rows, cluster) in chunk.clusters().filter(|(rows, _)| chunk.scope(rows.start).0.listed_as() != Kind::Ip) {
            let cluster = self.indices.cluster_number(cluster);
            for row in rows {
                let (meaning, rejected) = (Place::meaning_of_row(chunk, row), chunk.is_rejected(row));
                match meaning {
                    Meaning::Node { addresses } if !rejected => nodes.take(&addresses, NodeName { cluster, node: chunk.key(row).name }),
                    meaning => self.indices.add(&chunk.key(row), &meaning, rejected),
                }
            }
        }
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
            if *scope == ScopeState::default() {
                self.scopes.remove(&scope_of(key));
            }
        }
    }

    /// Takes in a cursor that the store held.
    pub fn restore_cursor(&mut self, scope: Scope, cursor: Cursor) {
        self.scopes.entry(scope).cursor = Some(cursor);
    }

    /// Takes in a cluster record that the store held.
    pub fn restore_cluster(&mut self, cluster: ClusterName, record: ClusterRecord) {
        self.clusters.insert(cluster, record);
    }
}

/// The same records with what the indices need to know of each: the lookups by identity rely on it. As a rule the chunk itself.
pub(super) fn noted(chunk: Chunk) -> Vec<Chunk> {
    if !chunk.has_unknown() {
        return vec![chunk];
    }
    let records: Vec<_> = (0..chunk.len()).map(|row| (chunk.record(row), Place::meaning_of_row(&chunk, row))).collect();
    build_noted(records.iter().map(|(record, meaning)| (record, meaning.clone())))
}

/// Usable nodes, to be indexed all at once.
#[derive(Default)]
struct Nodes {
    count: u64,
    addresses: Vec<(IpAddr, NodeName)>,
}

impl Nodes {
    fn take(&mut self, addresses: &[IpAddr], name: NodeName) {
        self.count += 1;
        self.addresses.extend(addresses.iter().map(|ip| (*ip, name.clone())));
    }
}

/// Host entries, to be indexed all at once, in order.
#[derive(Default)]
struct Hosts {
    ipv4: Vec<(u32, u32)>,
    ipv6: Vec<(u128, u32)>,
    node_ips: Vec<(IpAddr, NodeName)>,
    /// All other rows, by the place of their [`IpRows`].
    others: Vec<(usize, usize)>,
    /// Room for a name.
    name: Vec<u8>,
}

impl Hosts {
    fn of(ip_rows: &[IpRows]) -> Self {
        let mut hosts = Self::default();
        for (at, IpRows { chunk, rows, cluster }) in ip_rows.iter().enumerate() {
            rows.clone().for_each(|row| hosts.take(chunk, row, *cluster, at));
        }
        // here, beside the other thread, and not when they are filled in
        hosts.ipv4.sort_unstable();
        hosts.ipv6.sort_unstable();
        hosts.node_ips.sort_unstable();
        hosts
    }

    fn take(&mut self, chunk: &Chunk, row: usize, cluster: u32, at: usize) {
        if chunk.is_rejected(row) {
            self.others.push((at, row));
        } else if let Some(ip) = chunk.ipv4_host(row) {
            self.ipv4.push((ip.to_bits(), cluster));
        } else if let Some(ip) = chunk.node_ip(row, &mut self.name) {
            let name = self.node_name(cluster);
            self.node_ips.push((ip, name));
        } else {
            let (is_announced, meaning) = (chunk.scope(row).0 == Kind::Ip, chunk.meaning(row));
            match meaning {
                Meaning::Ip { prefix: ObjectPrefix { net, host: true }, .. }
                    if is_announced && net.addr().to_string() == *chunk.key(row).name =>
                {
                    match net.addr() {
                        IpAddr::V4(ip) => self.ipv4.push((ip.to_bits(), cluster)),
                        IpAddr::V6(ip) => self.ipv6.push((ip.to_bits(), cluster)),
                    }
                }
                _ => self.others.push((at, row)),
            }
        }
    }

    /// The name at hand: that of the entry before, where they are of one node.
    fn node_name(&self, cluster: u32) -> NodeName {
        let before = self.node_ips.last().map(|(_, before)| before);
        let same = before.filter(|before| before.cluster == cluster && before.node.as_bytes() == self.name);
        same.cloned().unwrap_or_else(|| NodeName { cluster, node: String::from_utf8_lossy(&self.name).into() })
    }
}

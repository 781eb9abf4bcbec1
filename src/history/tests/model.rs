//! A naive history: every change of a mesh, kept for ever.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use rand::Rng;
use rand::rngs::StdRng;

use super::{key, record};
use crate::history::segment::row_key::prefix_of;
use crate::history::segment::times::Millis;
use crate::model::{DeleteReason, EntryKey, Kind, Record, ReplacedRecord, ReplacedRecords, Sequence};

/// One change of the mesh.
#[derive(Debug, Clone)]
pub(super) struct ModelChange {
    pub(super) sequence: Sequence,
    pub(super) time: Millis,
    pub(super) key: EntryKey,
    pub(super) old: Option<Arc<Record>>,
    pub(super) new: Option<Arc<Record>>,
    pub(super) deleted: Option<DeleteReason>,
}

/// The current mesh and all of its changes.
#[derive(Debug, Default)]
pub(super) struct ModelHistory {
    pub(super) current: BTreeMap<EntryKey, Arc<Record>>,
    pub(super) changes: Vec<ModelChange>,
    pub(super) head: Sequence,
    pub(super) clock: Millis,
}

/// Returns the keys of a small mesh: each kind, hosts and CIDRs of both families, and addresses
/// that several clusters have.
pub(super) fn mesh_keys() -> Vec<EntryKey> {
    let mut keys = Vec::new();
    for cluster in ["eu", "eu-west", "paris"] {
        for number in 1..8 {
            keys.push(key(Kind::Ip, cluster, &format!("10.0.{}.{number}", number % 2)));
            keys.push(key(Kind::Identity, cluster, &(65_536 + number).to_string()));
        }
        for name in ["fd00::1", "fd00::2", "10.0.0.0/16", "10.0.1.0/24", "10.0.1.1/32", "0.0.0.0/0", "fd00::/64", "::/0"] {
            keys.push(key(Kind::Ip, cluster, name));
        }
        for name in ["a#10.0.0.1", "a#10.0.0.0/24", "a#b#fd00::1"] {
            keys.push(key(Kind::NodeIp, cluster, name));
        }
        for (kind, name) in
            [(Kind::Node, "a"), (Kind::Service, "shop/cart"), (Kind::ServiceExport, "shop/cart"), (Kind::EndpointSlice, "s")]
        {
            keys.push(key(kind, cluster, name));
        }
    }
    keys
}

/// Addresses whose covering entries are compared.
pub(super) fn mesh_addresses() -> Vec<IpAddr> {
    let texts = ["10.0.1.1", "10.0.0.2", "10.0.1.9", "10.1.0.1", "fd00::1", "fd00::9", "fd01::1"];
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

impl ModelHistory {
    /// Starts again after everything up to now: the next change has this sequence or a later one.
    pub(super) fn skip_to(&mut self, head: Sequence) {
        self.head = head;
    }

    /// Applies some random changes with one time. Returns the replaced records.
    pub(super) fn change(&mut self, random: &mut StdRng, keys: &[EntryKey], count: usize) -> ReplacedRecords {
        let after = self.head;
        let mut replaced = ReplacedRecords::new(after, after);
        replaced.times.push((after.next(), self.clock.into()));
        for _ in 0..count {
            // other kinds of changes use sequences too
            self.head = Sequence(self.head.0 + random.random_range(1..4));
            // few keys change often
            let position = if random.random() { random.random_range(0..keys.len()) } else { random.random_range(0..8) };
            let key = &keys[position];
            let old = self.current.get(key).cloned();
            let is_delete = old.is_some() && random.random_ratio(1, 3);
            let deleted = is_delete.then(|| if random.random() { DeleteReason::Deleted } else { DeleteReason::ClusterRemoved });
            let new = (!is_delete).then(|| {
                let (created, version) = old.as_ref().map_or((self.head.0, 1), |old| (old.create_sequence.0, old.version + 1));
                record(key.clone(), created, self.head.0, version, random.random_range(0..100_000))
            });
            match &new {
                Some(new) => drop(self.current.insert(key.clone(), Arc::clone(new))),
                None => drop(self.current.remove(key)),
            }
            if let Some(old) = &old {
                replaced.records.insert(self.head, ReplacedRecord { record: Arc::clone(old), deleted });
            }
            self.changes.push(ModelChange { sequence: self.head, time: self.clock, key: key.clone(), old, new, deleted });
        }
        self.head = Sequence(self.head.0 + random.random_range(0..3));
        replaced.last = self.head.max(after.next());
        self.head = replaced.last;
        replaced
    }

    /// Returns all records after the changes up to a sequence.
    pub(super) fn records_at(&self, at: Sequence) -> BTreeMap<EntryKey, Arc<Record>> {
        let mut records = BTreeMap::new();
        for change in &self.changes[..self.count_up_to(at)] {
            match &change.new {
                Some(new) => records.insert(change.key.clone(), Arc::clone(new)),
                None => records.remove(&change.key),
            };
        }
        records
    }

    fn count_up_to(&self, at: Sequence) -> usize {
        self.changes.partition_point(|change| change.sequence <= at)
    }

    /// Returns the last change before the first one after `start` whose time is later than a time.
    pub(super) fn last_at(&self, start: Sequence, time: Millis) -> Sequence {
        let known = self.count_up_to(start);
        let later = self.changes[known..].iter().position(|change| change.time > time);
        let count = later.map_or(self.changes.len(), |later| known + later);
        count.checked_sub(1).map_or(Sequence(0), |last| self.changes[last].sequence)
    }

    /// Iterates over the changes that replaced a record, after a sequence, newest first.
    pub(super) fn replaced_after(&self, after: Sequence) -> impl Iterator<Item = &ModelChange> {
        self.changes[self.count_up_to(after)..].iter().rev().filter(|change| change.old.is_some())
    }
}

/// Returns the ipcache entries among these records that cover an address.
pub(super) fn covering(records: &BTreeMap<EntryKey, Arc<Record>>, ip: IpAddr) -> Vec<Arc<Record>> {
    records.values().filter(|record| prefix_of(&record.key).is_some_and(|prefix| prefix.net.contains(&ip))).cloned().collect()
}

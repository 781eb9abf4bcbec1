//! Compares the packed mirror with a reference implementation: both get the same random commands,
//! with folds and restarts in between, and every query must return the same.

mod derived;
mod findings;
mod folds;
mod hosts;
mod labels;
mod memory;
mod reference;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use self::reference::ReferenceView;
use super::*;
use crate::model::*;
use crate::pack::{Chunk, build_with_fields};
use crate::wire;

/// Returns a record of an identity without a value.
pub(super) fn bare_record(name: u32, sequence: u64) -> Arc<Record> {
    let sequence = Sequence(sequence);
    Arc::new(Record {
        key: EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), name.to_string()),
        value: Arc::default(),
        good_value: None,
        object: None,
        rejection: None,
        source: SourceStamp::default(),
        create_sequence: sequence,
        last_sequence: sequence,
        version: 1,
        generation: 0,
    })
}

/// Number of names per kind. Low, so that many commands concern the same key.
const NAMES: u32 = 12;

struct ViewPair {
    view: View,
    reference: ReferenceView,
    revision: i64,
    /// Results of folds that are not applied yet.
    folding: Vec<FoldResult>,
}

fn cluster(number: u32) -> ClusterName {
    ClusterName::parse(["paris", "tokyo", "eu", "eu-west"][number as usize % 4]).unwrap()
}

/// Returns the name and the value of a random ipcache entry.
fn entry(random: &mut StdRng) -> (String, String) {
    let number = random.random_range(0..NAMES);
    let (ip, mask) = match random.random_range(0..10) {
        0 => (format!("10.0.0.{number}"), Some(("/32", "/////w=="))),
        1 => (format!("10.0.0.{}", number & 12), Some(("/30", "/////A=="))),
        // not the address of its network, so the key is not the prefix
        2 => (format!("10.0.0.{number}"), Some(("/28", "////8A=="))),
        3 => (format!("fd00::{number:x}"), None),
        4 => ("0.0.0.0".to_owned(), Some(("/0", "AAAAAA=="))),
        5 => ("fd00::".to_owned(), Some(("/64", "//////////8AAAAAAAAAAA=="))),
        _ => (format!("10.0.0.{number}"), None),
    };
    let json_mask = mask.map_or_else(|| "null".to_owned(), |(_, mask)| format!("{mask:?}"));
    let (identity, host) = (random.random_range(300..304), random.random_range(0..3));
    let value = format!(r#"{{"IP":"{ip}","Mask":{json_mask},"HostIP":"172.18.0.{host}","ID":{identity},"K8sPodName":"pod-{number}-x"}}"#);
    (format!("{ip}{}", mask.map_or("", |(length, _)| length)), value)
}

/// Encodes an endpoint slice as its writers do: a zstd frame of a protobuf message.
fn slice(cluster: &ClusterName, name: &str) -> Vec<u8> {
    let mut message = Vec::new();
    for (field, text) in [(1, cluster.as_str()), (3, "shop"), (4, name), (7, "IPv4")] {
        message.extend([field << 3 | 2, u8::try_from(text.len()).unwrap()]);
        message.extend_from_slice(text.as_bytes());
    }
    zstd::encode_all(&*message, 1).unwrap()
}

fn random_put(random: &mut StdRng, scope: &Scope) -> (EntryKey, Vec<u8>) {
    let number = random.random_range(0..NAMES);
    let cluster = &scope.cluster;
    let (name, value) = match scope.kind {
        Kind::Ip => {
            let (name, value) = entry(random);
            (name, value.into_bytes())
        }
        Kind::Identity => {
            let id = 300 + number % 4;
            // leading zeros make other keys of the same number
            let zeros = ["", "", "0", "00"][random.random_range(0..4)];
            (
                format!("{zeros}{id}"),
                format!("k8s:app=app-{};k8s:io.cilium.k8s.policy.cluster={cluster};", random.random_range(0..3)).into_bytes(),
            )
        }
        Kind::Node => {
            let name = format!("worker-{number}");
            let (ip, router, key) = (random.random_range(0..3), random.random_range(0..NAMES), random.random_range(0..2));
            let (health, ingress) = (random.random_range(0..NAMES), random.random_range(0..3));
            // some of these networks also have ipcache entries; some nodes have both families
            let pods = [("IPv4AllocCIDR", "10.0.0.3/28"), ("IPv6AllocCIDR", "fd00::/124"), ("IPv4AllocCIDR", "10.0.0.16/28")];
            let pods: String = pods.iter().filter(|_| random.random()).map(|(field, net)| format!(r#""{field}":"{net}","#)).collect();
            let value = format!(
                r#"{{"Name":"{name}","Cluster":"{cluster}","IPAddresses":[{{"Type":"CiliumInternalIP","IP":"10.0.0.{router}"}},{{"Type":"InternalIP","IP":"172.18.0.{ip}"}},{{"Type":"X","IP":"fd00::{ip}"}}],{pods}"IPv4HealthIP":"10.0.0.{health}","IPv6IngressIP":"fd00::{ingress}","EncryptionKey":{key},"ClusterID":0}}"#
            );
            (name, value.into_bytes())
        }
        Kind::EndpointSlice => (format!("shop/s{number}"), slice(cluster, &format!("s{number}"))),
        Kind::ServiceExport => {
            let second = random.random_range(0..3);
            let value = format!(
                r#"{{"cluster":"{cluster}","namespace":"shop","name":"s{number}","exportCreationTimestamp":"2024-05-0{}T10:00:0{second}Z","type":"Headless","sessionAffinity":"None"}}"#,
                number % 4 + 1
            );
            (format!("shop/s{number}"), value.into_bytes())
        }
        Kind::NodeIp | Kind::Cluster | Kind::Problem | Kind::Notice => panic!("a {} is never put by a source", scope.kind),
        Kind::Service => {
            let port = random.random_range(80..83);
            let value = format!(
                r#"{{"cluster":"{cluster}","namespace":"shop","name":"s{number}","backends":{{"10.0.0.1":{{"p":{{"Protocol":"TCP","Port":{port}}}}}}}}}"#
            );
            (format!("shop/s{number}"), value.into_bytes())
        }
    };
    let broken = random.random_ratio(1, 12);
    (EntryKey::new(scope.kind, cluster.clone(), name), if broken { b"{".to_vec() } else { value })
}

fn decoded(key: &EntryKey, value: &[u8]) -> Result<Arc<Object>, Arc<str>> {
    let context =
        wire::Context { cluster: &key.cluster, cluster_id: ClusterId(0), max_connected_clusters: MaxConnectedClusters::Clusters255 };
    wire::decode(key, value, &context).map(Arc::new).map_err(Into::into)
}

fn cursor(revision: i64) -> Cursor {
    Cursor::new(EtcdClusterId(1), Revision(revision), true)
}

/// Packs the rows again into chunks of `length` rows, so that there are many chunks. With `forget`,
/// the chunks do not store indexed fields.
fn split_into_small_chunks(chunks: &[Chunk], length: usize, forget: bool) -> Vec<Chunk> {
    let rows = chunks.iter().flat_map(|chunk| (0..chunk.len()).map(move |row| (chunk.record(row), chunk.indexed_fields(row))));
    let rows: Vec<(Record, IndexedFields)> = rows.collect();
    let stored_fields = |fields: &IndexedFields| if forget { IndexedFields::Unknown } else { fields.clone() };
    rows.chunks(length).flat_map(|piece| build_with_fields(piece.iter().map(|(record, fields)| (record, stored_fields(fields))))).collect()
}

impl ViewPair {
    fn new() -> Self {
        let start = Sequence(1_000);
        Self {
            view: View::starting_at(start).with_packed_puts_min(3),
            reference: ReferenceView::starting_at(start),
            revision: 10,
            folding: Vec::new(),
        }
    }

    /// Applies commands to the view at once, and to the reference one by one.
    fn apply(&mut self, count: usize, mut next: impl FnMut(&mut Self) -> Command) {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(self.revision.cast_unsigned());
        let (mut commands, mut expected) = (Vec::new(), ChangeSet::default());
        for _ in 0..count {
            let command = next(self);
            let change_set = self.reference.apply(command.clone(), now);
            expected.announcements.extend(change_set.announcements);
            expected.records.extend(change_set.records);
            expected.cursors.extend(change_set.cursors);
            expected.clusters.extend(change_set.clusters);
            commands.push(command);
        }
        let mut change_set = self.view.apply_all(commands, now);
        for chunk in std::mem::take(&mut change_set.chunks) {
            for record in (0..chunk.len()).map(|row| chunk.record(row)) {
                let is_packed = |(_, change): &(EntryKey, Option<Arc<Record>>)| {
                    change.as_ref().is_some_and(|change| Record { object: None, generation: 0, ..(**change).clone() } == record)
                };
                assert!(change_set.records.iter().any(is_packed), "the chunk has {record:?}");
            }
        }
        assert_eq!(change_set, expected);
    }

    fn random_commands(&mut self, random: &mut StdRng) {
        let count = if random.random() { 1 } else { random.random_range(2..6) };
        self.apply(count, |pair| pair.random_command(random));
    }

    fn random_command(&mut self, random: &mut StdRng) -> Command {
        let scope = Scope { cluster: cluster(random.random_range(0..4)), kind: Kind::ALL[random.random_range(0..Kind::ALL.len())] };
        self.revision += 1;
        match random.random_range(0..40) {
            0 | 1 => Command::BeginList(scope),
            2 => Command::Apply { scope, changes: Vec::new(), cursor: Some(cursor(self.revision)) },
            3 => Command::Prune(scope),
            4 => Command::Confirm(scope),
            5 => Command::Remove { cluster: scope.cluster, reason: DeleteReason::ClusterRemoved },
            6 => Command::StoreCluster { cluster: scope.cluster, record: ClusterRecord::default() },
            12 | 13 => {
                Command::Phase { cluster: scope.cluster, phase: Phase::ALL[random.random_range(0..3)], cause: random.random_range(0..2) }
            }
            14 => findings::random_command(random),
            7..12 => self.relist(random, scope),
            15..19 => self.first_list(random, scope),
            _ => {
                let changes = (0..random.random_range(1..12)).map(|_| self.random_change(random, &scope)).collect();
                Command::Apply { scope, changes, cursor: random.random::<bool>().then(|| cursor(self.revision)) }
            }
        }
    }

    /// Returns puts in key order. Often all keys are new and no other key is between them.
    fn first_list(&mut self, random: &mut StdRng, scope: Scope) -> Command {
        let mut changes: Vec<Change> = (0..12).map(|_| self.random_change(random, &scope)).collect();
        changes.retain(|change| matches!(change, Change::Put { .. }));
        changes.sort_by(|left, right| key_of(left).cmp(key_of(right)));
        changes.dedup_by(|left, right| key_of(left) == key_of(right));
        changes.truncate(random.random_range(3..7));
        Command::Apply { scope, changes, cursor: None }
    }

    /// Returns puts of equal bytes with other revisions and leases.
    fn relist(&mut self, random: &mut StdRng, scope: Scope) -> Command {
        let existing: Vec<Arc<Record>> = self.reference.in_scope(&scope).cloned().collect();
        let puts = existing.into_iter().filter(|_| random.random_ratio(2, 3)).map(|record| {
            self.revision += 1;
            let source = SourceStamp { mod_revision: Revision(self.revision), lease: LeaseId(self.revision % 3), held: false };
            Change::Put { key: record.key.clone(), value: Arc::clone(&record.value), decoded: decoded(&record.key, &record.value), source }
        });
        Command::Apply { scope, changes: puts.collect(), cursor: None }
    }

    fn random_change(&mut self, random: &mut StdRng, scope: &Scope) -> Change {
        let (key, value) = random_put(random, scope);
        match random.random_range(0..8) {
            0 | 1 => return Change::Delete { key },
            2 => return Change::Hold { key },
            _ => {}
        }
        self.revision += 1;
        let source = SourceStamp { mod_revision: Revision(self.revision), lease: LeaseId(random.random_range(0..3)), held: false };
        Change::Put { decoded: decoded(&key, &value), value: value.into(), key, source }
    }

    /// Starts some folds, or applies those that were started before.
    fn fold_step(&mut self, random: &mut StdRng) {
        if !self.folding.is_empty() {
            self.folding.shuffle(random);
            for folded in self.folding.drain(..) {
                self.view.fold(folded);
            }
            return;
        }
        for job in self.view.fold_jobs(random.random_range(1..5)) {
            let FoldResult { replaced, chunks } = job.run();
            self.folding.push(FoldResult {
                replaced,
                chunks: split_into_small_chunks(&chunks, random.random_range(1..9), random.random_ratio(1, 4)),
            });
        }
    }

    /// Restores the view and the reference from the same records: the view partly from chunks and
    /// partly from single records.
    fn restart(&mut self, random: &mut StdRng) {
        let (old, start) = (std::mem::take(&mut self.reference), Sequence(self.view.sequence().0 + 1_000));
        (self.view, self.reference, self.folding) =
            (View::starting_at(start).with_packed_puts_min(3), ReferenceView::starting_at(start), Vec::new());
        let records: Vec<Record> =
            old.records_from(&EntryKey::lowest()).map(|record| Record { generation: 0, ..(**record).clone() }).collect();
        // a version that only the chunk has; the record replaces it
        let replaced =
            |record: &Record| Record { last_sequence: Sequence(record.last_sequence.0 + 500_000), version: 99, ..record.clone() };
        let chunked: BTreeMap<EntryKey, Record> = records
            .iter()
            .filter(|_| random.random_ratio(3, 4))
            .map(|record| (record.key.clone(), if record.version % 5 == 0 { replaced(record) } else { record.clone() }))
            .collect();
        // a key that was deleted after its chunk was packed
        let deleted_key = EntryKey::new(Kind::Ip, cluster(0), "10.9.9.9");
        let value = br#"{"IP":"10.9.9.9","ID":300}"#.as_slice();
        let template = records.first().cloned();
        let extra = template.map(|record| {
            let object = Some(decoded(&deleted_key, value).unwrap());
            Record { key: deleted_key.clone(), value: value.into(), object, rejection: None, good_value: None, ..record }
        });
        let mut all = chunked.clone();
        all.extend(extra.map(|record| (deleted_key.clone(), record)));
        let chunks = crate::pack::build(all.values());
        self.view.restore_chunks(split_into_small_chunks(&chunks, random.random_range(1..9), random.random_ratio(1, 4)));
        self.view.restore_deleted(&deleted_key);
        for record in &records {
            self.reference.restore(record.clone());
            if chunked.get(&record.key) != Some(record) {
                self.view.restore(record.clone());
            }
        }
    }

    fn compare(&self, random: &mut StdRng) {
        let (view, reference) = (&self.view, &self.reference);
        let start = match random.random_range(0..3) {
            0 => EntryKey::lowest(),
            1 => EntryKey::lowest_of(Kind::STORED[random.random_range(0..Kind::STORED.len())]),
            _ => EntryKey::new(Kind::Ip, cluster(random.random_range(0..4)), format!("10.0.0.{}", random.random_range(0..NAMES))),
        };
        let records: Vec<Arc<Record>> = reference.records_from(&start).cloned().collect();
        assert_eq!(view.records_from(&start).collect::<Vec<_>>(), records);
        let rejected = view.rejected_from(&start).filter_map(|key| view.record(key));
        assert_eq!(rejected.collect::<Vec<_>>(), reference.rejected_from(&start).cloned().collect::<Vec<_>>());
        assert_eq!(
            (view.sequence(), view.entry_count(), view.rejected_count()),
            (reference.sequence(), reference.entry_count(), reference.rejected_count())
        );
        assert_eq!(Kind::ALL.map(|kind| view.object_count(kind)), Kind::ALL.map(|kind| reference.object_count(kind)));
        assert_eq!(view.cluster_names(), reference.cluster_names());
        for record in &records {
            assert_eq!(view.record(&record.key).as_ref(), Some(record));
            assert_eq!(view.generation(&record.key), Some(record.generation));
            assert_eq!(view.is_confirmed(record), reference.is_confirmed(record));
        }
        for record in records.iter().filter(|record| record.last_sequence.0 % 4 == 0) {
            assert_eq!(view.references(&record.key), record.object.as_deref().map(|object| RecordReferences::of(record.key.kind, object)));
        }
        for (kind, number) in Kind::ALL.into_iter().flat_map(|kind| (0..4).map(move |number| (kind, number))) {
            let scope = Scope { cluster: cluster(number), kind };
            assert_eq!((view.scope(&scope), view.cursor(&scope)), (reference.scope(&scope), reference.cursor(&scope)));
            assert_eq!(view.held_count(&scope), reference.in_scope(&scope).filter(|record| record.source.held).count());
            assert_eq!(
                view.keys_in_scope(&scope).collect::<Vec<_>>(),
                reference.in_scope(&scope).map(|r| r.key.clone()).collect::<Vec<_>>()
            );
        }
        for id in (300..304).chain([2, 4, 6, 8, 9, 10]) {
            assert_eq!(view.identities(id).collect::<Vec<_>>(), reference.identities(id).cloned().collect::<Vec<_>>());
            assert_eq!(
                view.ips_of_identity(id, &start).collect::<Vec<_>>(),
                reference.ips_of_identity(id, &start).cloned().collect::<Vec<_>>()
            );
        }
        self.compare_lookups(random);
        self.compare_prefixes();
        self.compare_order(random);
    }

    fn compare_lookups(&self, random: &mut StdRng) {
        let (view, reference) = (&self.view, &self.reference);
        let addresses =
            (0..NAMES).flat_map(|number| [format!("10.0.0.{number}"), format!("fd00::{number:x}"), format!("172.18.0.{number}")]);
        for ip in addresses.map(|text| text.parse::<IpAddr>().unwrap()) {
            assert_eq!(view.lookup(ip, None), reference.lookup(ip), "{ip}");
            assert_eq!(view.nodes_at(ip).collect::<Vec<_>>(), reference.nodes_at(ip).cloned().collect::<Vec<_>>());
            let length = if ip.is_ipv4() { [32, 30, 28, 0] } else { [128, 124, 64, 0] }[random.random_range(0..4)];
            let net = ipnet::IpNet::new(ip, length).unwrap().trunc();
            assert_eq!(view.ips_at(net).collect::<Vec<_>>(), reference.ips_at(net).cloned().collect::<Vec<_>>());
            assert_eq!(view.covering(net), reference.covering(net), "{net}");
        }
    }

    fn compare_prefixes(&self) {
        let mut counts = BTreeMap::<ObjectPrefix, usize>::new();
        for record in self.reference.records_from(&EntryKey::lowest()) {
            if let Some(Object::Ip(entry)) = record.object.as_deref()
                && (record.key.kind == Kind::Ip || entry.prefix.host)
            {
                *counts.entry(entry.prefix).or_default() += 1;
            }
        }
        let found = self.view.duplicate_prefixes();
        assert!(found.iter().all(|prefix| counts.contains_key(prefix)), "{counts:?}, {found:?}");
        assert!(counts.iter().filter(|(_, count)| **count > 1).all(|(prefix, _)| found.contains(prefix)), "{counts:?}, {found:?}");
    }

    fn compare_order(&self, random: &mut StdRng) {
        let mut order: Vec<(Sequence, EntryKey)> =
            self.reference.records_from(&EntryKey::lowest()).map(|record| (record.last_sequence, record.key.clone())).collect();
        order.extend(self.reference.phases_and_findings());
        order.sort();
        let position = order.get(random.random_range(0..=order.len())).map_or(self.view.sequence(), |(sequence, _)| *sequence);
        let count = random.random_range(1..30);
        let after: Vec<_> = order.into_iter().filter(|(sequence, _)| *sequence > position).take(count).collect();
        let found = self.view.live_keys_after(position, count).into_iter();
        assert_eq!(found.map(|(sequence, live)| (sequence, live.key())).collect::<Vec<_>>(), after);
    }
}

#[test]
fn the_packed_mirror_equals_the_reference() {
    for seed in 0..150 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut pair = ViewPair::new();
        for step in 0..120 {
            match random.random_range(0..20) {
                0..5 => pair.fold_step(&mut random),
                5 if step > 60 => pair.restart(&mut random),
                _ => pair.random_commands(&mut random),
            }
            if step % 6 == 0 {
                pair.compare(&mut random);
            }
        }
        pair.compare(&mut random);
    }
}

#[test]
fn a_snapshot_does_not_change() {
    let mut random = StdRng::seed_from_u64(1);
    let mut pair = ViewPair::new();
    for _ in 0..60 {
        pair.random_commands(&mut random);
    }
    let snapshot = ViewPair { view: pair.view.clone(), reference: pair.reference.clone(), revision: 0, folding: Vec::new() };
    for _ in 0..200 {
        pair.random_commands(&mut random);
        pair.fold_step(&mut random);
    }
    snapshot.compare(&mut random);
}

/// Both start from one snapshot and share its chunks and deltas.
#[test]
fn views_from_one_snapshot_are_independent() {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..20 {
        let mut one = ViewPair::new();
        for _ in 0..80 {
            one.random_commands(&mut random);
            one.fold_step(&mut random);
        }
        one.folding = Vec::new();
        let mut other = ViewPair { view: one.view.clone(), reference: one.reference.clone(), revision: one.revision, folding: Vec::new() };
        for _ in 0..60 {
            one.random_commands(&mut random);
            other.random_commands(&mut random);
        }
        one.compare(&mut random);
        other.compare(&mut random);
    }
}

#[test]
fn folding_packs_everything_when_nothing_changes() {
    let mut random = StdRng::seed_from_u64(2);
    let mut pair = ViewPair::new();
    for _ in 0..300 {
        pair.random_commands(&mut random);
    }
    for _ in 0..100 {
        if let Some(job) = pair.view.fold_jobs(1).pop() {
            pair.view.fold(job.run());
        }
    }
    assert!(pair.view.fold_jobs(1).pop().is_none());
    assert_eq!((pair.view.unpacked_count(), pair.view.restamped_row_count()), (0, 0));
    pair.compare(&mut random);
}

//! Tests of a start after a crash: announced changes are restored, and positions keep their meaning
//! or are refused.

use std::path::Path;

use std::time::Duration;

use super::*;
use crate::commit::LatestChange;
use crate::handle::{ClusterStatuses, Reading};
use crate::model::{DeleteReason, EntryKey, Epoch, EpochSpan, Tombstone};
use crate::model::{Kind, LabelSet, ObjectPrefix, Phase, Revision, SourceStamp};
use crate::view::LiveKey;

const EPOCH: Epoch = Epoch(0xe);

fn key(id: u32) -> EntryKey {
    EntryKey::new(Kind::Identity, ClusterName::parse("paris").unwrap(), id.to_string())
}

fn value(id: u32) -> Vec<u8> {
    format!("k8s:id={id};k8s:io.cilium.k8s.policy.cluster=paris;").into_bytes()
}

fn stored(id: u32, sequence: u64) -> Record {
    Record {
        key: key(id),
        value: value(id).into(),
        good_value: None,
        object: None,
        rejection: None,
        source: SourceStamp { mod_revision: Revision(5), ..SourceStamp::default() },
        create_sequence: Sequence(sequence),
        last_sequence: Sequence(sequence),
        version: 1,
        generation: 0,
    }
}

/// Starts with the first sequence after those that [`store_after_kill`] has reserved.
fn start(directory: &Path) -> RestoredMirror {
    start_at(directory, 1_001)
}

/// Starts with the clock at `micros` microseconds since 1970.
fn start_at(directory: &Path, micros: u64) -> RestoredMirror {
    let (store, _) = Store::open(directory, Duration::ZERO).unwrap();
    let retention = Retention { age_max: Duration::from_secs(3600), count_max: 1000 };
    let seed = EpochSeed { gap: 5, ..EpochSeed::draw(SystemTime::UNIX_EPOCH + Duration::from_micros(micros)) };
    restore(&store, MaxConnectedClusters::default(), retention, None, seed, None).unwrap()
}

fn reading(restored: &RestoredMirror) -> Reading {
    Reading::new(Arc::new(restored.published.clone()), ClusterStatuses::default())
}

/// Creates a store that covers sequences up to 12: identities 256 and 257 from 11 and 12. The
/// process that wrote it had announced more when it was killed.
fn store_after_kill(announced: &[Group]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    store.log().begin_epoch(EPOCH);
    let records = [stored(256, 11), stored(257, 12)].map(|record| (record.key.clone(), Some(Arc::new(record))));
    let epochs = vec![EpochSpan { epoch: EPOCH, start: Sequence(10), accepted_up_to: None }];
    let group = Group {
        records: records.into(),
        epochs: Some(epochs),
        covered_sequence: Some(Sequence(12)),
        sequence_reserved: Some(Sequence(1_000)),
        ..Group::default()
    };
    store.apply(&group).unwrap();
    // the log has the announced groups, but the store does not
    announced.iter().for_each(|group| store.log().append(&mut group.clone()));
    directory
}

/// Returns the announced groups: identity 258 is added at 13, 256 changes at 14, and 257 is deleted
/// at 15.
fn announced() -> [Group; 3] {
    let put = |id: u32, sequence: u64| Group {
        records: [(key(id), Some(Arc::new(stored(id, sequence))))].into(),
        covered_sequence: Some(Sequence(sequence)),
        ..Group::default()
    };
    let tombstone = Tombstone { key: key(257), reason: DeleteReason::Deleted, time: SystemTime::UNIX_EPOCH };
    let deleted = Group {
        records: [(key(257), None)].into(),
        tombstones: [(Sequence(15), Some(tombstone))].into(),
        covered_sequence: Some(Sequence(15)),
        ..Group::default()
    };
    [put(258, 13), put(256, 14), deleted]
}

fn accepted_up_to(restored: &RestoredMirror) -> Vec<Option<Sequence>> {
    restored.published.earlier_runs.iter().filter(|span| span.epoch == EPOCH).map(|span| span.accepted_up_to).collect()
}

fn after(restored: &RestoredMirror, position: u64) -> Vec<(u64, LatestChange<EntryKey>)> {
    let changes = changes_after(restored, position).into_iter().map(|(sequence, changed)| (sequence.0, changed));
    changes.filter(|(_, changed)| *changed != phase_change_of_paris()).collect()
}

fn changes_after(restored: &RestoredMirror, position: u64) -> Vec<(Sequence, LatestChange<EntryKey>)> {
    let changes = restored.published.changes_after(Sequence(position), usize::MAX).into_iter();
    let named = |changed| match changed {
        LatestChange::Live(live) => LatestChange::Live(LiveKey::key(&live)),
        LatestChange::Deleted(key, reason) => LatestChange::Deleted(key, reason),
    };
    changes.map(|(sequence, changed)| (sequence, named(changed))).collect()
}

/// Returns the change of the phase of paris, the only cluster. It is announced after everything
/// else.
fn phase_change_of_paris() -> LatestChange<EntryKey> {
    LatestChange::Live(EntryKey::of_cluster(ClusterName::parse("paris").unwrap()))
}

#[test]
fn changes_announced_before_a_kill_are_recovered_unchanged() {
    let directory = store_after_kill(&announced());
    let restored = start(directory.path());
    assert_eq!(accepted_up_to(&restored), [Some(Sequence(15))]);
    let changes = [
        (13, LatestChange::Live(key(258))),
        (14, LatestChange::Live(key(256))),
        (15, LatestChange::Deleted(key(257), DeleteReason::Deleted)),
    ];
    assert_eq!(after(&restored, 12), changes);
    assert_eq!(after(&restored, 15), []);
    assert_eq!(changes_after(&restored, 15), [(Sequence(1_001), phase_change_of_paris())]);
    assert_eq!(restored.published.position().sequence, Sequence(1_001));
    let labels: LabelSet = [("k8s:id".into(), "256".into()), ("k8s:io.cilium.k8s.policy.cluster".into(), "paris".into())].into();
    let object = restored.published.view.record(&key(256)).unwrap().object.clone();
    assert_eq!(object.as_deref(), Some(&crate::model::Object::Identity(crate::model::Identity { id: 256, labels: labels.into() })));
    // and the same at the next start
    let first_epoch = restored.published.epoch;
    drop(restored);
    let second = start_at(directory.path(), 1_000_000);
    assert_eq!((accepted_up_to(&second), after(&second, 12)), (vec![Some(Sequence(15))], changes.to_vec()));
    let spans: Vec<Epoch> = second.published.earlier_runs.iter().map(|span| span.epoch).collect();
    assert_eq!(spans, [EPOCH, first_epoch]);
}

/// After a power cut that lost the end of the log, positions after the last recovered change are
/// not accepted.
#[test]
fn positions_in_a_lost_end_of_the_log_are_not_accepted() {
    let directory = store_after_kill(&announced());
    let newest = std::fs::read_dir(directory.path().join("log")).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let bytes = std::fs::read(&newest).unwrap();
    std::fs::write(&newest, &bytes[..bytes.len() - 1]).unwrap();
    let restored = start(directory.path());
    assert_eq!(accepted_up_to(&restored), [Some(Sequence(14))]);
    assert_eq!(after(&restored, 12), [(13, LatestChange::Live(key(258))), (14, LatestChange::Live(key(256)))]);
    assert!(restored.published.view.record(&key(257)).is_some(), "the key existed at sequence 14");
}

#[test]
fn two_starts_from_copies_of_a_store_share_no_position() {
    let original = store_after_kill(&[]);
    let copy = tempfile::tempdir().unwrap();
    copy_tree(original.path(), copy.path());
    let (first, second) = (start(original.path()), start(copy.path()));
    assert_ne!(first.published.epoch, second.published.epoch);
    assert!(second.published.earlier_runs.iter().all(|span| span.epoch != first.published.epoch));
}

/// Clients of the etcd API only know numbers without epochs. A copy of a store continues from
/// revisions that were announced before it was made and from its own, but from no others.
#[test]
fn a_copy_accepts_no_revision_that_the_original_announced_later() {
    let original = store_after_kill(&announced());
    let copy = tempfile::tempdir().unwrap();
    copy_tree(original.path(), copy.path());
    let first = start_at(original.path(), 1_000_000);
    let later = start_at(original.path(), 2_000_000);
    let restored = start_at(copy.path(), 3_000_000);
    let [original_reading, copy_reading] = [&later, &restored].map(reading);
    assert_eq!(original_reading.lineage(), copy_reading.lineage(), "both continue the same history");
    for known in [11, 15, copy_reading.position().sequence.0] {
        assert_eq!(copy_reading.check_raw_position(Sequence(known)), Ok(()), "{known}");
    }
    let of_original = [first.published.position().sequence.0, original_reading.position().sequence.0];
    let between = [16, 1_000, 1_001, 66_537, 999_999, 2_999_998];
    let above = [copy_reading.position().sequence.0 + 1, 4_000_000];
    for unknown in of_original.into_iter().chain(between).chain(above) {
        assert_eq!(copy_reading.check_raw_position(Sequence(unknown)), Err(copy_reading.position().sequence), "{unknown}");
    }
}

#[test]
fn a_clock_that_is_not_ahead_gives_the_history_a_new_name() {
    let original = store_after_kill(&announced());
    let copies = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let lineage = reading(&start_at(original.path(), 5_000_000)).lineage();
    assert_eq!(lineage, EPOCH.0);
    copies.iter().for_each(|copy| copy_tree(original.path(), copy.path()));
    let [one, other] = [0, 1].map(|at| start_at(copies[at].path(), 4_000_000));
    let [one_reading, other_reading] = [&one, &other].map(reading);
    assert!(one_reading.lineage() != lineage && one_reading.lineage() != other_reading.lineage());
    assert!(one_reading.position().sequence > Sequence(5_000_000), "no sequence is used twice");
    assert_eq!((accepted_up_to(&one), one_reading.check_raw_position(Sequence(15))), (vec![Some(Sequence(15))], Ok(())));
    let renamed = one_reading.lineage();
    let next = reading(&start_at(copies[0].path(), 6_000_000));
    assert_eq!((next.lineage(), next.check_raw_position(one_reading.position().sequence)), (renamed, Ok(())));
    assert_eq!(next.position().sequence, Sequence(6_000_000));
}

#[test]
fn a_cluster_announced_before_a_kill_is_known_and_announced_again() {
    let tokyo = ClusterName::parse("tokyo").unwrap();
    let clusters = [(tokyo.clone(), Some(crate::model::ClusterRecord::default()))].into();
    let directory = store_after_kill(&[Group { clusters, covered_sequence: Some(Sequence(13)), ..Group::default() }]);
    let restored = start(directory.path());
    assert_eq!(accepted_up_to(&restored), [Some(Sequence(13))]);
    let changes: Vec<LatestChange<EntryKey>> = changes_after(&restored, 13).into_iter().map(|(_, changed)| changed).collect();
    assert_eq!(changes, [phase_change_of_paris(), LatestChange::Live(EntryKey::of_cluster(tokyo.clone()))]);
    assert_eq!(restored.published.view.phase(&tokyo), Some(Phase::WaitingForFiles));
}

fn node_key(name: &str) -> EntryKey {
    EntryKey::new(Kind::Node, ClusterName::parse("paris").unwrap(), name)
}

fn derived_key(ip: &str) -> EntryKey {
    EntryKey::of_node_ip(&node_key("a"), ObjectPrefix::parse(ip).unwrap())
}

/// Creates a store that contains a node with two addresses, as written by a version that did not
/// derive entries yet.
fn with_node(sequence: u64) -> tempfile::TempDir {
    let directory = store_after_kill(&[]);
    let addresses = r#"[{"Type":"InternalIP","IP":"10.0.0.1"},{"Type":"CiliumInternalIP","IP":"10.0.0.2"}]"#;
    let value = format!(r#"{{"Name":"a","Cluster":"paris","IPAddresses":{addresses}}}"#).into_bytes();
    let record = Record { key: node_key("a"), value: value.into(), ..stored(256, sequence) };
    let group = Group {
        records: [(record.key.clone(), Some(Arc::new(record)))].into(),
        covered_sequence: Some(Sequence(sequence)),
        ..Group::default()
    };
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    store.apply(&group).unwrap();
    directory
}

fn derived_entries(restored: &RestoredMirror) -> Vec<(EntryKey, u64)> {
    let lowest = EntryKey::lowest_of(Kind::NodeIp);
    let records = restored.published.view.records_from(&lowest);
    records.filter(|record| record.key.kind == Kind::NodeIp).map(|record| (record.key.clone(), record.last_sequence.0)).collect()
}

#[test]
fn a_store_without_derived_entries_gets_and_announces_them_once() {
    let directory = with_node(13);
    let first = start(directory.path());
    assert_eq!((accepted_up_to(&first), first.restored_count), (vec![Some(Sequence(13))], 3));
    let expected = vec![(derived_key("10.0.0.1"), 1_002), (derived_key("10.0.0.2"), 1_003)];
    assert_eq!(derived_entries(&first), expected);
    let changes: Vec<(u64, LatestChange<EntryKey>)> =
        expected.iter().map(|(key, sequence)| (*sequence, LatestChange::Live(key.clone()))).collect();
    assert_eq!(after(&first, 13), changes);
    assert_eq!(first.published.position().sequence, Sequence(1_003));
    assert!(first.reserved > Sequence(1_003));
    let (epoch, position) = (first.published.epoch, first.published.position().sequence);
    drop(first);
    // they are stored: only the phase of the cluster is announced again
    let second = start_at(directory.path(), 1_000_000);
    assert_eq!(derived_entries(&second), expected);
    assert_eq!(after(&second, position.0), []);
    let span = second.published.earlier_runs.iter().find(|span| span.epoch == epoch).unwrap();
    assert_eq!((span.accepted_up_to, second.restored_count), (Some(position), 3));
}

/// The entries were derived by older rules, without pod CIDRs: the entries of pod CIDRs are added,
/// and the entry of the router's address is updated.
#[test]
fn entries_derived_by_other_rules_are_updated_where_they_differ() {
    let directory = store_after_kill(&[]);
    let addresses = r#"[{"Type":"InternalIP","IP":"10.0.0.1"},{"Type":"CiliumInternalIP","IP":"10.0.0.2"}]"#;
    let rest = r#""IPv4AllocCIDR":"10.1.0.0/24","EncryptionKey":7"#;
    let stored_as = |key: EntryKey, value: String| {
        let record = Record { key, value: value.into_bytes().into(), ..stored(256, 13) };
        (record.key.clone(), Some(Arc::new(record)))
    };
    let derived = |ip: &str, key: u8| stored_as(derived_key(ip), format!(r#"{{"IP":"{ip}","HostIP":"10.0.0.1","ID":6,"Key":{key}}}"#));
    let node = stored_as(node_key("a"), format!(r#"{{"Name":"a","Cluster":"paris","IPAddresses":{addresses},{rest}}}"#));
    let records = [node, derived("10.0.0.1", 0), derived("10.0.0.2", 7)].into();
    let group = Group { records, covered_sequence: Some(Sequence(13)), derivation_version: Some(1), ..Group::default() };
    Store::open(directory.path(), Duration::ZERO).unwrap().0.apply(&group).unwrap();
    let restored = start(directory.path());
    let changes: Vec<LatestChange<EntryKey>> = after(&restored, 13).into_iter().map(|(_, changed)| changed).collect();
    assert_eq!(changes, [LatestChange::Live(derived_key("10.0.0.2")), LatestChange::Live(derived_key("10.1.0.0/24"))]);
    let view = &restored.published.view;
    let entry = |prefix: &str| view.record(&derived_key(prefix)).unwrap().object.as_deref().unwrap().as_ip().unwrap().clone();
    assert_eq!((entry("10.0.0.2").encryption_key, entry("10.1.0.0/24").encryption_key, entry("10.1.0.0/24").identity), (0, 7, 2));
    drop(restored);
    let again = start_at(directory.path(), 1_000_000);
    assert_eq!(derived_entries(&again).len(), 3);
    let matches = again.published.view.lookup("10.1.0.9".parse().unwrap(), None);
    assert_eq!(matches.iter().map(|entry| entry.record.key.clone()).collect::<Vec<_>>(), [derived_key("10.1.0.0/24")]);
}

/// After a kill before the last group was stored, the mark is missing, so the next start derives
/// the missing entries.
#[test]
fn an_interrupted_derivation_is_completed_by_the_next_start() {
    let directory = with_node(13);
    drop(start(directory.path()));
    let (store, _) = Store::open(directory.path(), Duration::ZERO).unwrap();
    let lost =
        Group { records: [(derived_key("10.0.0.2"), None)].into(), derivation_version: Some(DERIVATION_VERSION - 1), ..Group::default() };
    store.apply(&lost).unwrap();
    drop(store);
    let again = start_at(directory.path(), 1_000_000);
    let keys: Vec<EntryKey> = derived_entries(&again).into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [derived_key("10.0.0.1"), derived_key("10.0.0.2")]);
    assert_eq!(
        after(&again, 1_003).into_iter().map(|(_, changed)| changed).collect::<Vec<_>>(),
        [LatestChange::Live(derived_key("10.0.0.2"))]
    );
    drop(again);
    assert_eq!(Store::open(directory.path(), Duration::ZERO).unwrap().0.load().unwrap().derivation_version, Some(DERIVATION_VERSION));
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() {
            copy_tree(&path, &to.join(name));
        } else {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

//! Generates a store of a million keys and a large history of its ipcache entries, segment by
//! segment and without an etcd.
//!
//! Each change gives a pseudorandom address to another pod. The store has the versions after the
//! last change, so history and store fit together.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fs, thread};

use meshkeep::internals::history::write_unmerged_segment;
use meshkeep::internals::model::{EntryKey, Kind, LeaseId, Record, ReplacedRecord, ReplacedRecords, Revision, Sequence, SourceStamp};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{history_bytes, ratio};
use crate::processes::Outcome;
use crate::start::fill::fill_with;
use crate::view::data;

/// Number of versions in a segment. With `--history-max-bytes 10GiB`, a segment is full at 20 MiB.
pub(super) const SEGMENT_VERSIONS: u64 = 524_288;

/// Rate of changes in Cilium's own scale test, per second.
const RATE: u64 = 325;

/// Number of changes that the sidecar gets at once and that have the same time.
const CHANGES_AT_ONCE: u64 = 13;

/// Number of threads that write segments.
const WRITERS: u64 = 2;

/// Sequences of the records that never change: after those of the ipcache entries.
const UNCHANGED_SEQUENCES: u64 = 3_000_000;

/// The changes of a history.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes {
    /// Number of changes.
    pub(super) count: u64,
    /// Time of the first change.
    pub(super) start: SystemTime,
}

impl Changes {
    /// Returns changes that end now.
    pub(super) fn until_now(count: u64) -> Self {
        Self { count, start: SystemTime::now() - Duration::from_millis(count * 1_000 / RATE) }
    }

    /// Returns the time of a change.
    pub(super) fn time(&self, change: u64) -> SystemTime {
        self.start + Duration::from_millis(change / CHANGES_AT_ONCE * CHANGES_AT_ONCE * 1_000 / RATE)
    }
}

/// Returns the number of ipcache entries.
fn entry_count() -> u64 {
    u64::from(data::clusters()) * u64::from(data::IPS)
}

/// Returns the sequence of a change. The first change has the number 0.
pub(super) fn sequence_of(change: u64) -> u64 {
    entry_count() + UNCHANGED_SEQUENCES + 1 + change
}

/// Returns the entry that a change gives to another pod.
pub(super) fn entry_of(change: u64) -> u64 {
    // splitmix64
    let mut mixed = change.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31) % entry_count()
}

/// Returns the cluster and the index of an entry.
pub(super) fn place_of(entry: u64) -> (u32, u32) {
    let number = u32::try_from(entry).expect("must be less than 2^32");
    (number / data::IPS + 1, number % data::IPS)
}

/// Returns the pod of the version that the change with this sequence created.
pub(super) fn pod_of(sequence: u64) -> String {
    let mut random = StdRng::seed_from_u64(sequence);
    format!("cart-7-{}-{}", data::letters(&mut random, 9), data::letters(&mut random, 5))
}

/// Sequence of the newest version of each entry, and the number of its versions.
struct NewestVersions(Vec<(u64, u32)>);

impl NewestVersions {
    fn new() -> Self {
        Self((1..=entry_count()).map(|sequence| (sequence, 1)).collect())
    }

    /// Applies a change. Returns the record that it replaces; `None` if it is not wanted.
    fn apply(&mut self, change: u64, is_wanted: bool) -> Option<Record> {
        let entry = entry_of(change);
        let newest = &mut self.0[usize::try_from(entry).unwrap_or(0)];
        let (sequence, version) = std::mem::replace(newest, (sequence_of(change), newest.1 + 1));
        is_wanted.then(|| record_of(entry, sequence, version))
    }
}

fn record_of(entry: u64, sequence: u64, version: u32) -> Record {
    let (cluster, index) = place_of(entry);
    Record {
        key: EntryKey::new(Kind::Ip, data::cluster(cluster), data::address(cluster, index).to_string()),
        value: data::ip_value(cluster, index, &pod_of(sequence)).into_bytes().into(),
        good_value: None,
        object: None,
        rejection: None,
        source: SourceStamp { mod_revision: Revision(i64::try_from(sequence).unwrap_or(0)), lease: LeaseId(7), held: false },
        create_sequence: Sequence(entry + 1),
        last_sequence: Sequence(sequence),
        version: version.into(),
        generation: 0,
    }
}

/// Fills a store with the entries as they are after all changes.
pub(super) fn fill(data_directory: &Path, change_count: u64) -> Outcome<()> {
    let mut newest = NewestVersions::new();
    (0..change_count).for_each(|change| drop(newest.apply(change, false)));
    let head = Sequence(sequence_of(change_count) - 1);
    fill_with(data_directory, data::clusters(), Some(head), |record| {
        if record.key.kind != Kind::Ip {
            let sequence = Sequence(entry_count() + record.last_sequence.0);
            return Record { create_sequence: sequence, last_sequence: sequence, ..record };
        }
        let octets: Vec<u64> = record.key.name.split('.').filter_map(|octet| octet.parse().ok()).collect();
        // the inverse of `data::address`
        let entry = (octets[1] - 1) * u64::from(data::IPS) + octets[2] * 250 + octets[3] - 1;
        let (sequence, version) = newest.0[usize::try_from(entry).unwrap_or(0)];
        let record = record_of(entry, sequence, version);
        Record { object: Some(data::decode(&record.key, &record.value)), ..record }
    })
}

/// Writes the segments of all changes. Prints their number and length.
pub(super) fn generate(data_directory: &Path, change_count: u64, segment_versions: u64) -> Outcome<()> {
    let changes = Changes::until_now(change_count);
    fs::create_dir_all(data_directory.join("history"))?;
    thread::scope(|scope| {
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write_segments(data_directory, changes, segment_versions, writer))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| "a writer panicked")?)
    })?;
    let (bytes, files) = history_bytes(data_directory)?;
    println!(
        "{} {change_count} versions in {files} segments, {} MB, {:.1} B per version",
        changes.start.duration_since(SystemTime::UNIX_EPOCH)?.as_millis(),
        bytes / 1_000_000,
        ratio(bytes, change_count)
    );
    Ok(())
}

/// Writes every segment whose number belongs to this writer, in a directory of its own because two
/// segments that are being written have the same name.
fn write_segments(data_directory: &Path, changes: Changes, segment_versions: u64, writer: u64) -> Outcome<()> {
    let own = data_directory.join(format!("writer-{writer}"));
    let mut newest = NewestVersions::new();
    for number in 0..changes.count.div_ceil(segment_versions) {
        let range = number * segment_versions..((number + 1) * segment_versions).min(changes.count);
        let is_wanted = number % WRITERS == writer;
        let mut replaced = ReplacedRecords {
            after: Sequence(sequence_of(range.start) - 1),
            last: Sequence(sequence_of(range.end) - 1),
            ..ReplacedRecords::default()
        };
        for change in range {
            let Some(record) = newest.apply(change, is_wanted) else { continue };
            let sequence = Sequence(sequence_of(change));
            replaced.times.push((sequence, changes.time(change)));
            replaced.records.insert(sequence, ReplacedRecord { record: Arc::new(record), deleted: None });
        }
        if is_wanted {
            write_unmerged_segment(&own, &replaced)?;
        }
    }
    for file in fs::read_dir(own.join("history"))? {
        let file = file?;
        fs::rename(file.path(), data_directory.join("history").join(file.file_name()))?;
    }
    Ok(fs::remove_dir_all(own)?)
}

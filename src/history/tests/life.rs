//! Random lives of a mesh: changes, seals, merges, retention, jumps of the clock, kills and damage.
//! Every answer is compared with a naive history. An answer may be unknown only where a gap is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::model::{ModelHistory, covering, mesh_addresses, mesh_keys};
use crate::history::segment::row_key::prefix_of;
use crate::history::segment::times::Millis;
use crate::history::snapshot::HistorySnapshot;
use crate::history::{HistoryOptions, HistoryReader, HistoryWriter, PageLimits, PastState, ReplacedVersion, VersionSelection, history};
use crate::model::{EntryKey, Kind, Record, ReplacedRecordSink as _, ReplacedRecords, Sequence};

/// Number of lives. `MESHKEEP_TEST_LIVES` is for long runs.
const LIVES: u64 = 12;

const STEPS: usize = 60;

/// A mesh with its history on disk, its log, and the naive history.
struct Life {
    random: StdRng,
    directory: tempfile::TempDir,
    options: HistoryOptions,
    keys: Vec<EntryKey>,
    model: ModelHistory,
    history: Option<(HistoryWriter, HistoryReader)>,
    /// Groups of the log that may still be needed.
    log: Vec<(u64, ReplacedRecords)>,
    group: u64,
    released: Arc<AtomicU64>,
    /// Sequences at which the history lost changes. No answer before them is certain.
    lost_at: Vec<Sequence>,
    comparisons: u64,
    unknown: u64,
}

fn limits(count_max: usize) -> PageLimits {
    PageLimits { count_max, bytes_max: usize::MAX, deadline: Instant::now() + Duration::from_secs(600) }
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory.join("history")).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let bytes_max = if random.random() { 1 << 30 } else { random.random_range(20_000..100_000) };
        let options = HistoryOptions { age_max: Duration::from_secs(7 * 86_400 * 100_000), bytes_max };
        let (model, released) = (ModelHistory { clock: Millis(1_700_000_000_000), ..ModelHistory::default() }, Arc::default());
        let mut life = Self {
            random,
            directory: tempfile::tempdir().unwrap(),
            options,
            keys: mesh_keys(),
            model,
            history: None,
            log: Vec::new(),
            group: 1,
            released,
            lost_at: Vec::new(),
            comparisons: 0,
            unknown: 0,
        };
        life.open();
        life
    }

    /// Opens the history after a start, with what the log has.
    fn open(&mut self) {
        let released = Arc::clone(&self.released);
        let release = move |group| {
            released.fetch_max(group, Ordering::Relaxed);
        };
        let (writer, reader) = history(self.directory.path(), self.options, release);
        for (group, replaced) in &self.log {
            let mut replaced = replaced.clone();
            replaced.remove_up_to(reader.last());
            if replaced.last > reader.last() {
                reader.add_replaced(*group, &replaced);
            }
        }
        reader.confirm_synced(self.group);
        self.history = Some((writer, reader));
    }

    fn reader(&self) -> &HistoryReader {
        &self.history.as_ref().unwrap().1
    }

    fn change(&mut self) {
        let hours = self.random.random_range(-3..4);
        let jump = if self.random.random_ratio(1, 15) { hours * 3_600_000 } else { 0 };
        self.model.clock = Millis(self.model.clock.0 + self.random.random_range(0..5_000) + jump);
        let count = self.random.random_range(1..12);
        let replaced = self.model.change(&mut self.random, &self.keys, count);
        self.group += 1;
        self.reader().add_replaced(self.group, &replaced);
        self.log.push((self.group, replaced));
        if self.random.random_ratio(4, 5) {
            self.reader().confirm_synced(self.group);
        }
    }

    fn seal(&mut self) {
        self.reader().confirm_synced(self.group);
        let (writer, reader) = self.history.as_ref().unwrap();
        reader.request_seal();
        writer.run_due_tasks();
        let released = self.released.load(Ordering::Relaxed);
        // the log removes whole files, so it may have more than the history needs
        if self.random.random() {
            self.log.retain(|(group, _)| *group > released);
        }
    }

    /// Kills the process: between two seals, or while a segment is written, renamed, or replaces
    /// others.
    fn kill(&mut self) {
        let history = self.directory.path().join("history");
        let before: Vec<(PathBuf, Vec<u8>)> =
            files_in(self.directory.path()).into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        let released = self.released.load(Ordering::Relaxed);
        let log = self.log.clone();
        match self.random.random_range(0..4) {
            0 => {}
            1 => {
                // the segment was renamed, and the absorbed ones were not removed
                self.seal();
                before.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
                self.remove_retained_away(&before);
            }
            _ => {
                // the segment was not renamed, and perhaps only a part of it was written
                self.seal();
                let written = files_in(self.directory.path()).last().map(|path| fs::read(path).unwrap()).unwrap_or_default();
                for path in files_in(self.directory.path()) {
                    fs::remove_file(path).unwrap();
                }
                before.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
                self.log = log;
                self.released.store(released, Ordering::Relaxed);
                fs::create_dir_all(&history).unwrap();
                fs::write(history.join("new"), &written[..written.len() / 2]).unwrap();
            }
        }
        self.history = None;
        self.open();
        assert!(!history.join("new").exists());
    }

    /// Removes files again that retention had removed, because only absorbed ones may remain.
    fn remove_retained_away(&self, before: &[(PathBuf, Vec<u8>)]) {
        let oldest = self.reader().snapshot().segments.first().map(|segment| segment.after);
        for (path, _) in before {
            let first: u64 = path.file_name().unwrap().to_str().unwrap().split_once('-').unwrap().0.parse().unwrap();
            if oldest.is_none_or(|oldest| first <= oldest.0) {
                fs::remove_file(path).unwrap();
            }
        }
    }

    /// Damages a byte or the length of a segment, and starts again.
    fn damage(&mut self) {
        let files = files_in(self.directory.path());
        if files.is_empty() {
            return;
        }
        let path = &files[self.random.random_range(0..files.len())];
        let mut bytes = fs::read(path).unwrap();
        if self.random.random_ratio(1, 4) {
            bytes.truncate(self.random.random_range(0..bytes.len()));
        } else {
            let position = self.random.random_range(0..bytes.len());
            bytes[position] ^= 1 << self.random.random_range(0..8);
        }
        fs::write(path, bytes).unwrap();
        let (_, last) = path.file_name().unwrap().to_str().unwrap().split_once('-').unwrap();
        self.lost_at.push(Sequence(last.parse().unwrap()));
        self.history = None;
        self.open();
    }

    /// Drops everything that is not in a segment, as a power cut with a damaged log does. The next
    /// changes follow a gap.
    fn lose_log(&mut self) {
        self.history = None;
        self.log.clear();
        self.lost_at.push(self.model.head);
        self.model.skip_to(Sequence(self.model.head.0 + 1_000));
        self.open();
        self.change();
        self.lost_at.push(self.model.changes.last().map_or(Sequence(0), |change| change.sequence));
        self.reader().confirm_synced(self.group);
    }

    /// Returns the sequence from which on the history must know everything.
    fn known_from(&self, snapshot: &HistorySnapshot) -> Sequence {
        let start = snapshot.sources().next().map_or(snapshot.last(), |source| source.after());
        self.lost_at.iter().copied().max().unwrap_or_default().max(start)
    }

    fn compare(&mut self) {
        let current = self.model.current.clone();
        let snapshot = self.reader().snapshot();
        let known_from = self.known_from(&snapshot);
        let mut sequences: Vec<Sequence> = (0..6).map(|_| Sequence(self.random.random_range(0..=self.model.head.0))).collect();
        sequences.extend(self.lost_at.last().map(|lost| lost.next()));
        sequences.extend([known_from, snapshot.last()]);
        for at in sequences {
            let records = self.model.records_at(at);
            for key in &self.keys {
                let found = snapshot.version_at(key, at, current.get(key)).state;
                self.comparisons += 1;
                match (found, records.get(key)) {
                    (PastState::Existed(found), Some(expected)) if found == *expected => {}
                    (PastState::Absent, None) => {}
                    (PastState::Unknown, _) if at < known_from => self.unknown += 1,
                    (found, expected) => panic!("{key} at {at}, known from {known_from}: {found:?} instead of {expected:?}"),
                }
            }
            for ip in mesh_addresses() {
                let found = snapshot.covering_at(ip, at, |_| at, &covering(&current, ip));
                let expected = covering(&records, ip);
                self.comparisons += 1;
                assert!(found.records.iter().all(|record| expected.contains(record)), "{ip} at {at}");
                assert!(found.is_complete || at < known_from, "{ip} at {at}, known from {known_from}");
                assert!(!found.is_complete || found.records == expected, "{ip} at {at}");
            }
        }
        self.compare_times(&snapshot, known_from);
        self.compare_versions(&snapshot, known_from);
    }

    fn compare_times(&mut self, snapshot: &HistorySnapshot, known_from: Sequence) {
        let changes = &self.model.changes;
        for _ in 0..10 {
            let Some(change) = changes.get(self.random.random_range(0..changes.len().max(1))) else { return };
            let time = Millis(change.time.0 + self.random.random_range(-2_000..2_000));
            let Some(found) = snapshot.sequence_at(time.into()) else { continue };
            self.comparisons += 1;
            // jumps of the clock before the history begins and in gaps are not known
            if found.sequence >= known_from && self.lost_at.is_empty() {
                let start = snapshot.sources().next().map_or(snapshot.last(), |source| source.after());
                let expected = self.model.last_at(start, time);
                assert!(
                    self.model.records_at(found.sequence) == self.model.records_at(expected),
                    "at {time:?}, {expected}, found {found:?}"
                );
                let latest = changes.iter().rfind(|change| change.time <= time).map_or(Sequence(0), |change| change.sequence);
                assert_eq!(self.model.records_at(found.latest.max(latest)), self.model.records_at(found.latest), "at {time:?}");
            }
            if change.sequence > known_from {
                assert_eq!(snapshot.time_of(change.sequence), Some(change.time.into()));
            }
        }
    }

    /// Returns a random selection of each kind.
    fn selections(&mut self) -> Vec<VersionSelection> {
        let key = self.keys[self.random.random_range(0..self.keys.len())].clone();
        let addresses = mesh_addresses();
        let ip = addresses[self.random.random_range(0..addresses.len())];
        let (kinds, clusters) = (vec![key.kind, Kind::Ip], vec![key.cluster.clone()]);
        let clusters = if self.random.random() { clusters } else { Vec::new() };
        vec![
            VersionSelection::Key(key),
            VersionSelection::Covering(ip),
            VersionSelection::Identity(self.random.random_range(65_536..65_544)),
            VersionSelection::IdentityObjects(self.random.random_range(65_536..65_544)),
            VersionSelection::Pod { namespace: "shop".to_owned(), name: format!("cart-{}", self.random.random_range(0..8)) },
            VersionSelection::Scopes { kinds, clusters },
        ]
    }

    fn compare_versions(&mut self, snapshot: &HistorySnapshot, known_from: Sequence) {
        for selection in self.selections() {
            let (mut versions, mut before) = (Vec::new(), None);
            let page_length = self.random.random_range(1..20);
            loop {
                let page = snapshot.versions(&selection, before, limits(page_length));
                assert!(page.versions.len() <= page_length);
                versions.extend(page.versions);
                before = page.before;
                if before.is_none() {
                    break;
                }
            }
            let known: Vec<ReplacedVersion> = versions.into_iter().filter(|version| version.replaced_at > known_from).collect();
            let expected: Vec<ReplacedVersion> = self
                .model
                .replaced_after(known_from)
                .filter(|change| is_selected(&selection, change.old.as_ref().unwrap()))
                .map(|change| ReplacedVersion {
                    record: change.old.clone().unwrap(),
                    replaced_at: change.sequence,
                    deleted: change.deleted,
                })
                .collect();
            self.comparisons += 1;
            assert_eq!(known, expected, "{selection:?}");
        }
    }

    fn run(mut self) -> (u64, u64) {
        for _ in 0..STEPS {
            match self.random.random_range(0..40) {
                0..8 => self.seal(),
                8..11 => self.kill(),
                11 if self.random.random_ratio(1, 3) => self.damage(),
                12 if self.random.random_ratio(1, 3) => self.lose_log(),
                13..18 => self.compare(),
                _ => self.change(),
            }
        }
        self.compare();
        (self.comparisons, self.unknown)
    }
}

/// Returns whether a selection has a record. Reads the text of the last usable value.
fn is_selected(selection: &VersionSelection, record: &Record) -> bool {
    let Record { key, value, good_value, rejection, .. } = record;
    let usable = if rejection.is_none() { Some(value) } else { good_value.as_ref() };
    let text = usable.map_or("", |value| std::str::from_utf8(value).unwrap());
    match selection {
        VersionSelection::Key(selected) => key == selected,
        VersionSelection::Covering(ip) => prefix_of(key).is_some_and(|prefix| prefix.net.contains(ip)),
        VersionSelection::IdentityObjects(identity) => key.kind == Kind::Identity && *key.name == identity.to_string(),
        VersionSelection::Identity(identity) if key.kind == Kind::Identity => *key.name == identity.to_string(),
        VersionSelection::Identity(identity) => text.contains(&format!("\"ID\":{identity},")),
        VersionSelection::Pod { name, .. } => key.kind == Kind::Ip && text.contains(&format!("\"K8sPodName\":\"{name}\"")),
        VersionSelection::Scopes { kinds, clusters } => {
            kinds.contains(&key.kind) && (clusters.is_empty() || clusters.contains(&key.cluster))
        }
    }
}

#[test]
fn random_lives_are_remembered_exactly() {
    let lives = std::env::var("MESHKEEP_TEST_LIVES").map_or(LIVES, |lives| lives.parse().unwrap());
    let (mut comparisons, mut unknown) = (0, 0);
    for _ in 0..lives {
        let seed = std::env::var("MESHKEEP_TEST_SEED").map_or_else(|_| rand::rng().random(), |seed| seed.parse().unwrap());
        println!("seed {seed}");
        let counts = Life::new(seed).run();
        (comparisons, unknown) = (comparisons + counts.0, unknown + counts.1);
    }
    println!("{comparisons} comparisons, {unknown} of them unknown");
    assert!(unknown < comparisons / 2, "{unknown} of {comparisons} answers are unknown");
}

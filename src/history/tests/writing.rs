//! The writer of the history on real files: damage, limits, gaps and failures.

use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::{key, record};
use crate::history::writer::PANIC;
use crate::history::{HistoryOptions, HistoryReader, HistoryWriter, PageLimits, PastCovering, PastState, VersionSelection, history};
use crate::model::{Kind, ReplacedRecord, ReplacedRecordSink as _, ReplacedRecords, Sequence};

/// Time of the first sequence of [`replaced`].
const START: SystemTime = SystemTime::UNIX_EPOCH;

const OPTIONS: HistoryOptions = HistoryOptions { age_max: Duration::from_secs(1 << 40), bytes_max: 1 << 30 };

/// A history in a directory of its own, and the last group that it released.
struct TestHistory {
    writer: HistoryWriter,
    reader: HistoryReader,
    released: Arc<AtomicU64>,
}

impl TestHistory {
    fn open(directory: &Path, options: HistoryOptions) -> Self {
        let released = Arc::new(AtomicU64::new(0));
        let last_released = Arc::clone(&released);
        let release = move |group| {
            last_released.fetch_max(group, Ordering::Relaxed);
        };
        let (writer, reader) = history(directory, options, release);
        Self { writer, reader, released }
    }

    /// Adds one group, which is synced, and seals it.
    fn seal(&self, group: u64, replaced: &ReplacedRecords) {
        self.reader.add_replaced(group, replaced);
        self.reader.confirm_synced(group);
        self.reader.request_seal();
        self.writer.run_due_tasks();
    }

    /// Returns the ranges of the segments: the sequence before each, and its last one.
    fn ranges(&self) -> Vec<(u64, u64)> {
        self.reader.snapshot().segments.iter().map(|segment| (segment.after.0, segment.last.0)).collect()
    }

    fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }
}

/// Returns one replaced record for each sequence, each of another address, one second apart.
fn replaced(sequences: RangeInclusive<u64>) -> ReplacedRecords {
    let mut replaced = ReplacedRecords::new(Sequence(sequences.start() - 1), Sequence(*sequences.end()));
    for sequence in sequences {
        let name = std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(sequence).unwrap()).to_string();
        let record = record(key(Kind::Ip, "paris", &name), 0, 0, 1, sequence * 13);
        replaced.records.insert(Sequence(sequence), ReplacedRecord { record, deleted: None });
        replaced.times.push((Sequence(sequence), START + Duration::from_secs(sequence)));
    }
    replaced
}

/// Returns replaced records of one time, so that nearly all of a segment is blocks of rows.
fn replaced_at_once(sequences: RangeInclusive<u64>) -> ReplacedRecords {
    let first = Sequence(*sequences.start());
    ReplacedRecords { times: vec![(first, START)], ..replaced(sequences) }
}

/// Flips a byte in the last block of rows of a segment of [`replaced_at_once`].
fn damage_last_block(history: &TestHistory, path: &Path) {
    let segment = Arc::clone(&history.reader.snapshot().segments[0]);
    flip_byte(path, segment.fence().unwrap().filter_offset - 200);
}

/// Flips a byte of a file.
fn flip_byte(path: &Path, offset: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[usize::try_from(offset).unwrap()] ^= 0xff;
    fs::write(path, bytes).unwrap();
}

/// A damage after the first block of a segment is noticed only while the segment is merged.
#[test]
fn a_segment_that_is_damaged_after_its_first_block_is_not_merged() {
    for is_damaged in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let history = TestHistory::open(directory.path(), OPTIONS);
        history.seal(1, &replaced_at_once(1..=1_500));
        if is_damaged {
            damage_last_block(&history, &directory.path().join("history/1-1500"));
        }

        let history = TestHistory::open(directory.path(), OPTIONS);
        history.seal(2, &replaced(1_501..=3_000));
        let ranges = if is_damaged { vec![(0, 1_500), (1_500, 3_000)] } else { vec![(0, 3_000)] };
        assert_eq!((history.ranges(), history.released()), (ranges, 2));
        assert_eq!(fs::read_dir(directory.path().join("history")).unwrap().count(), history.ranges().len());
        assert_eq!(history.reader.status().damaged.len(), usize::from(is_damaged));
    }
}

/// Changes of a damaged segment may have happened before or after a time in its period.
#[test]
fn a_time_in_a_damaged_segment_is_before_its_changes() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    // with gaps between them, the segments are not merged
    for (group, sequences) in [(1, 1..=100), (2, 102..=200), (3, 202..=300)] {
        history.seal(group, &replaced(sequences));
    }
    let index = history.reader.snapshot().segments[1].fence().unwrap().index;
    flip_byte(&directory.path().join("history/102-200"), index.offset);

    let history = TestHistory::open(directory.path(), OPTIONS);
    let snapshot = history.reader.snapshot();
    let sequence_at = |seconds| snapshot.sequence_at(START + Duration::from_secs(seconds)).unwrap().sequence;
    assert_eq!([50, 150, 200, 250].map(sequence_at), [50, 100, 200, 250].map(Sequence));
    assert_eq!(history.reader.status().damaged.len(), 1);
}

/// A list into an empty store has creations only: they fill the log, but not the buffer.
#[test]
fn many_creations_are_sealed_so_that_the_log_can_be_cut() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    for group in 1..=70_u64 {
        history.reader.add_replaced(group, &ReplacedRecords::new(Sequence((group - 1) * 1_000), Sequence(group * 1_000)));
        history.reader.confirm_synced(group);
        history.writer.run_due_tasks();
    }
    assert_eq!((history.ranges(), history.released()), (vec![(0, 66_000)], 66));
}

/// The log may have several ranges at a start, for example after a damage in it.
#[test]
fn changes_before_a_gap_in_the_log_are_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    for (group, sequences) in [(0, 1..=10), (0, 20..=30), (7, 40..=50)] {
        history.reader.add_replaced(group, &replaced(sequences));
    }
    history.reader.confirm_synced(7);
    history.writer.run_due_tasks();
    assert_eq!((history.ranges(), history.released()), (vec![(0, 10), (19, 30)], 0), "the log still needs group 7");
    history.reader.request_seal();
    history.writer.run_due_tasks();
    assert_eq!((history.ranges(), history.released()), (vec![(0, 10), (19, 30), (39, 50)], 7));
    assert_eq!(history.reader.status().gap_count, 2);
}

#[test]
fn only_synced_groups_are_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.reader.add_replaced(1, &replaced(1..=10));
    history.reader.add_replaced(2, &replaced(11..=20));
    history.reader.request_seal();
    history.writer.run_due_tasks();
    assert_eq!(history.ranges(), []);
    history.reader.confirm_synced(1);
    history.writer.run_due_tasks();
    assert_eq!((history.ranges(), history.released()), (vec![(0, 10)], 1));
    history.reader.add_replaced(3, &replaced(31..=40));
    history.reader.stop();
    history.writer.run_due_tasks();
    assert_eq!(history.ranges(), [(0, 10)], "the second group is not synced");
}

#[test]
fn old_segments_are_removed_also_behind_a_damaged_one() {
    let directory = tempfile::tempdir().unwrap();
    let age = |sequence| SystemTime::now().duration_since(START + Duration::from_secs(sequence)).unwrap();
    // all changes are older than this, except those of the last segment
    let options = HistoryOptions { age_max: age(250), ..OPTIONS };
    let history = TestHistory::open(directory.path(), OPTIONS);
    for (group, sequences) in [(1, 1..=100), (2, 102..=200), (3, 202..=300)] {
        history.seal(group, &replaced(sequences));
    }
    flip_byte(&directory.path().join("history/1-100"), fs::metadata(directory.path().join("history/1-100")).unwrap().len() - 1);

    let history = TestHistory::open(directory.path(), options);
    assert_eq!(history.ranges(), [(0, 100), (101, 200), (201, 300)]);
    history.reader.stop();
    let (writer, reader) = (history.writer, history.reader);
    writer.run();
    assert_eq!(reader.snapshot().segments.iter().map(|segment| segment.last.0).collect::<Vec<_>>(), [300]);
}

#[test]
fn the_oldest_segments_are_removed_beyond_the_maximum_size() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    for (group, sequences) in [(1, 1..=100), (2, 102..=200), (3, 202..=300)] {
        history.seal(group, &replaced(sequences));
    }
    let bytes_max = history.reader.status().bytes - 1;
    let history = TestHistory::open(directory.path(), HistoryOptions { bytes_max, ..OPTIONS });
    history.seal(4, &replaced(302..=310));
    assert_eq!(history.ranges(), [(101, 200), (201, 300), (301, 310)]);
    history.reader.report_full_disk();
    history.writer.run_due_tasks();
    assert_eq!(history.ranges(), [(201, 300), (301, 310)], "at least one segment");
}

/// The mirror must not wait for a history that does not work, and the failure must be visible.
#[test]
fn a_history_that_cannot_be_read_reports_it_and_releases_the_log() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("history"), "not a directory").unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.seal(1, &replaced(1..=10));
    assert_eq!((history.ranges(), history.released()), (vec![], 1));
    assert!(history.reader.status().failure.unwrap().starts_with("cannot read "));
    let snapshot = history.reader.snapshot();
    let version = snapshot.version_at(&key(Kind::Ip, "paris", "10.0.0.5"), Sequence(3), None);
    assert_eq!(version.state, PastState::Unknown);
}

#[test]
fn a_panic_of_the_writer_is_reported_and_releases_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.reader.add_replaced(1, &replaced(1..=10));
    let (writer, reader) = (history.writer, history.reader);
    let panicked = std::thread::spawn(move || {
        let _writer = writer;
        panic!("a panic of the test");
    });
    panicked.join().unwrap_err();
    assert_eq!(history.released.load(Ordering::Relaxed), u64::MAX);
    reader.add_replaced(2, &replaced(11..=20));
    let version = reader.snapshot().version_at(&key(Kind::Ip, "paris", "10.0.0.5"), Sequence(3), None);
    assert_eq!((version.state, reader.status().failure.as_deref()), (PastState::Unknown, Some(PANIC)));
}

/// A page needs a few versions of a segment, which may have hundreds of thousands.
#[test]
fn the_memory_of_a_page_does_not_depend_on_the_size_of_a_segment() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.seal(1, &replaced(1..=20_000));
    let snapshot = history.reader.snapshot();
    let all = VersionSelection::Scopes { kinds: vec![Kind::Ip], clusters: Vec::new() };
    let limits = PageLimits { count_max: 10, bytes_max: 1 << 20, deadline: Instant::now() + Duration::from_secs(600) };
    let mut page = None;
    let allocations = allocation_counter::measure(|| page = Some(snapshot.versions(&all, None, limits)));
    let sequences: Vec<u64> = page.unwrap().versions.iter().map(|version| version.replaced_at.0).collect();
    assert_eq!(sequences, (19_991..=20_000).rev().collect::<Vec<_>>());
    assert!(allocations.bytes_max < 2 << 20, "{} bytes", allocations.bytes_max);
}

/// Groups of the same time share a pair of times, which a seal may cut.
#[test]
fn changes_after_a_seal_keep_the_time_of_their_pair() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    let mut of_one_time = [replaced(1..=10), replaced(11..=20)];
    for (group, replaced) in (1..).zip(&mut of_one_time) {
        replaced.times = vec![(replaced.after.next(), START)];
        history.reader.add_replaced(group, replaced);
    }
    history.reader.confirm_synced(1);
    history.reader.request_seal();
    history.writer.run_due_tasks();
    assert_eq!(history.ranges(), [(0, 10)]);
    assert_eq!(history.reader.snapshot().time_of(Sequence(15)), Some(START));
}

/// A shutdown has a few seconds, and merging hundreds of segments may take longer.
#[test]
fn a_stop_seals_without_merging() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.seal(1, &replaced(1..=10));
    history.reader.add_replaced(2, &replaced(11..=20));
    history.reader.confirm_synced(2);
    history.reader.stop();
    history.writer.run_due_tasks();
    assert_eq!((history.ranges(), history.released()), (vec![(0, 10), (10, 20)], 2));

    let history = TestHistory::open(directory.path(), OPTIONS);
    history.seal(3, &replaced(21..=30));
    assert_eq!(history.ranges(), [(0, 30)]);
}

/// The log may have more changes than the buffer: those that a process dropped from its buffer stay
/// in the log until the next seal.
#[test]
fn recovered_changes_beyond_the_limit_are_a_gap() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.seal(1, &replaced(1..=10));

    let history = TestHistory::open(directory.path(), OPTIONS);
    history.reader.add_replaced(2, &replaced(11..=100_000));
    history.reader.confirm_synced(2);
    assert_eq!((history.reader.snapshot().buffer.byte_count, history.released()), (0, 2), "more than the buffer may have");
    history.seal(3, &replaced(100_001..=100_010));
    let (snapshot, address) = (history.reader.snapshot(), |number: u32| std::net::Ipv4Addr::from(0x0a00_0000 + number));
    let gaps = snapshot.gaps_after(Sequence(5));
    assert_eq!(gaps.iter().map(|gap| (gap.after, gap.last)).collect::<Vec<_>>(), [(Sequence(10), Sequence(100_000))]);
    assert_eq!(history.reader.status().gap_count, 1);
    let version = snapshot.version_at(&key(Kind::Ip, "paris", &address(500).to_string()), Sequence(5), None);
    assert_eq!(version.state, PastState::Unknown);
    let covering = snapshot.covering_at(address(500).into(), Sequence(5), |_| Sequence(5), &[]);
    assert!(!covering.is_complete);
}

/// Records may become due before they are synced. The next sync then wakes the writer, which
/// otherwise sleeps for minutes.
#[test]
fn a_sync_wakes_the_writer() {
    let directory = tempfile::tempdir().unwrap();
    let TestHistory { writer, reader, released } = TestHistory::open(directory.path(), OPTIONS);
    let thread = std::thread::spawn(move || writer.run());
    let wait_for = |group| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while released.load(Ordering::Relaxed) < group {
            assert!(Instant::now() < deadline, "group {group} was not sealed");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    };
    for (group, sequences) in [(1, 1..=10), (2, 11..=20)] {
        reader.add_replaced(group, &replaced(sequences));
        reader.request_seal();
        // the writer finds nothing to do and sleeps
        std::thread::park_timeout(Duration::from_millis(200));
        assert_eq!(released.load(Ordering::Relaxed), group - 1);
        reader.confirm_synced(group);
        wait_for(group);
    }
    reader.stop();
    thread.join().unwrap();
}

/// If nothing can be synced, the mirror must not need memory without a limit.
#[test]
fn records_that_cannot_be_sealed_are_dropped_beyond_a_limit() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    for group in 0..100 {
        history.reader.add_replaced(group + 1, &replaced(group * 1_000 + 1..=(group + 1) * 1_000));
    }
    let snapshot = history.reader.snapshot();
    assert!(snapshot.buffer.byte_count <= 32 << 20, "{}", snapshot.buffer.byte_count);
    assert_eq!(snapshot.last(), Sequence(100_000));
    history.reader.confirm_synced(100);
    history.reader.request_seal();
    history.writer.run_due_tasks();
    let ranges = history.ranges();
    assert_eq!((ranges.len(), ranges[0].1, history.released()), (1, 100_000, 100));
    assert!(ranges[0].0 > 0, "the oldest changes are missing");
}

/// A damaged block is noticed by the query that reads it. It may have the only trace of an entry.
#[test]
fn a_version_in_a_damaged_block_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let history = TestHistory::open(directory.path(), OPTIONS);
    history.seal(1, &replaced_at_once(1..=100));
    damage_last_block(&history, &directory.path().join("history/1-100"));

    let history = TestHistory::open(directory.path(), OPTIONS);
    let snapshot = history.reader.snapshot();
    let version = snapshot.version_at(&key(Kind::Ip, "paris", "10.0.0.50"), Sequence(20), None);
    assert_eq!(version.state, PastState::Unknown);
    let covering = snapshot.covering_at("10.0.0.50".parse().unwrap(), Sequence(20), |_| Sequence(20), &[]);
    assert_eq!(covering, PastCovering { records: Vec::new(), is_complete: false });
}

//! Processes that are killed while they write, and processes without disk space.
//!
//! The test binary runs itself again as the child. The number of a group decides its content, so
//! after a kill the store must have the content of exactly one number. That number must not be
//! below the last one that the child acknowledged.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::{Kind, Record, Sequence};
use crate::store::tests::{UnpackedContents, cursor, key, load, open, read, record, scope};
use crate::store::{EngineError, Group, Store, StoreError};

const CHILD_DIRECTORY: &str = "MESHKEEP_TEST_STORE_CHILD_DIRECTORY";
const CHILD_TASK: &str = "MESHKEEP_TEST_STORE_CHILD_TASK";

/// Number of the signal (signal(7)).
const SIGKILL: i32 = 9;

/// Number of keys. Each group writes or deletes all of them.
const KEY_COUNT: u64 = 40;

/// Returns the content of key `index` after group `number`: none for one key in ten, and one large
/// value. Even groups are small.
fn record_of(number: u64, index: u64) -> (crate::model::EntryKey, Option<Record>) {
    let key = key(Kind::Service, "paris", &format!("{index:02}"));
    let length = match (number % 2, index) {
        (0, _) => 300,
        (_, 7) => 300_000,
        _ => 20_000,
    };
    let put = !(number + index).is_multiple_of(10);
    // noise, because everything else would be compressed to nothing
    let mut value = vec![0; length];
    StdRng::seed_from_u64(number * KEY_COUNT + index).fill(&mut value[..]);
    (key.clone(), put.then(|| Record { value: value.into(), ..record(key, number, 0) }))
}

fn group_of(number: u64) -> Group {
    let mut group = Group { sequence_reserved: Some(Sequence(number)), ..Group::default() };
    group.records = (0..KEY_COUNT).map(|index| record_of(number, index)).map(|(key, record)| (key, record.map(Arc::new))).collect();
    group.cursors.insert(scope(Kind::Service, "paris"), Some(cursor(i64::try_from(number).unwrap())));
    group
}

pub(super) fn contents_of_group(number: u64) -> UnpackedContents {
    if number == 0 {
        return UnpackedContents::default();
    }
    UnpackedContents {
        records: (0..KEY_COUNT).filter_map(|index| record_of(number, index).1).collect(),
        cursors: vec![(scope(Kind::Service, "paris"), cursor(i64::try_from(number).unwrap()))],
        sequence_reserved: Sequence(number),
        ..UnpackedContents::default()
    }
}

pub(in crate::store::tests) fn number_of(loaded: &UnpackedContents) -> u64 {
    loaded.cursors.first().map_or(0, |(_, cursor)| u64::try_from(cursor.revision.0).unwrap())
}

/// Does nothing in an ordinary run. The other tests start it in a child.
#[test]
fn child_process_of_the_crash_tests() {
    let (Some(directory), Ok(task)) = (std::env::var_os(CHILD_DIRECTORY), std::env::var(CHILD_TASK)) else { return };
    let (store, opened) = open(Path::new(&directory));
    assert_eq!(opened.set_aside, None);
    match task.as_str() {
        "write" => write_until_killed(&store),
        "fill and end" => fill_and_end(&store),
        "fill and continue" => fill_and_continue(&store),
        "start without space" => start_without_space(Path::new(&directory), &store),
        other => panic!("unknown task {other}"),
    }
    // not closed: the process ends like a crash, except for its exit code
    std::process::exit(0);
}

fn write_until_killed(store: &Store) {
    let first = number_of(&read(store)) + 1;
    eprintln!("opened");
    for number in first.. {
        store.apply(&group_of(number)).unwrap();
        eprintln!("applied {number}");
        store.fold_due(Instant::now()).unwrap();
        if number % 5 == 0 {
            store.fold_within(std::time::Duration::from_millis(5)).unwrap();
        }
    }
}

/// Starts a child process that runs a task of the test `child_process_of_the_crash_tests`.
pub(super) fn child_command(mut command: Command, directory: &Path, task: &str) -> Child {
    command
        .args(["--exact", "store::tests::faults::crash::child_process_of_the_crash_tests", "--nocapture"])
        .env(CHILD_DIRECTORY, directory)
        .env(CHILD_TASK, task)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the number of kills: 20, or the value of `MESHKEEP_TEST_KILLS`. `scripts/soak` sets 200.
fn kills() -> u32 {
    std::env::var("MESHKEEP_TEST_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(20)
}

/// Starts a writer and kills it during the group after `group_count` groups, or during its start if
/// that is 0. Returns the last acknowledged group, and the time of a start.
fn kill_a_writer(directory: &Path, group_count: usize, opening: Duration) -> (Option<u64>, Duration) {
    let mut child = child_command(Command::new(std::env::current_exe().unwrap()), directory, "write");
    let started = Instant::now();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (mut acknowledged, mut times, mut opening) = (None, Vec::new(), opening);
    if group_count > 0 {
        assert!(lines.by_ref().any(|line| line == "opened"), "the writer could not open the store");
        opening = started.elapsed();
    }
    for line in lines.by_ref().filter_map(|line| line.strip_prefix("applied ")?.parse::<u64>().ok()).take(group_count) {
        acknowledged = Some(line);
        times.push(Instant::now());
    }
    // waits a random time and for no event, so that the kill can hit any moment of the start or of
    // the next group
    let within = match times.as_slice() {
        [first, .., last] => last.duration_since(*first) / u32::try_from(group_count - 1).unwrap(),
        [_] | [] => opening,
    };
    let delay = within.mul_f64(rand::rng().random_range(0.0..1.0));
    println!("kill {delay:?} of {within:?} after group {acknowledged:?}");
    std::thread::sleep(delay);
    child.kill().unwrap();
    // the kill ended it, and not an error while it opened the store
    assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
    (lines.filter_map(|line| line.strip_prefix("applied ")?.parse().ok()).last().or(acknowledged), opening)
}

#[test]
fn a_killed_writer_loses_no_acknowledged_group() {
    let directory = tempfile::tempdir().unwrap();
    let (mut number, mut opening, mut unchecked_kills) = (0, Duration::ZERO, 0);
    for round in 0..kills() {
        unchecked_kills += 1;
        let group_count = if round % 2 == 0 { rand::rng().random_range(2..8) } else { 0 };
        let (acknowledged, took) = kill_a_writer(directory.path(), group_count, opening);
        assert!(group_count == 0 || acknowledged.is_some_and(|acknowledged| acknowledged > number), "the child wrote nothing");
        opening = took;
        // every fourth kill is followed by another one before the store is checked
        if round % 4 == 0 && round + 1 < kills() {
            number = acknowledged.unwrap_or(number);
            continue;
        }
        let acknowledged = acknowledged.unwrap_or(number);
        let (store, opened) = open(directory.path());
        assert_eq!(opened.set_aside, None);
        let loaded = read(&store);
        number = number_of(&loaded);
        // each writer may have stored one group that it did not acknowledge
        let expected = acknowledged..=acknowledged + std::mem::take(&mut unchecked_kills);
        assert!(expected.contains(&number), "found {number}, expected {expected:?}");
        assert!(loaded == contents_of_group(number), "the content is not that of group {number}");
    }
}

/// Maximum size of a file of the child, in the 512-byte blocks of `ulimit -f`: 16 MiB.
const FILE_BLOCKS_MAX: u32 = 32_768;

/// Returns a group with twenty keys that are never deleted.
fn filler(number: u64) -> Group {
    let mut group = Group::default();
    for index in 0..20_u64 {
        let key = key(Kind::Node, "paris", &format!("{number:03}-{index:02}"));
        let mut noise = vec![0; 20_000];
        rand::rng().fill(&mut noise[..]);
        let record = Record { value: noise.into(), ..record(key.clone(), number, 0) };
        group.records.insert(key, Some(Arc::new(record)));
    }
    group.cursors.insert(scope(Kind::Node, "paris"), Some(cursor(i64::try_from(number).unwrap())));
    group
}

/// Fills the engine until it fails `attempt_count` times in a row. The log accepts everything.
/// Returns the last group.
fn fill(store: &Store, attempt_count: usize) -> u64 {
    for number in 1..200 {
        store.apply(&filler(number)).unwrap();
        // reopening can free some space, so a single error may be the only one
        let errors: Vec<StoreError> = (0..attempt_count).map_while(|_| store.fold_within(Duration::from_secs(60)).err()).collect();
        if errors.len() == attempt_count {
            assert!(errors.iter().all(|error| matches!(error, StoreError::Engine { cause: EngineError::Io(_), .. })), "{errors:?}");
            eprintln!("failed {number}: {errors:?}");
            // the log continues
            let last = number + 5;
            (number + 1..=last).for_each(|number| store.apply(&filler(number)).unwrap());
            eprintln!("filled {last}:");
            return last;
        }
    }
    panic!("never full");
}

fn fill_and_end(store: &Store) {
    fill(store, 1);
}

fn fill_and_continue(store: &Store) {
    fill(store, 4);
    let pid = std::process::id().to_string();
    assert!(Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:"]).status().unwrap().success());
    store.apply(&group_of(1000)).unwrap();
    assert!(store.fold_within(Duration::from_secs(60)).unwrap());
    eprintln!("continued");
}

/// Runs a child whose files have a maximum size, which the engine's file reaches. Returns the last
/// group and the output.
fn run_with_small_files(directory: &Path, task: &str) -> (u64, String) {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -S -f \"$1\"; shift; exec \"$@\"", "sh", &FILE_BLOCKS_MAX.to_string()]);
    command.arg(std::env::current_exe().unwrap());
    let output = child_command(command, directory, task).wait_with_output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{output_text}");
    let failed = output_text.lines().find_map(|line| line.strip_prefix("filled ")?.split(':').next()?.parse().ok());
    (failed.unwrap_or_else(|| panic!("{output_text}")), output_text)
}

/// The engine fails during a fold and may have stored any part of it, but the log has all groups.
#[test]
fn a_process_that_ends_while_the_engine_fails_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (last, _) = run_with_small_files(directory.path(), "fill and end");
    let (store, opened) = open(directory.path());
    assert_eq!((opened.set_aside, opened.losses), (None, Vec::new()));
    let loaded = read(&store);
    assert_eq!(loaded.cursors, [(scope(Kind::Node, "paris"), cursor(i64::try_from(last).unwrap()))]);
    assert_eq!(u64::try_from(loaded.records.len()).unwrap(), last * 20);
}

#[test]
fn a_failing_engine_folds_the_log_once_there_is_space() {
    let directory = tempfile::tempdir().unwrap();
    let (last, output_text) = run_with_small_files(directory.path(), "fill and continue");
    assert!(output_text.contains("continued"), "{output_text}");
    let loaded = load(directory.path());
    let cursors = vec![(scope(Kind::Node, "paris"), cursor(i64::try_from(last).unwrap())), (scope(Kind::Service, "paris"), cursor(1000))];
    assert_eq!(loaded.cursors, cursors);
    let (nodes, services): (Vec<_>, Vec<_>) = loaded.records.into_iter().partition(|record| record.key.kind == Kind::Node);
    assert_eq!(u64::try_from(nodes.len()).unwrap(), last * 20);
    assert_eq!(services, contents_of_group(1000).records);
}

/// Script that runs a child on a small, full file system in the place of a directory. `unshare`
/// makes this possible without root.
const ON_A_FULL_DISK: &str = r#"
set -e
cp -a "$1" "$1.copy"
mount -t tmpfs -o size=12m tmpfs "$1"
cp -a "$1.copy/." "$1"
cat /dev/zero > "$1/filler" 2>/dev/null || true
shift
exec "$@"
"#;

#[test]
fn a_store_opened_on_a_full_disk_is_read_and_later_written() {
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("data");
    let (store, _) = open(&inner);
    store.apply(&group_of(1)).unwrap();
    store.close().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", ON_A_FULL_DISK, "sh"]).arg(&inner);
    command.arg(std::env::current_exe().unwrap());
    let output = child_command(command, &inner, "start without space").wait_with_output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && output_text.contains("continued"), "{output_text}");
}

fn start_without_space(directory: &Path, store: &Store) {
    assert_eq!(read(store), contents_of_group(1));
    let failed = (2..200).find(|number| store.apply(&group_of(*number)).is_err()).expect("the disk must be full");
    assert!(failed < 20, "{failed} groups of a megabyte fit on the disk");
    assert!(store.apply(&group_of(failed)).is_err());
    std::fs::remove_file(directory.join("filler")).unwrap();
    store.apply(&group_of(failed)).unwrap();
    assert_eq!(read(store), contents_of_group(failed));
    eprintln!("continued");
}

/// Only the same store may be reopened. The cursors would be ahead of an empty store.
#[test]
fn a_store_that_is_removed_while_in_use_is_not_created_again() {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    store.apply(&group_of(1)).unwrap();
    drop(store.inner().chunk_store.take().unwrap());
    std::fs::remove_dir_all(directory.path().join("store")).unwrap();
    let replaced = |outcome| matches!(outcome, Err(StoreError::Engine { cause: EngineError::Replaced, .. }));
    store.apply(&group_of(2)).unwrap();
    assert!(replaced(store.fold_due(Instant::now())));
    assert!(!directory.path().join("store").exists());
    // an older copy is not accepted either
    let other = tempfile::tempdir().unwrap();
    drop(open(other.path()));
    super::damage::copy_directory(&other.path().join("store"), &directory.path().join("store"));
    assert!(replaced(store.fold_due(Instant::now())));
}

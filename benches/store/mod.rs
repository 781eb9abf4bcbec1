//! Bench of the store alone, each figure with a reference of the same run: `cargo bench -- store
//! [entries] [seconds]`.
//!
//! There are three roles: `fill` writes the entries in groups, `churn` changes random ones at a
//! rate, and `load` reads everything. Each role runs in its own process (this binary again), so
//! that its memory and its writes are measured alone. There are no thresholds, no etcd and no HTTP.

mod data;
mod syncs;
mod written;

use crate::processes::{Outcome, child_of};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use meshkeep::internals::model::{Cursor, EtcdClusterId, PutPoint, Revision, Scope, Sequence};
use meshkeep::internals::store::{Group, Store};

use syncs::{SYNC_BYTES, SyncLoop, Wait, print_slowest_groups};
use written::WriteCounters;

/// Number of entries that are stored together: a list has pages of 256 keys, and many clusters are
/// listed at once.
const FILL_GROUP: u64 = 10_000;

/// Time in which changes are gathered into a group, at high and at low rates (`commit::persist`).
const GROUP_WINDOW: Duration = Duration::from_millis(25);
const CALM_GROUP_WINDOW: Duration = Duration::from_millis(40);

/// Number of arrival times per window for which the time until durability is measured.
const SAMPLES: u32 = 8;

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["role:fill", directory, count] => fill(Path::new(directory), count.parse()?),
        ["role:churn", directory, count, rate, seconds] => churn(Path::new(directory), count.parse()?, rate.parse()?, seconds.parse()?),
        ["role:load", directory] => load(Path::new(directory)),
        rest => run_all(rest.first().copied().unwrap_or("300000"), rest.get(1).copied().unwrap_or("60")),
    }
}

fn run_all(count: &str, seconds: &str) -> Outcome<()> {
    let parent = std::env::var("MESHKEEP_BENCH_DIRECTORY").unwrap_or_else(|_| "target".to_owned());
    let directory = Path::new(&parent).join(format!("bench-store-{}", std::process::id()));
    let path = directory.to_str().ok_or("the path is not UTF-8")?;
    run_role(&["role:fill", path, count])?;
    (0..5).try_for_each(|_| run_role(&["role:load", path]))?;
    for rate in ["1000", "20000"] {
        run_role(&["role:churn", path, count, rate, seconds])?;
        (0..3).try_for_each(|_| run_role(&["role:load", path]))?;
    }
    fs::remove_dir_all(&directory)?;
    Ok(())
}

fn run_role(words: &[&str]) -> Outcome<()> {
    let status = child_of("store")?.args(words).status()?;
    if status.success() { Ok(()) } else { Err(format!("{words:?}: {status}").into()) }
}

fn open(directory: &Path) -> Outcome<Store> {
    Ok(Store::open(directory, Duration::ZERO)?.0)
}

fn fill(directory: &Path, count: u64) -> Outcome<()> {
    let store = open(directory)?;
    let written = WriteCounters::now(directory)?;
    let (started, mut raw, mut storing) = (Instant::now(), 0, Duration::ZERO);
    for first in (0..count).step_by(usize::try_from(FILL_GROUP)?) {
        let mut group = Group::default();
        for number in first..(first + FILL_GROUP).min(count) {
            let record = data::shared(number, 1, number + 1);
            raw += record.value.len() + record.key.to_string().len();
            group.records.insert(record.key.clone(), Some(record));
        }
        group.covered_sequence = Some(Sequence(first + FILL_GROUP));
        let began = Instant::now();
        store.apply(&group)?;
        store.fold_due(Instant::now())?;
        storing += began.elapsed();
    }
    let began = Instant::now();
    store.fold_within(Duration::from_secs(600))?;
    let folded = began.elapsed();
    let disk = store.bytes_on_disk();
    println!(
        "fill {count}: {:.1} s, of which {:.1} s storing and {:.1} s folding; raw {} MB, disk {} MB ({:.3} of raw); {}; resident {} MB",
        started.elapsed().as_secs_f64(),
        storing.as_secs_f64(),
        folded.as_secs_f64(),
        raw >> 20,
        disk >> 20,
        ratio(disk, raw as u64),
        written.describe(directory, raw as u64, 0)?,
        resident()?
    );
    store.close()?;
    Ok(())
}

fn churn(directory: &Path, count: u64, rate: u64, seconds: u64) -> Outcome<()> {
    let store = open(directory)?;
    drop(store.load()?);
    let syncs = SyncLoop::begin(directory)?;
    // the same windows as in the process (`commit::persist`)
    let window = if rate > 5_000 { GROUP_WINDOW } else { CALM_GROUP_WINDOW };
    let (mut sequence, mut raw, mut disk_max, mut resident_max) = (count + 1, 0, 0, 0);
    let (mut durable, mut oldest, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    let (written, started, mut busy) = (WriteCounters::now(directory)?, Instant::now(), Duration::ZERO);
    // a group contains all changes since the end of the previous one, so the group after a slow one
    // is larger
    let (mut group_end, mut change_total) = (started, 0);
    while started.elapsed() < Duration::from_secs(seconds) {
        let group_start = group_end;
        std::thread::sleep((group_start + window).saturating_duration_since(Instant::now()));
        group_end = Instant::now();
        let new_total = rate * u64::try_from((group_end - started).as_millis())? / 1_000;
        let change_count = new_total - std::mem::replace(&mut change_total, new_total);
        let mut group = Group::default();
        for _ in 0..change_count {
            sequence += 1;
            let number = data::mix(sequence) % count;
            let record = data::shared(number, sequence, sequence);
            raw += record.value.len() + record.key.to_string().len();
            group.cursors.insert(Scope { cluster: record.key.cluster.clone(), kind: record.key.kind }, Some(cursor(sequence)));
            group.records.insert(record.key.clone(), Some(record));
        }
        group.covered_sequence = Some(Sequence(sequence));
        let began = Instant::now();
        store.apply(&group)?;
        let stored = Instant::now();
        let arrivals = (1..).map(|part| group_start + window * part / SAMPLES).take_while(|arrival| *arrival <= group_end);
        durable.extend(arrivals.map(|arrival| stored - arrival));
        oldest.push(stored - group_start);
        store.fold_due(group_end + GROUP_WINDOW)?;
        busy += began.elapsed();
        let end = Instant::now();
        waits.push(Wait { taken: group_end, since: group_end - group_start, storing: stored - began, tending: end - stored, end });
        if oldest.len() % 40 == 0 {
            disk_max = disk_max.max(store.bytes_on_disk());
            resident_max = resident_max.max(resident()?);
        }
    }
    let syncs = syncs.end()?;
    let others = (syncs.len() * SYNC_BYTES) as u64;
    println!(
        "churn {rate}/s for {seconds} s: durable p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms, p99 of each group's oldest {:.1} ms (a window of {} ms included); busy {:.0} %; {}; \
         disk at most {} MB; resident at most {resident_max} MB",
        millis(&mut durable, 50),
        millis(&mut durable, 99),
        millis(&mut durable, 100),
        millis(&mut oldest, 99),
        window.as_millis(),
        busy.as_secs_f64() * 100.0 / started.elapsed().as_secs_f64(),
        written.describe(directory, raw as u64, others)?,
        disk_max >> 20
    );
    print_slowest_groups(waits, &syncs, started);
    // exit without a clean shutdown, as after a kill
    std::process::exit(0);
}

fn cursor(sequence: u64) -> Cursor {
    let revision = Revision(i64::try_from(1_000 + sequence).unwrap_or(0));
    let digest: Vec<u8> = (0..4).flat_map(|part| data::mix(sequence * 4 + part).to_le_bytes()).collect();
    let source_key = data::key(sequence % 1000).to_string().into_bytes();
    Cursor {
        etcd_cluster_id: EtcdClusterId(7),
        revision,
        cached: true,
        last_put: Some(PutPoint { source_key, revision, value_digest: digest.try_into().unwrap_or_default() }),
        last_delete: None,
        canary: None,
    }
}

fn load(directory: &Path) -> Outcome<()> {
    let reference = read_flat_file(directory)?;
    let started = Instant::now();
    let store = open(directory)?;
    let opened = started.elapsed();
    let loaded = store.load()?;
    let (count, all) = (loaded.record_count(), started.elapsed());
    println!(
        "load {count}: open {:.0} ms, with all chunks {:.0} ms; flat file of as many bytes {:.0} ms; resident {} MB",
        opened.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3,
        reference.as_secs_f64() * 1e3,
        resident()?
    );
    std::process::exit(0);
}

/// Measures reads of a plain file as large as the store. The fastest read counts, because the page
/// cache is warm then.
fn read_flat_file(directory: &Path) -> Outcome<Duration> {
    let path = directory.join("flat");
    let length = fs::metadata(directory.join("store/db"))?.len();
    fs::write(&path, vec![1; usize::try_from(length)?])?;
    let mut times = BTreeMap::new();
    for round in 0..3 {
        let started = Instant::now();
        let mut bytes = Vec::new();
        File::open(&path)?.read_to_end(&mut bytes)?;
        times.insert(started.elapsed(), (round, bytes.len()));
    }
    fs::remove_file(&path)?;
    times.pop_first().map(|(time, _)| time).ok_or_else(|| "nothing was read".into())
}

fn millis(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let at = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

#[allow(clippy::cast_precision_loss, reason = "only printed")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

/// Returns the resident memory in MB.
fn resident() -> Outcome<u64> {
    Ok(field("/proc/self/status", "VmRSS:")? >> 10)
}

fn field(path: &str, name: &str) -> Outcome<u64> {
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or("no such field")?;
    Ok(line.split_whitespace().next().ok_or("no value")?.parse()?)
}

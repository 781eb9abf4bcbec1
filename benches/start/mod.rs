//! Bench of starts: `cargo bench -- start [entries...]` (default: 100,000 and 1,000,000). The
//! derived entries are not counted. With more than a million entries, the clusters are fewer and
//! larger: set XL has 3,160,000 entries of 201 clusters.
//!
//! It starts the real binary with a generated store in fresh processes and sends requests over a
//! unix socket. It measures the time to the first answer to a lookup, and until everything is in
//! memory, each as a median of five: after a clean stop, without the page cache, and after a kill
//! during 20,000 changes per second. The reference is reading a flat file of the same size. There
//! are no thresholds and no etcd.

pub(crate) mod fill;

use crate::processes::{Outcome, busy_of, child_of};
use crate::view::data;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use meshkeep::internals::model::{Change, Command as MirrorCommand, Epoch, EpochSpan, Kind, Record, Scope, Sequence};
use meshkeep::internals::store::{Group, Store};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Returns how often each start is measured.
fn runs() -> u32 {
    data::sized(5, 1)
}

/// Returns the duration of the changes before the kill. The log is full after some 4 s.
fn churn_time() -> Duration {
    Duration::from_secs(data::sized(10, 1))
}

/// Time in which changes are gathered into a group (`commit::persist`).
const WINDOW: Duration = Duration::from_millis(25);

/// Number of changes in a window, at 20,000 per second.
const CHANGES_PER_GROUP: u64 = 500;

/// Pause between two requests.
const POLL: Duration = Duration::from_micros(300);

/// Maximum time for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["role:fill", directory, clusters, scale] => {
            data::SCALE.store(scale.parse()?, Ordering::Relaxed);
            fill::fill(Path::new(directory), clusters.parse()?)
        }
        ["role:churn", directory, clusters, scale] => {
            data::SCALE.store(scale.parse()?, Ordering::Relaxed);
            churn(Path::new(directory), clusters.parse()?)
        }
        [] => ["100000", "1000000"].iter().try_for_each(|entries| measure(entries.parse()?)),
        entries => entries.iter().try_for_each(|entries| measure(entries.parse()?)),
    }
}

fn measure(entries: u64) -> Outcome<()> {
    let scale = entries.div_ceil(1_000_000);
    let clusters = u32::try_from(entries * u64::from(data::clusters()) / 1_000_000 / scale)?.clamp(1, data::clusters()).to_string();
    let scale = scale.to_string();
    let parent = std::env::var("MESHKEEP_BENCH_DIRECTORY").unwrap_or_else(|_| "target".to_owned());
    let home = fs::canonicalize(parent)?.join(format!("bench-start-{}", std::process::id()));
    let data = home.join("data");
    fs::create_dir_all(home.join("clustermesh"))?;
    // a cluster without a file would be removed; no etcd listens on this port
    for number in 1..=clusters.parse()? {
        fs::write(home.join("clustermesh").join(data::cluster(number).as_str()), "endpoints:\n- http://127.0.0.1:1\n")?;
    }
    let filled = start_role("role:fill", &data, &[&clusters, &scale])?.wait_with_output()?;
    println!("{entries} entries of {clusters} clusters: {}", String::from_utf8_lossy(&filled.stdout).trim());
    println!("  a flat file of as many bytes is read in {:.0} ms", millis(read_flat_file(&data)?));
    let count: u32 = clusters.parse()?;
    // the first start writes things that later ones do not
    start(&home, &data, count, 0, &[])?;
    report("after a clean stop", (1..=runs()).map(|run| start(&home, &data, count, run, &[])))?;
    let without_cache = |run| {
        drop_page_cache()?;
        start(&home, &data, count, run, &[])
    };
    match drop_page_cache() {
        Ok(()) => report("without the page cache", (1..=runs()).map(without_cache))?,
        Err(error) => println!("  without the page cache: cannot drop it ({error})"),
    }
    kill_in_churn(&data, &[&clusters, &scale])?;
    let copy = home.join("copy");
    let killed = |run| {
        copy_tree(&data, &copy)?;
        let times = start(&home, &copy, count, run, &[]);
        fs::remove_dir_all(&copy)?;
        times
    };
    report("after a kill at 20,000 changes/s", (1..=runs()).map(killed))?;
    fs::remove_dir_all(&home)?;
    Ok(())
}

fn start_role(name: &str, directory: &Path, words: &[&str]) -> Outcome<Child> {
    let directory = directory.to_str().ok_or("the path is not UTF-8")?;
    Ok(child_of("start")?.args([name, directory]).args(words).stdout(Stdio::piped()).spawn()?)
}

/// Measurements of one start.
pub(crate) struct Times {
    /// Time until the first answer to a lookup.
    pub(crate) first: Duration,
    /// Time until everything is in memory.
    pub(crate) ready: Duration,
    /// CPU time of the process a second after that.
    pub(crate) busy: Duration,
    pub(crate) resident_mb: u64,
}

pub(crate) fn report(what: &str, runs: impl Iterator<Item = Outcome<Times>>) -> Outcome<()> {
    let runs = runs.collect::<Outcome<Vec<Times>>>()?;
    let median = |time: fn(&Times) -> Duration| {
        let mut times: Vec<Duration> = runs.iter().map(time).collect();
        times.sort_unstable();
        let all: Vec<String> = times.iter().map(|time| format!("{:.0}", millis(*time))).collect();
        format!("{:.0} ms ({})", millis(times[times.len() / 2]), all.join(" "))
    };
    let resident = runs.iter().map(|run| run.resident_mb).max().unwrap_or(0);
    println!("  {what}: first lookup {}, everything {}, resident {resident} MB", median(|run| run.first), median(|run| run.ready));
    Ok(())
}

/// Starts the binary with these flags, sends requests and stops it cleanly.
pub(crate) fn start(home: &Path, data: &Path, clusters: u32, run: u32, flags: &[&str]) -> Outcome<Times> {
    let socket = home.join("socket");
    let address = data::address(run * 7 % clusters + 1, run * 513 % data::IPS);
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_meshkeep"))
        .args(["serve", "--log-level", "error", "--listen", &format!("unix://{}", socket.display())])
        .args(["--data-dir", data.to_str().ok_or("the path is not UTF-8")?])
        .args(["--clustermesh-config", home.join("clustermesh").to_str().ok_or("the path is not UTF-8")?])
        .args(flags)
        .stdout(Stdio::null())
        .spawn()?;
    let times = time_answers(&socket, &address, began);
    let outcome = times.and_then(|(first, ready)| {
        // the allocator releases the memory of loading within a second
        std::thread::sleep(Duration::from_secs(1));
        Ok(Times { first, ready, busy: busy_of(child.id())?, resident_mb: resident(child.id())? })
    });
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
    child.wait()?;
    outcome
}

fn time_answers(socket: &Path, address: &std::net::Ipv4Addr, began: Instant) -> Outcome<(Duration, Duration)> {
    let body = until(socket, &format!("/v1/ipcache/lookup?ip={address}"))?;
    let first = began.elapsed();
    if !body.contains(r#""match":{"#) {
        return Err(format!("not an answer for {address}: {body}").into());
    }
    until(socket, "/readyz")?;
    Ok((first, began.elapsed()))
}

/// Repeats a request until the answer has status 200.
fn until(socket: &Path, path: &str) -> Outcome<String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        match ask(socket, path) {
            Ok(answer) if answer.starts_with("HTTP/1.1 200") => return Ok(answer),
            Ok(_) | Err(_) => std::thread::sleep(POLL),
        }
    }
    Err(format!("no answer to {path}").into())
}

fn ask(socket: &Path, path: &str) -> Outcome<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Changes 20,000 random ipcache entries per second until the process is killed.
fn churn(directory: &Path, clusters: u32) -> Outcome<()> {
    let (store, _) = Store::open(directory, Duration::ZERO)?;
    let loaded = store.load()?;
    let mut sequence = loaded.sequence_reserved.0;
    let epoch = Epoch(0xc0de);
    store.log().begin_epoch(epoch);
    let mut epochs = loaded.epochs;
    epochs.push(EpochSpan { epoch, start: Sequence(sequence), accepted_up_to: None });
    let reserved = Some(Sequence(sequence + (1 << 40)));
    store.apply(&Group {
        epochs: Some(epochs),
        covered_sequence: Some(Sequence(sequence)),
        sequence_reserved: reserved,
        ..Group::default()
    })?;
    let (mut random, mut due) = (StdRng::seed_from_u64(1), Instant::now());
    println!("ready");
    loop {
        due += WINDOW;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut group = Group::default();
        for _ in 0..CHANGES_PER_GROUP {
            let MirrorCommand::Apply { changes, .. } = data::change(&mut random, i64::try_from(sequence)?, clusters) else { continue };
            for change in changes {
                let Change::Put { key, value, decoded, source } = change else { continue };
                sequence += 1;
                let (create_sequence, last_sequence) = (Sequence(1), Sequence(sequence));
                let (object, good_value, rejection) = (decoded.ok(), None, None);
                let record =
                    Record { key, value, good_value, object, rejection, source, create_sequence, last_sequence, version: 2, generation: 0 };
                group
                    .cursors
                    .insert(Scope { cluster: record.key.cluster.clone(), kind: Kind::Ip }, Some(fill::cursor(source.mod_revision.0)));
                group.records.insert(record.key.clone(), Some(Arc::new(record)));
            }
        }
        group.covered_sequence = Some(Sequence(sequence));
        store.log().append(&mut group);
        store.apply(&group)?;
        store.fold_due(due + WINDOW)?;
    }
}

fn kill_in_churn(data: &Path, words: &[&str]) -> Outcome<()> {
    let mut child = start_role("role:churn", data, words)?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut line)?;
    std::thread::sleep(churn_time());
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// Measures reads of a plain file as large as the store. The fastest read counts, because the page
/// cache is warm then.
fn read_flat_file(data: &Path) -> Outcome<Duration> {
    let path = data.join("flat");
    fs::write(&path, vec![1; usize::try_from(fs::metadata(data.join("store/db"))?.len())?])?;
    let mut fastest = Duration::MAX;
    for _ in 0..runs() {
        let (began, mut bytes) = (Instant::now(), Vec::new());
        File::open(&path)?.read_to_end(&mut bytes)?;
        fastest = fastest.min(began.elapsed());
    }
    fs::remove_file(&path)?;
    Ok(fastest)
}

fn drop_page_cache() -> Outcome<()> {
    Command::new("sync").status()?;
    Ok(fs::write("/proc/sys/vm/drop_caches", "3")?)
}

/// Copies a directory and syncs the copy, because the killed store was synced, too. Otherwise the
/// start would wait until the disk has written the copy.
pub(crate) fn copy_tree(from: &Path, to: &PathBuf) -> Outcome<()> {
    fs::create_dir_all(to)?;
    for file in fs::read_dir(from)? {
        let file = file?;
        let target = to.join(file.file_name());
        if file.file_type()?.is_dir() {
            copy_tree(&file.path(), &target)?;
        } else {
            fs::copy(file.path(), &target)?;
            File::open(target)?.sync_all()?;
        }
    }
    Ok(())
}

fn resident(id: u32) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no such field")?;
    Ok(line.split_whitespace().next().ok_or("no value")?.parse::<u64>()? >> 10)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

//! The figures, each with its reference.

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use meshkeep::internals::commit::folder;
use meshkeep::internals::feed::{Feed, Retention};
use meshkeep::internals::model::{EntryKey, Kind, Record, Sequence};
use meshkeep::internals::pack::{Chunk, build, fold};
use meshkeep::internals::view::View;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

use super::data::{IPS, address, change, clusters, clusters_in_key_order, decode, derived, records, sized, values};

/// Highest planned rate of changes, and the number of changes that the writer then publishes
/// together.
const CHANGES_PER_SECOND: u32 = 20_000;
const CHANGES_PER_BATCH: u32 = 40;

pub(crate) fn mean_us(elapsed: Duration, count: usize) -> f64 {
    elapsed.as_secs_f64() * 1e6 / f64::from(u32::try_from(count).expect("must be few"))
}

fn megabytes(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes / 1000).expect("must be some MB")) / 1e3
}

/// Returns the resident memory of this process in MB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("must be Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("must have a size");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("must be a number");
    kib * 1024 / 1_000_000
}

/// Returns the CPU time of this thread. On a busy machine the wall clock is meaningless.
pub(crate) fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("must not be negative")
}

/// Builds the mirror of a million keys and a quarter as many derived entries, from chunks as a
/// start does.
fn mirror() -> View {
    mirror_of(clusters())
}

/// Builds the mirror of the first `count` clusters.
pub(crate) fn mirror_of(count: u32) -> View {
    let mut chunks = Vec::new();
    let numbers = clusters_in_key_order(count);
    for kind in Kind::STORED {
        for pair in numbers.chunks(8) {
            let records: Vec<Record> = match kind {
                Kind::NodeIp => {
                    let mut derived: Vec<Record> =
                        pair.iter().flat_map(|number| records(Kind::Node, *number)).flat_map(|node| derived(&node)).collect();
                    derived.sort_by(|left, right| left.key.cmp(&right.key));
                    derived
                }
                kind => pair.iter().flat_map(|number| records(kind, *number)).collect(),
            };
            chunks.extend(build(&records));
        }
    }
    let mut view = View::starting_at(Sequence(1_000_000));
    view.restore_chunks(chunks);
    view
}

pub(crate) fn packing() {
    for kind in Kind::ALL {
        let records: Vec<Record> = clusters_in_key_order(clusters()).iter().take(64).flat_map(|number| records(kind, *number)).collect();
        // the generated mesh has no service exports
        if records.is_empty() {
            continue;
        }
        let raw: usize = records.iter().map(|record| record.key.to_string().len() + record.value.len()).sum();
        let began = thread_time();
        let chunks = build(&records);
        let built = thread_time() - began;
        let packed: usize = chunks.iter().map(|chunk| chunk.stored().len()).sum();
        let stored: Vec<Vec<u8>> = chunks.iter().map(|chunk| chunk.stored().to_vec()).collect();
        let began = thread_time();
        let again: Vec<Chunk> = stored.into_iter().map(|stored| Chunk::from_stored(stored).expect("must read")).collect();
        let checked = thread_time() - began;
        let firsts: Vec<EntryKey> = again.iter().map(Chunk::first_key).collect();
        let began = thread_time();
        for index in 0..50_000 {
            let key = &records[index * 7_919 % records.len()].key;
            let chunk = firsts.partition_point(|first| first <= key) - 1;
            black_box(again[chunk].get(key).expect("must be there"));
        }
        let get_time = thread_time() - began;
        println!(
            "  {kind}: {} B raw -> {} B packed a record; build {:.2} us, check {:.3} us a record; get {:.2} us",
            raw / records.len(),
            packed / records.len(),
            mean_us(built, records.len()),
            mean_us(checked, records.len()),
            mean_us(get_time, 50_000)
        );
    }
}

/// Number of changed records in a chunk when it is folded, at the highest rate over a million keys.
const CHANGES_PER_FOLD: usize = 100;

pub(crate) fn folding() {
    let records: Vec<Record> = clusters_in_key_order(clusters()).iter().take(100).flat_map(|number| records(Kind::Ip, *number)).collect();
    let mut chunks = build(&records);
    let mut random = StdRng::seed_from_u64(8);
    let (mut folded, mut longest, mut built) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let rounds = 10;
    for round in 0..rounds {
        for chunk in &mut chunks {
            let changed = |_| {
                let mut record = chunk.record(random.random_range(0..chunk.len()));
                let pod = format!("cart-7-{:x}-{:05x}", random.random::<u32>(), random.random_range(0..1 << 20));
                let text = String::from_utf8(record.value.to_vec()).expect("must be JSON");
                let (before, rest) = text.split_once(r#""K8sPodName":""#).expect("must have a pod");
                let after = rest.split_once('"').expect("must end").1;
                record.value = format!(r#"{before}"K8sPodName":"{pod}"{after}"#).into_bytes().into();
                record.object = Some(decode(&record.key, &record.value));
                record.last_sequence = Sequence(1_000_000 + round * 1_000 + random.random_range(0..1_000));
                (record.key.clone(), Some(Arc::new(record)))
            };
            let changes: BTreeMap<EntryKey, Option<Arc<Record>>> = (0..CHANGES_PER_FOLD).map(changed).collect();
            let began = thread_time();
            let new = fold(std::slice::from_ref(chunk), &[], &changes);
            let elapsed = thread_time() - began;
            folded += elapsed;
            longest = longest.max(elapsed);
            *chunk = new.into_iter().next().expect("must have a chunk");
        }
    }
    let began = thread_time();
    let all: Vec<Record> = chunks.iter().flat_map(Chunk::records).collect();
    let fresh = build(&all);
    built += thread_time() - began;
    let length = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.stored().len()).sum::<usize>();
    println!(
        "  {CHANGES_PER_FOLD} changes into a chunk of 1,024: {:.0} us, at most {:.0} us; packing one from its records: {:.0} us; length {:.3} of that",
        mean_us(folded, chunks.len() * usize::try_from(rounds).expect("must be few")),
        mean_us(longest, 1),
        mean_us(built, fresh.len()),
        megabytes(length(&chunks)) / megabytes(length(&fresh))
    );
}

pub(crate) fn memory() {
    let before = resident();
    let raw: usize = Kind::ALL
        .iter()
        .flat_map(|kind| (1..=clusters()).map(|number| (*kind, number)))
        .map(|(kind, number)| length_of(kind, number))
        .sum();
    let view = mirror();
    let (chunks, packed) = view.packed_size();
    println!("  {} keys, {:.0} MB raw; {chunks} chunks of {:.1} MB", view.entry_count(), megabytes(raw), megabytes(packed));
    println!("  resident: {before} MB before, {} MB after (including the memory that building it left behind)", resident());
    let bytes = std::env::temp_dir().join(format!("meshkeep-bench-{}", std::process::id()));
    let mut all = Vec::new();
    view.chunks().for_each(|chunk| all.push(chunk.stored().to_vec()));
    std::fs::write(&bytes, all.concat()).expect("must write");
    let began = Instant::now();
    black_box(std::fs::read(&bytes).expect("must read"));
    let flat = began.elapsed();
    let began = Instant::now();
    let chunks: Vec<Chunk> = all.into_iter().map(|stored| Chunk::from_stored(stored).expect("must read")).collect();
    let checked = began.elapsed();
    let mut again = View::starting_at(Sequence(1_000_000));
    again.restore_chunks(chunks);
    println!("  bytes -> all views: {:?}, of which checking {checked:?}; reading a flat file of the same bytes {flat:?}", began.elapsed());
    std::fs::remove_file(bytes).expect("must remove");
    drop(again);
    churn(view);
}

fn length_of(kind: Kind, number: u32) -> usize {
    values(kind, number).iter().map(|(key, value)| key.to_string().len() + value.len()).sum()
}

/// Applies changes for a minute at the highest rate, with the feed and the folding thread.
fn churn(mut view: View) {
    let retention = Retention { age_max: Duration::from_secs(3_600), count_max: 100_000 };
    let mut feed = Feed::starting_at(view.sequence(), retention);
    let (mut folder, worker) = folder();
    let thread = std::thread::spawn(move || worker.run());
    let mut random = StdRng::seed_from_u64(3);
    let (began, now, mut peak) = (Instant::now(), SystemTime::UNIX_EPOCH, 0);
    let mut snapshot = (view.clone(), feed.clone());
    let total = sized(60, 1) * CHANGES_PER_SECOND;
    for done in 0..total {
        for announcement in view.apply(change(&mut random, i64::from(done) + 5_000_000, clusters()), now).announcements {
            feed.announce(announcement, now);
        }
        if done % CHANGES_PER_BATCH == 0 {
            folder.advance(&mut view, &feed);
            snapshot = (view.clone(), feed.clone());
            let due = Duration::from_secs(1) * done / CHANGES_PER_SECOND;
            std::thread::park_timeout(due.saturating_sub(began.elapsed()));
        }
        if done % (5 * CHANGES_PER_SECOND) == 0 {
            peak = peak.max(resident());
        }
    }
    println!(
        "  after {total} changes in {:.0?}: resident {} MB, at most {peak} MB; {} records not packed, {} retained for readers",
        began.elapsed(),
        resident(),
        snapshot.0.unpacked_count(),
        feed.ring_length()
    );
    drop(folder);
    thread.join().expect("must end");
}

/// Measures single calls: the median and the 99th percentile in nanoseconds. The clock accounts for
/// some 30 ns of each.
fn percentiles(ips: &[IpAddr], mut call: impl FnMut(IpAddr)) -> (u128, u128) {
    let timed = |ip: &IpAddr| {
        let began = Instant::now();
        call(*ip);
        began.elapsed().as_nanos()
    };
    let mut times: Vec<u128> = ips.iter().map(timed).collect();
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// Measures `View::lookup`, as a request calls it: the record, the labels of its identity and the
/// name of its node, once for each address.
pub(crate) fn lookup() {
    let view = mirror();
    let mut random = StdRng::seed_from_u64(4);
    let mut ip = || IpAddr::from(address(random.random_range(1..=clusters()), random.random_range(0..IPS)));
    let ips: Vec<IpAddr> = (0..sized(200_000, 2_000)).map(|_| ip()).collect();
    let map: HashMap<Ipv4Addr, u32> =
        (1..=clusters()).flat_map(|number| (0..IPS).map(move |index| (address(number, index), number))).collect();
    for _ in 0..sized(5, 1) {
        let (p50, p99) = percentiles(&ips, |ip| {
            if let IpAddr::V4(ip) = ip {
                black_box(map.get(&ip));
            }
        });
        print!("  a hash map of the addresses: p50 {p50} ns, p99 {p99} ns;");
        let (p50, p99) = percentiles(&ips, |ip| drop(black_box(view.lookup(ip, None))));
        println!(" lookup, quiet: p50 {p50} ns, p99 {p99} ns");
    }
    let published = Arc::new(ArcSwap::from_pointee(view.clone()));
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (published, stop) = (Arc::clone(&published), Arc::clone(&stop));
        std::thread::spawn(move || write(view, &published, &stop))
    };
    let (p50, p99) = percentiles(&ips, |ip| drop(black_box(published.load().lookup(ip, None))));
    println!("  lookup, {CHANGES_PER_SECOND} changes/s meanwhile: p50 {p50} ns, p99 {p99} ns");
    stop.store(true, Ordering::Release);
    writer.join().expect("must end");
}

fn write(mut view: View, published: &ArcSwap<View>, stop: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(5);
    let (began, mut done) = (Instant::now(), 0);
    while !stop.load(Ordering::Acquire) {
        for _ in 0..CHANGES_PER_BATCH {
            done += 1;
            view.apply(change(&mut random, i64::from(done) + 5_000_000, clusters()), SystemTime::UNIX_EPOCH);
        }
        published.store(Arc::new(view.clone()));
        let due = Duration::from_secs(1) * done / CHANGES_PER_SECOND;
        std::thread::park_timeout(due.saturating_sub(began.elapsed()));
    }
}

/// Number of batches before the reference applies the same records. With frequent turns, both run
/// under the same load of the machine; with rare turns, neither finds the other's data in the
/// processor's caches.
const BATCHES_PER_TURN: usize = 250;

pub(crate) fn apply() {
    let mut view = mirror();
    let mut random = StdRng::seed_from_u64(6);
    let (mut ours, mut reference) = (Duration::ZERO, Duration::ZERO);
    let mut map: imbl::OrdMap<EntryKey, Arc<Record>> =
        (1..=clusters()).flat_map(|number| records(Kind::Ip, number)).map(|record| (record.key.clone(), Arc::new(record))).collect();
    let mut snapshots = (view.clone(), map.clone());
    // keep the replaced records, because the measured code would otherwise reuse the memory that
    // the reference frees
    let mut replaced = Vec::new();
    let turns = 10;
    for turn in 0..turns {
        let mut batches = Vec::with_capacity(BATCHES_PER_TURN);
        for _ in 0..BATCHES_PER_TURN {
            let commands: Vec<_> = (0..CHANGES_PER_BATCH).map(|_| change(&mut random, turn, clusters())).collect();
            let began = thread_time();
            let effects = view.apply_all(commands, SystemTime::UNIX_EPOCH);
            ours += thread_time() - began;
            snapshots.0 = view.clone();
            batches.push(effects.records.into_iter().filter_map(|(_, record)| record).collect::<Vec<Arc<Record>>>());
        }
        for batch in batches {
            let began = thread_time();
            for record in batch {
                replaced.extend(map.insert(record.key.clone(), record));
            }
            reference += thread_time() - began;
            snapshots.1 = map.clone();
        }
    }
    let count = usize::try_from(turns).expect("must be few") * BATCHES_PER_TURN * CHANGES_PER_BATCH as usize;
    println!(
        "  a change of an ip entry: {:.2} us; the insert into a persistent map alone: {:.2} us",
        mean_us(ours, count),
        mean_us(reference, count)
    );
    drop((snapshots, replaced));
}

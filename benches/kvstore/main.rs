//! What writing costs, with the real sidecar and real etcds: `cargo bench --bench kvstore -- [refill [keys] | change [count] | allocate [count] |
//! memory [keys]]`, all of them without a word. `refill`: an etcd that `meshkeep reflect` fills is lost, and the keys a second at which it is full
//! again, beside bare puts of the same keys by etcd's client, as many at one time. `change`: from a put at a source until it is in the target,
//! beside a program that watches and puts and does nothing else. `allocate`: identities a second that 16 tasks get for new labels over one etcd, beside
//! the calls that this takes at least, made by 16 tasks that do nothing else. `memory`: what reflecting adds to what mirroring takes.
//! Deliberately lacks: thresholds.

mod allocate;
mod bare;
mod change;
#[path = "../view/data.rs"]
#[allow(dead_code, reason = "the mirror's bench needs more of it")]
mod data;
mod memory;
#[path = "../processes/mod.rs"]
#[allow(dead_code, reason = "the other benches need more of it")]
mod processes;
mod refill;
#[path = "../sync/source.rs"]
#[allow(dead_code, reason = "the bench of reading needs more of it")]
mod source;

use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};

use self::data::sized;
use self::processes::{Outcome, Running, add_cluster, start_as};

/// How often each figure is taken; the middle one counts.
const ROUNDS: usize = 5;

/// How long anything may take.
const TIME_MAX: Duration = Duration::from_secs(900);

/// How often the target is asked how much it has, as a part of the time that it took so far: an etcd counts by walking over all keys (some 30 ms for
/// 300,000), and asked each 20 ms it did little else.
const POLLS: u32 = 50;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let count = |full, small| words.get(1).map_or(Ok(sized(full, small)), |word| word.parse::<u32>());
    match words.first().map(String::as_str) {
        Some("refill") => runtime.block_on(refill::refill(count(300_000, 3_000)?)),
        Some("change") => runtime.block_on(change::change(count(500, 20)?)),
        Some("allocate") => runtime.block_on(allocate::allocate(count(5_000, 64)?)),
        Some("memory") => runtime.block_on(memory::memory(count(1_000_000, 3_000)?)),
        Some(other) => Err(format!("there is no figure {other}: refill, change, allocate, memory").into()),
        None => runtime.block_on(async {
            change::change(sized(500, 20)).await?;
            allocate::allocate(sized(5_000, 64)).await?;
            refill::refill(sized(300_000, 3_000)).await?;
            memory::memory(sized(1_000_000, 3_000)).await
        }),
    }
}

/// The files of all clusters of a source, and that of the target.
fn write_files(home: &Path, source: &str, target: &str) -> Outcome<()> {
    for number in 1..=data::clusters() {
        add_cluster(home, data::cluster(number).as_str(), source)?;
    }
    Ok(std::fs::write(home.join("target.yaml"), format!("endpoints:\n- {target}\n"))?)
}

/// Starts `meshkeep reflect` into the target of [`write_files`].
fn start_reflect(home: &Path) -> Outcome<(Running, String)> {
    let target = home.join("target.yaml");
    start_as(home, &["reflect", "--to", target.to_str().ok_or("a path that is no text")?])
}

/// How many entries a target has.
async fn count(client: &Client) -> Outcome<u64> {
    let options = GetOptions::new().with_prefix().with_count_only().with_serializable();
    Ok(u64::try_from(client.clone().get("cilium/cache/", Some(options)).await?.count())?)
}

/// Waits until a target has so many entries; returns how long after the first of them that was, and when it came.
async fn filled(client: &Client, expected: u64) -> Outcome<(Instant, Duration)> {
    let began = Instant::now();
    let mut first = None;
    loop {
        let found = count(client).await.unwrap_or_default();
        if found > 0 {
            first.get_or_insert_with(Instant::now);
        }
        if let Some(first) = first.filter(|_| found >= expected) {
            return Ok((first, first.elapsed()));
        }
        if began.elapsed() > TIME_MAX {
            return Err(format!("the target has {found} of {expected} entries after {TIME_MAX:?}").into());
        }
        tokio::time::sleep((began.elapsed() / POLLS).max(Duration::from_millis(1))).await;
    }
}

/// The middle one.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A rate.
fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

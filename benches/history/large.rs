//! Memory, starts and answers of a sidecar with a large history.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::generate::{Changes, entry_of, place_of, pod_of, sequence_of};
use super::write::history_status;
use super::{create_home, median, rounds};
use crate::api::client::{HttpRequest, answer};
use crate::processes::{Outcome, RunningProcess, add_cluster, child_of, start_meshkeep_command, until};
use crate::start::{self, Times, copy_tree};
use crate::view::data::{self, sized};

/// Settings with which the generated history is never too long.
const FLAGS: [&str; 4] = ["--history-max-bytes", "10GiB", "--history-max-age", "30d"];

/// Maximum time of a start.
const START_MAX: Duration = Duration::from_secs(120);

/// Sidecar with a generated history.
struct LargeHistory {
    changes: Changes,
    data: PathBuf,
    running: RunningProcess,
    address: String,
    random: StdRng,
}

pub(super) fn large(change_count: u64, segment_versions: u64) -> Outcome<()> {
    let home = create_home()?;
    let (with, without) = (home.join("with"), home.join("without"));
    for number in 1..=data::clusters() {
        for home in [&with, &without] {
            add_cluster(home, data::cluster(number).as_str(), "http://127.0.0.1:1")?;
        }
    }
    let data = with.join("data");
    let filled = run_role(&["role:fill", path_text(&data)?, &change_count.to_string()])?;
    copy_tree(&data, &without.join("data"))?;
    let began = Instant::now();
    let generated = run_role(&["role:generate", path_text(&data)?, &change_count.to_string(), &segment_versions.to_string()])?;
    let (start, described) = generated.split_once(' ').ok_or("no start of the history")?;
    println!("large: {described}, generated in {:.0?}; {filled}", began.elapsed());
    measure_starts(&with, &without)?;
    let start = SystemTime::UNIX_EPOCH + Duration::from_millis(start.parse()?);
    let (running, address) = start_meshkeep_command(&with, &[&["serve"][..], &FLAGS[..]].concat())?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(until(&address, "/readyz?verbose", "readyz check passed", START_MAX))?;
    let random = StdRng::seed_from_u64(1);
    let mut bed = LargeHistory { changes: Changes { count: change_count, start }, data, running, address, random };
    bed.check_lookups()?;
    bed.measure_answers()?;
    println!(
        "  resident {} MB after these requests; status: {}",
        bed.running.resident_mb()?,
        runtime.block_on(history_status(&bed.address))?
    );
    bed.running.terminate()?;
    Ok(fs::remove_dir_all(&home)?)
}

fn path_text(path: &Path) -> Outcome<&str> {
    Ok(path.to_str().ok_or("the path is not UTF-8")?)
}

/// Runs a role to its end and returns its output.
fn run_role(words: &[&str]) -> Outcome<String> {
    let output = child_of("history")?.args(words).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{words:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Starts both sidecars alternately.
fn measure_starts(with: &Path, without: &Path) -> Outcome<()> {
    let start = |home: &Path, run: u32, flags: &[&str]| start::start(home, &home.join("data"), data::clusters(), run, flags);
    let (mut times_with, mut times_without): (Vec<Times>, Vec<Times>) = (Vec::new(), Vec::new());
    // the first start writes things that later ones do not
    for run in 0..=rounds() {
        let (one, other) = (start(with, run, &FLAGS)?, start(without, run, &["--history", "off"])?);
        if run > 0 {
            times_with.push(one);
            times_without.push(other);
        }
    }
    let pairs = || times_with.iter().zip(&times_without);
    let compare =
        |time: fn(&Times) -> Duration| median(pairs().map(|(one, other)| time(one).as_secs_f64() / time(other).as_secs_f64()).collect());
    let busy = |times: &[Times]| times.iter().map(|times| times.busy).sum::<Duration>().as_secs_f64();
    println!(
        "  starts with the history compared with none: first lookup {:.2} times, everything {:.2} times, CPU time {:.3} times",
        compare(|times| times.first),
        compare(|times| times.ready),
        busy(&times_with) / busy(&times_without)
    );
    let resident = |times: &[Times]| {
        let mut values: Vec<u64> = times.iter().map(|times| times.resident_mb).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    println!("  resident a second after a start: {} instead of {} MB", resident(&times_with), resident(&times_without));
    start::report("with the history", times_with.into_iter().map(Ok))?;
    start::report("without", times_without.into_iter().map(Ok))
}

impl LargeHistory {
    fn random_change(&mut self) -> u64 {
        self.random.random_range(0..self.changes.count)
    }

    /// Returns a random address that changes.
    fn random_address(&mut self) -> std::net::Ipv4Addr {
        let change = self.random_change();
        address_of(change)
    }

    fn random_time(&mut self) -> Outcome<Timestamp> {
        let change = self.random_change();
        timestamp(self.changes.time(change))
    }

    /// Checks some answers, so that the figures are those of correct ones.
    fn check_lookups(&mut self) -> Outcome<()> {
        for _ in 0..20 {
            let change = self.random_change();
            let path = format!("/v1/ipcache/lookup?ip={}&at={}", address_of(change), timestamp(self.changes.time(change))?);
            let text = String::from_utf8(answer(&self.address, &HttpRequest::get(&path, "*/*"))?)?;
            // the generated history is older than the first list, so no answer is complete
            if !text.contains(&pod_of(sequence_of(change))) {
                return Err(format!("{path} has not the pod {}: {text}", pod_of(sequence_of(change))).into());
            }
        }
        Ok(())
    }

    fn measure_answers(&mut self) -> Outcome<()> {
        let lookup = |bed: &mut Self| Ok(format!("/v1/ipcache/lookup?ip={}&at={}", bed.random_address(), bed.random_time()?));
        self.drop_page_cache()?;
        self.measure("lookup at a time, history not in the page cache", sized(300, 10), lookup)?;
        for _ in 0..rounds() {
            self.measure("lookup at a time", sized(1_000, 20), lookup)?;
        }
        self.measure("lookup now", sized(1_000, 20), |bed| Ok(format!("/v1/ipcache/lookup?ip={}", bed.random_address())))?;
        self.measure("versions of an address", sized(300, 10), |bed| Ok(format!("/v1/history?ip={}", bed.random_address())))?;
        self.measure("versions of a pod", sized(100, 5), |bed| {
            let change = bed.random_change();
            let (_, index) = place_of(entry_of(change));
            // the namespace of `data::ip_value`
            Ok(format!("/v1/history?pod=team-{}/{}", index * 31 % 40, pod_of(sequence_of(change))))
        })?;
        self.measure("versions of an identity", sized(100, 5), |bed| {
            let (cluster, index) = place_of(entry_of(bed.random_change()));
            // the identity of `data::ip_value`
            let identity = (cluster << 16) + 256 + (index * 7 + index / 13) % data::IDENTITIES;
            Ok(format!("/v1/history?identity={identity}"))
        })
    }

    /// Measures the time of requests with one connection each, and the CPU time that they need.
    fn measure(&mut self, what: &str, count: u32, path: impl Fn(&mut Self) -> Outcome<String>) -> Outcome<()> {
        let (mut times, mut length) = (Vec::new(), 0);
        let before = self.running.busy()?;
        for _ in 0..count {
            let request = HttpRequest::get(&path(self)?, "*/*");
            let began = Instant::now();
            length += answer(&self.address, &request)?.len();
            times.push(began.elapsed());
        }
        let busy = (self.running.busy()? - before).as_secs_f64() * 1e3 / f64::from(count);
        times.sort_unstable();
        let millis = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64() * 1e3;
        println!(
            "  {what}: p50 {:.2} ms, p99 {:.2} ms, {busy:.2} ms of CPU time, {} B (means of {count} requests)",
            millis(50),
            millis(99),
            length / times.len()
        );
        Ok(())
    }

    /// Drops the history from the page cache, but no other files.
    fn drop_page_cache(&self) -> Outcome<()> {
        for file in fs::read_dir(self.data.join("history"))? {
            let file = format!("if={}", file?.path().display());
            Command::new("dd").args([&file, "iflag=nocache", "count=0", "status=none"]).status()?;
        }
        Ok(())
    }
}

fn address_of(change: u64) -> std::net::Ipv4Addr {
    let (cluster, index) = place_of(entry_of(change));
    data::address(cluster, index)
}

fn timestamp(time: SystemTime) -> Outcome<Timestamp> {
    Ok(Timestamp::try_from(time)?)
}

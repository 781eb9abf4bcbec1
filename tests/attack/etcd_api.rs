//! One client of the etcd API sends as many expensive requests as it can, while the test measures
//! another client's reads of single keys. The attacker is a separate process on one core, so that
//! it slows the server down only with its requests.

use std::future::Future;
use std::net::IpAddr;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Channel, Client, Error, GetOptions, SortOrder, SortTarget, Txn, TxnOp};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use crate::harness::PATIENCE;
use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster};
use crate::harness::meshkeep::Home;
use crate::harness::scene::{Remote, wait_until_served};
use crate::harness::truth::Truth;

/// Number of keys in addition to those of [`EVERY_KIND`]. At full size `MESHKEEP_ATTACK_KEYS` sets
/// it.
const KEYS: u32 = 2_000;

/// Minimum number of measured point reads.
const READS: usize = 400;

/// Minimum duration of a measurement at full size, so that each attack repeats many times.
const MEASURE_TIME_MIN: Duration = Duration::from_secs(10);

/// Upper bound on the 99th percentile of the point reads during an attack, at full size and in a
/// test, which shares the machine with other tests. If five times the 99th percentile without an
/// attack is longer, that is the bound.
const READ_MAX: Duration = Duration::from_millis(20);
const READ_MAX_OF_TEST: Duration = Duration::from_secs(1);

/// Environment variable that names the attack for the attacker's process.
const ATTACK: &str = "MESHKEEP_ATTACK_FACE";

/// Number of the attacker's tasks that have sent a request.
static STARTED_TASKS: AtomicUsize = AtomicUsize::new(0);

/// Line that the attacker prints once all of its requests have been sent.
const ATTACK_RUNNING: &str = "the attack is running";

/// Names of the attacks:
///
/// - `unread keys`: reads of one key whose answers the client never accepts. If the server reserved
///   64 KiB for each answer, they would use its whole memory budget.
/// - `wide transactions`: transactions of 29,791 ranges.
/// - `transactions` and `earlier transactions`: transactions with the maximum number of ranges, at
///   the newest revision and at earlier ones.
/// - `sorted lists`: 200 concurrent sorted lists.
/// - `unread lists`: 36 lists that the client never reads.
const ATTACKS: [&str; 6] = ["unread keys", "wide transactions", "transactions", "earlier transactions", "sorted lists", "unread lists"];

async fn client(url: &str, address: [u8; 4], configure: impl Fn(Endpoint) -> Endpoint) -> Client {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap().local_address(Some(IpAddr::from(address)));
    Client::from_channel(Channel::Tonic(configure(endpoint).connect().await.unwrap()), None).await.unwrap()
}

async fn attacker_client(url: &str) -> Client {
    client(url, [127, 0, 0, 2], |endpoint| endpoint).await
}

/// Connects a client that never accepts a byte of an answer's body.
async fn stalled_client(url: &str) -> Client {
    client(url, [127, 0, 0, 2], |endpoint| endpoint.initial_stream_window_size(Some(0))).await
}

fn all_keys() -> GetOptions {
    GetOptions::new().with_all_keys()
}

/// Returns options that select the key that was modified last. The server has to inspect every key
/// to find it.
fn newest_key() -> GetOptions {
    all_keys().with_sort(SortTarget::Mod, SortOrder::Descend).with_limit(1)
}

/// Builds a tree of nested transactions with the given number of operations per level.
fn tree(levels: &[usize], range: &mut impl FnMut() -> TxnOp) -> Txn {
    let operations: Vec<TxnOp> = match levels {
        [count] => (0..*count).map(|_| range()).collect(),
        [count, inner @ ..] => (0..*count).map(|_| TxnOp::txn(tree(inner, range))).collect(),
        [] => Vec::new(),
    };
    Txn::new().and_then(operations)
}

/// Repeats a request on several tasks.
fn repeat_on_tasks<F: Future<Output = Result<(), Error>> + Send + 'static>(
    tasks: &mut JoinSet<()>,
    count: usize,
    ask: impl Fn() -> F + Clone + Send + 'static,
) {
    for _ in 0..count {
        let ask = ask.clone();
        tasks.spawn(async move {
            STARTED_TASKS.fetch_add(1, Ordering::Relaxed);
            loop {
                // repeat a refused request after a pause, as ordinary clients do
                if ask().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
}

async fn attack(name: &str, url: &str) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut api = attacker_client(url).await;
    let head = api.get("none", None).await.unwrap().header().unwrap().revision();
    let key = api.get("cilium/cache/ip/", Some(GetOptions::new().with_prefix().with_limit(1))).await.unwrap().kvs()[0].key().to_vec();
    match name {
        "unread keys" => {
            for _ in 0..40 {
                let (stalled, key) = (stalled_client(url).await, key.clone());
                repeat_on_tasks(&mut tasks, 250, move || {
                    let (mut stalled, key) = (stalled.clone(), key.clone());
                    async move { stalled.get(key, None).await.map(drop) }
                });
            }
        }
        "wide transactions" | "transactions" | "earlier transactions" => {
            let levels: &[usize] = if name == "wide transactions" { &[31, 31, 31] } else { &[8, 100] };
            let is_earlier = name == "earlier transactions";
            repeat_on_tasks(&mut tasks, 8, move || {
                let (mut api, mut number) = (api.clone(), 0);
                let mut range = || {
                    number += 1;
                    let options = if is_earlier { newest_key().with_revision(head - number) } else { newest_key() };
                    TxnOp::get("", Some(options))
                };
                let txn = tree(levels, &mut range);
                async move { api.txn(txn).await.map(drop) }
            });
        }
        "sorted lists" => repeat_on_tasks(&mut tasks, 200, move || {
            let mut api = api.clone();
            async move { api.get("", Some(newest_key())).await.map(drop) }
        }),
        "unread lists" => {
            let stalled = stalled_client(url).await;
            repeat_on_tasks(&mut tasks, 36, move || {
                let mut stalled = stalled.clone();
                async move { stalled.get("", Some(all_keys())).await.map(drop) }
            });
        }
        unknown => panic!("unknown attack {unknown}"),
    }
    tasks
}

/// The attacker's process. Does nothing unless an attack is requested.
#[tokio::test]
async fn attacker() {
    let Ok(requested) = std::env::var(ATTACK) else { return };
    let (name, url) = requested.split_once('@').unwrap();
    let mut tasks = attack(name, url).await;
    // this runtime has one thread, so a task that has increased the counter also sends its request
    // before another task runs
    while STARTED_TASKS.load(Ordering::Relaxed) < tasks.len() {
        tokio::task::yield_now().await;
    }
    println!("{ATTACK_RUNNING}");
    tasks.join_next().await;
}

/// Starts an attack in a process on the first core, and waits until it is in progress.
async fn start_attack(name: &str, url: &str) -> Child {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", "0"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "attack::etcd_api::attacker", "--nocapture"]).env(ATTACK, format!("{name}@{url}"));
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let running = async { while !lines.next_line().await.unwrap().expect("must keep running").contains(ATTACK_RUNNING) {} };
    tokio::time::timeout(PATIENCE, running).await.expect("must start");
    child
}

/// Measures reads of single keys. Returns the times in ascending order.
async fn measure_reads(api: &mut Client, keys: &[Vec<u8>], time_min: Duration) -> Vec<Duration> {
    let (mut times, began) = (Vec::new(), Instant::now());
    while times.len() < READS || began.elapsed() < time_min {
        let (key, sent) = (keys[times.len() % keys.len()].clone(), Instant::now());
        let answer = api.get(key, None).await.unwrap();
        assert_eq!(answer.count(), 1);
        times.push(sent.elapsed());
    }
    times.sort();
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn expensive_requests_of_one_client_do_not_slow_others() {
    let _measuring = super::MEASUREMENT_LOCK.lock().await;
    let keys_at_full_size = std::env::var("MESHKEEP_ATTACK_KEYS").ok();
    let count = keys_at_full_size.as_ref().map_or(KEYS, |text| text.parse().unwrap());
    let (time_min, read_max) = if keys_at_full_size.is_some() { (MEASURE_TIME_MIN, READ_MAX) } else { (Duration::ZERO, READ_MAX_OF_TEST) };
    let mut cluster = MeshCluster::generate(1, EVERY_KIND);
    cluster.add_endpoints(count);
    let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![cluster]).await;
    let mut home = Home::new().with_flags(&["--etcd-listen=127.0.0.1:0"]);
    home.write_cluster("c01", &remote.client_file());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("c01", "live").await;
    wait_until_served(&meshkeep, &Truth::from_clusters(&remote.clusters).expected(), "the first loading").await;
    let url =
        home.output().lines().find_map(|line| Some(line.strip_prefix("listening on ")?.strip_suffix(" as an etcd")?.to_owned())).unwrap();
    let mut api = client(&url, [127, 0, 0, 3], |endpoint| endpoint).await;
    let listed = api.get("cilium/cache/ip/", Some(GetOptions::new().with_prefix().with_keys_only().with_limit(100))).await.unwrap();
    let keys: Vec<Vec<u8>> = listed.kvs().iter().map(|kv| kv.key().to_vec()).collect();
    let percentile = |times: &[Duration], part: usize| times[times.len() * part / 100];
    let idle = measure_reads(&mut api, &keys, time_min).await;
    println!(
        "more than {count} keys: {} point reads p50 {:?}, p99 {:?} without an attack",
        idle.len(),
        percentile(&idle, 50),
        percentile(&idle, 99)
    );
    for name in ATTACKS {
        let mut attacker = start_attack(name, &url).await;
        let times = measure_reads(&mut api, &keys, time_min).await;
        println!(
            "{name}: {} point reads p50 {:?}, p99 {:?}, longest {:?}",
            times.len(),
            percentile(&times, 50),
            percentile(&times, 99),
            times[times.len() - 1]
        );
        assert!(attacker.try_wait().unwrap().is_none(), "{name}: the attacker ended too early");
        attacker.kill().await.unwrap();
        let bound = read_max.max(percentile(&idle, 99) * 5);
        assert!(percentile(&times, 99) <= bound, "{name}: p99 {:?}, which is more than {bound:?}", percentile(&times, 99));
    }
}

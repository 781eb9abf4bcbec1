//! One client of the etcd face that sends as many expensive requests as it can, and the times of
//! another client's point reads meanwhile. The attacker is a process on one core, so that only its
//! requests cost the server time.

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
use crate::harness::scene::{Remote, settles};
use crate::harness::truth::Truth;

/// Number of keys in addition to those of [`EVERY_KIND`]. At full size `MESHKEEP_ATTACK_KEYS` sets
/// it.
const KEYS: u32 = 2_000;

/// Number of measured point reads, and minimum duration of the measurement at full size, so that
/// each attack repeats many times.
const READS: usize = 400;
const MEASURED_FOR: Duration = Duration::from_secs(10);

/// Maximum time of 99 % of the point reads during an attack, or five times the time without an
/// attack if that is more. A test allows a multiple, because other tests run at the same time.
const READ_MAX: Duration = Duration::from_millis(20);
const READ_MAX_OF_TEST: Duration = Duration::from_secs(1);

/// Environment variable that names the attack for the attacker's process.
const ATTACK: &str = "MESHKEEP_ATTACK_FACE";

/// Number of the attacker's tasks that have sent a request.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// Line that the attacker prints once all of its requests have been sent.
const BEGUN: &str = "the attack goes on";

/// The attacks: answers about one key that are never read (with 64 KiB reserved for each, they
/// would use the whole budget); transactions of 29,791 ranges; transactions with the maximum number
/// of ranges at the newest and at earlier revisions; 200 concurrent sorted lists; 36 lists that are
/// never read.
const ATTACKS: [&str; 6] = ["unread keys", "wide transactions", "transactions", "earlier transactions", "sorted lists", "unread lists"];

async fn client(url: &str, address: [u8; 4], change: impl Fn(Endpoint) -> Endpoint) -> Client {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap().local_address(Some(IpAddr::from(address)));
    Client::from_channel(Channel::Tonic(change(endpoint).connect().await.unwrap()), None).await.unwrap()
}

async fn attacker_client(url: &str) -> Client {
    client(url, [127, 0, 0, 2], |endpoint| endpoint).await
}

/// Connects a client that accepts no byte of any answer's body.
async fn deaf_client(url: &str) -> Client {
    client(url, [127, 0, 0, 2], |endpoint| endpoint.initial_stream_window_size(Some(0))).await
}

fn everything() -> GetOptions {
    GetOptions::new().with_all_keys()
}

/// Selects the newest of all keys, for which the server has to look at every key.
fn newest() -> GetOptions {
    everything().with_sort(SortTarget::Mod, SortOrder::Descend).with_limit(1)
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
fn again<F: Future<Output = Result<(), Error>> + Send + 'static>(
    tasks: &mut JoinSet<()>,
    count: usize,
    ask: impl Fn() -> F + Clone + Send + 'static,
) {
    for _ in 0..count {
        let ask = ask.clone();
        tasks.spawn(async move {
            ASKING.fetch_add(1, Ordering::Relaxed);
            loop {
                // a refused request is repeated after a moment, as usual clients do
                if ask().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        });
    }
}

async fn attack(name: &str, url: &str) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut face = attacker_client(url).await;
    let head = face.get("none", None).await.unwrap().header().unwrap().revision();
    let key = face.get("cilium/cache/ip/", Some(GetOptions::new().with_prefix().with_limit(1))).await.unwrap().kvs()[0].key().to_vec();
    match name {
        "unread keys" => {
            for _ in 0..40 {
                let (deaf, key) = (deaf_client(url).await, key.clone());
                again(&mut tasks, 250, move || {
                    let (mut deaf, key) = (deaf.clone(), key.clone());
                    async move { deaf.get(key, None).await.map(drop) }
                });
            }
        }
        "wide transactions" | "transactions" | "earlier transactions" => {
            let levels: &[usize] = if name == "wide transactions" { &[31, 31, 31] } else { &[8, 100] };
            let is_earlier = name == "earlier transactions";
            again(&mut tasks, 8, move || {
                let (mut face, mut number) = (face.clone(), 0);
                let mut range = || {
                    number += 1;
                    let options = if is_earlier { newest().with_revision(head - number) } else { newest() };
                    TxnOp::get("", Some(options))
                };
                let txn = tree(levels, &mut range);
                async move { face.txn(txn).await.map(drop) }
            });
        }
        "sorted lists" => again(&mut tasks, 200, move || {
            let mut face = face.clone();
            async move { face.get("", Some(newest())).await.map(drop) }
        }),
        "unread lists" => {
            let deaf = deaf_client(url).await;
            again(&mut tasks, 36, move || {
                let mut deaf = deaf.clone();
                async move { deaf.get("", Some(everything())).await.map(drop) }
            });
        }
        unknown => panic!("no attack is called {unknown}"),
    }
    tasks
}

/// The attacker's process. Does nothing unless an attack is requested.
#[tokio::test]
async fn attacker() {
    let Ok(wanted) = std::env::var(ATTACK) else { return };
    let (name, url) = wanted.split_once('@').unwrap();
    let mut tasks = attack(name, url).await;
    // a spawned task runs until it waits for an answer
    while ASKING.load(Ordering::Relaxed) < tasks.len() {
        tokio::task::yield_now().await;
    }
    println!("{BEGUN}");
    tasks.join_next().await;
}

/// Starts an attack in a process on the first core, and waits until it is in progress.
async fn begin(name: &str, url: &str) -> Child {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", "0"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "attack::etcd_face::attacker", "--nocapture"]).env(ATTACK, format!("{name}@{url}"));
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let begun = async { while !lines.next_line().await.unwrap().expect("it must go on").contains(BEGUN) {} };
    tokio::time::timeout(PATIENCE, begun).await.expect("must begin");
    child
}

/// Measures reads of single keys. Returns the times, the shortest first.
async fn reads(face: &mut Client, keys: &[Vec<u8>], at_least: Duration) -> Vec<Duration> {
    let (mut took, began) = (Vec::new(), Instant::now());
    while took.len() < READS || began.elapsed() < at_least {
        let (key, asked) = (keys[took.len() % keys.len()].clone(), Instant::now());
        let found = face.get(key, None).await.unwrap();
        assert_eq!(found.count(), 1);
        took.push(asked.elapsed());
    }
    took.sort();
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn one_client_takes_the_face_away_from_nobody() {
    let _measuring = super::MEASURING.lock().await;
    let wanted = std::env::var("MESHKEEP_ATTACK_KEYS").ok();
    let count = wanted.as_ref().map_or(KEYS, |text| text.parse().unwrap());
    let (at_least, read_max) = if wanted.is_some() { (MEASURED_FOR, READ_MAX) } else { (Duration::ZERO, READ_MAX_OF_TEST) };
    let mut cluster = MeshCluster::generate(1, EVERY_KIND);
    cluster.add_endpoints(count);
    let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![cluster]).await;
    let mut home = Home::new().with_flags(&["--etcd-listen=127.0.0.1:0"]);
    home.write_cluster("c01", &remote.client_file());
    let meshkeep = home.start().await;
    meshkeep.reaches("c01", "live").await;
    settles(&meshkeep, &Truth::of(&remote.clusters).expected(), "the first loading").await;
    let url =
        home.output().lines().find_map(|line| Some(line.strip_prefix("listening on ")?.strip_suffix(" as an etcd")?.to_owned())).unwrap();
    let mut face = client(&url, [127, 0, 0, 3], |endpoint| endpoint).await;
    let listed = face.get("cilium/cache/ip/", Some(GetOptions::new().with_prefix().with_keys_only().with_limit(100))).await.unwrap();
    let keys: Vec<Vec<u8>> = listed.kvs().iter().map(|kv| kv.key().to_vec()).collect();
    let at = |took: &[Duration], part: usize| took[took.len() * part / 100];
    let idle = reads(&mut face, &keys, at_least).await;
    println!("{count} keys and some: {} point reads p50 {:?}, p99 {:?} without an attack", idle.len(), at(&idle, 50), at(&idle, 99));
    for name in ATTACKS {
        let mut attacker = begin(name, &url).await;
        let took = reads(&mut face, &keys, at_least).await;
        println!("{name}: {} point reads p50 {:?}, p99 {:?}, longest {:?}", took.len(), at(&took, 50), at(&took, 99), took[took.len() - 1]);
        assert!(attacker.try_wait().unwrap().is_none(), "{name}: the attack ended before its end");
        attacker.kill().await.unwrap();
        let most = read_max.max(at(&idle, 99) * 5);
        assert!(at(&took, 99) <= most, "{name}: p99 {:?}, which is more than {most:?}", at(&took, 99));
    }
}

//! One client of the etcd face that asks for all it can, and what another one's point reads take meanwhile. The attacker is a process of its own on one core,
//! so that it takes none of the server's time but by what it asks for.

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

/// How many keys there are beside those of [`EVERY_KIND`]; at full size as many as `MESHKEEP_ATTACK_KEYS` says.
const KEYS: u32 = 2_000;

/// How many point reads are measured, and for how long at least at full size, so that each attack has begun again and again.
const READS: usize = 400;
const MEASURED_FOR: Duration = Duration::from_secs(10);

/// What 99 of 100 point reads may take beside an attack, or five times of what they take without where that is more. In a test, which has other tests beside
/// it, a multiple of that.
const READ_MAX: Duration = Duration::from_millis(20);
const READ_MAX_OF_TEST: Duration = Duration::from_secs(1);

/// What tells the process of the attacker what it does.
const ATTACK: &str = "MESHKEEP_ATTACK_FACE";

/// How many tasks of the attacker have asked.
static ASKING: AtomicUsize = AtomicUsize::new(0);

/// What the attacker says once all that it asks for is on its way.
const BEGUN: &str = "the attack goes on";

/// The attacks: answers about one key that are not read (of 64 KiB of room each they would take all), transactions of 29,791 ranges, those of as many as
/// there may be at the newest and at earlier revisions, 200 sorted lists at once, 36 lists that are not read.
const ATTACKS: [&str; 6] = ["unread keys", "wide transactions", "transactions", "earlier transactions", "sorted lists", "unread lists"];

async fn client(url: &str, address: [u8; 4], change: impl Fn(Endpoint) -> Endpoint) -> Client {
    let endpoint = Endpoint::from_shared(url.to_owned()).unwrap().local_address(Some(IpAddr::from(address)));
    Client::from_channel(Channel::Tonic(change(endpoint).connect().await.unwrap()), None).await.unwrap()
}

async fn attacker_client(url: &str) -> Client {
    client(url, [127, 0, 0, 2], |endpoint| endpoint).await
}

/// One that takes no byte of any answer's body.
async fn deaf_client(url: &str) -> Client {
    client(url, [127, 0, 0, 2], |endpoint| endpoint.initial_stream_window_size(Some(0))).await
}

fn everything() -> GetOptions {
    GetOptions::new().with_all_keys()
}

/// The newest key of all: everything has to be looked at for it.
fn newest() -> GetOptions {
    everything().with_sort(SortTarget::Mod, SortOrder::Descend).with_limit(1)
}

/// A tree of ranges, so many at each of its levels.
fn tree(levels: &[usize], range: &mut impl FnMut() -> TxnOp) -> Txn {
    let operations: Vec<TxnOp> = match levels {
        [count] => (0..*count).map(|_| range()).collect(),
        [count, inner @ ..] => (0..*count).map(|_| TxnOp::txn(tree(inner, range))).collect(),
        [] => Vec::new(),
    };
    Txn::new().and_then(operations)
}

/// Asks again and again, on so many tasks.
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
                // whoever is refused comes back in a moment, as any client does
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

/// The process of an attacker; nothing where no attack is asked for.
#[tokio::test]
async fn attacker() {
    let Ok(wanted) = std::env::var(ATTACK) else { return };
    let (name, url) = wanted.split_once('@').unwrap();
    let mut tasks = attack(name, url).await;
    // what was spawned runs until it waits for an answer
    while ASKING.load(Ordering::Relaxed) < tasks.len() {
        tokio::task::yield_now().await;
    }
    println!("{BEGUN}");
    tasks.join_next().await;
}

/// Starts an attack in a process on the first core, and waits until it goes on.
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

/// What reads of one key take, the shortest first.
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

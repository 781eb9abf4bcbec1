//! Bench of HTTP requests: `cargo bench -- api [figure...]`, with the figures `lookup batch
//! gateway churn lines command` (default: all).
//!
//! The real sidecar mirrors an etcd with a million keys in 255 clusters, and requests reach it over
//! TCP through its whole router. Each figure alternates several times with its reference in the
//! same run:
//!
//! - `lookup`: a bare axum handler that answers the same bytes.
//! - `batch`: single lookups.
//! - `gateway`: etcd's own JSON gateway.
//! - `churn`: the mirror while nothing changes.
//! - `lines`: the snapshot of the stream.
//! - `command`: curl.
//!
//! Clients and servers share the machine, so only ratios are meaningful. There are no thresholds.

pub(crate) mod client;
mod figures;

use crate::sync::source;
use crate::view::data;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use etcd_client::Client;

use self::client::HttpRequest;
use crate::processes::{Outcome, RunningProcess, add_cluster, child_of, start_etcd, start_meshkeep, until};
use crate::view::data::sized;

/// Maximum time for filling, syncing or an answer.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Programs under test, and a client of the etcd.
pub(crate) struct TestBed {
    etcd: Client,
    /// Address of the etcd, for its JSON gateway.
    gateway: String,
    meshkeep: RunningProcess,
    address: String,
    bare: BareServer,
}

/// A server with a single handler, ended on drop.
pub(crate) struct BareServer {
    child: Child,
    address: String,
}

impl Drop for BareServer {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl BareServer {
    /// Starts a handler that answers with the content of a file.
    fn start(file: &Path) -> Outcome<Self> {
        let file = file.to_str().ok_or("the path is not UTF-8")?;
        let mut child = child_of("api")?.args(["role:bare", file]).stdout(Stdio::piped()).spawn()?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().ok_or("no standard output")?).read_line(&mut address)?;
        Ok(Self { child, address: address.trim().to_owned() })
    }
}

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["role:bare", file] => bare(Path::new(file)),
        ["role:sink", address, streams] => client::sink(address, streams.parse()?),
        wanted => measure(wanted),
    }
}

fn measure(names: &[&str]) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, bed) = runtime.block_on(start_test_bed(home.path()))?;
    for (name, figure) in figures::FIGURES {
        if names.is_empty() || names.contains(&name) {
            figure(&bed, &runtime)?;
        }
    }
    println!("resident at the end: {} MB", bed.meshkeep.resident_mb()?);
    bed.meshkeep.terminate()
}

async fn start_test_bed(home: &Path) -> Outcome<(RunningProcess, TestBed)> {
    let (etcd, url, client) = start_etcd(home).await?;
    let (count, raw) = source::fill(&client, sized(1_000_000, 100_000)).await?;
    for number in 1..=data::clusters() {
        add_cluster(home, data::cluster(number).as_str(), &url)?;
    }
    let (meshkeep, address) = start_meshkeep(home)?;
    until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    // wait until the memory of the first sync is released and its last changes are folded
    tokio::time::sleep(sized(Duration::from_secs(20), Duration::ZERO)).await;
    println!("{count} keys of {} clusters, {} MB; resident {} MB", data::clusters(), raw / 1_000_000, meshkeep.resident_mb()?);
    let answer = home.join("answer");
    std::fs::write(&answer, client::answer(&address, &HttpRequest::lookup(1))?)?;
    let bare = BareServer::start(&answer)?;
    let gateway = url.trim_start_matches("http://").to_owned();
    Ok((etcd, TestBed { etcd: client, gateway, meshkeep, address, bare }))
}

/// Runs one axum handler until the process is killed.
fn bare(file: &Path) -> Outcome<()> {
    let answer = bytes::Bytes::from(std::fs::read(file)?);
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        let handler = axum::routing::get(|| async move { ([("content-type", "application/json")], answer) });
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| drop(stream.set_nodelay(true)));
        Ok(axum::serve(listener, axum::Router::new().route("/", handler)).await?)
    })
}

//! CPU time for each request.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::{Program, Table, create_directory, rounds};
use crate::api::client::{self, HttpRequest};
use crate::processes::{Outcome, RunningProcess, add_cluster, start_etcd, start_meshkeep_program, until};
use crate::sync::source;
use crate::view::data::{self, sized};

/// Number of concurrent connections.
const CONNECTIONS: u32 = 4;

/// Maximum time of a first list.
const TIME_MAX: Duration = Duration::from_secs(600);

/// One row of the table: a kind of request.
struct Row {
    name: &'static str,
    requests: Vec<HttpRequest>,
    /// Number of parts of each answer that the time is divided by, such as the addresses of a
    /// batch.
    parts: u32,
}

fn rows() -> Vec<Row> {
    let many = |name, parts, request: &dyn Fn(u32) -> HttpRequest| Row { name, parts, requests: (0..250).map(request).collect() };
    let one = |name, path: &str| Row { name, parts: 1, requests: vec![HttpRequest::get(path, "*/*")] };
    let lines = |name, path: &str, parts| Row { name, parts, requests: vec![HttpRequest::get(path, "application/x-ndjson")] };
    let explain = |number| HttpRequest::get(&HttpRequest::address(number, "/v1/explain/"), "*/*");
    // the lists are of one cluster, so that they are equally long in both meshes
    let entries = data::values(meshkeep::internals::model::Kind::Ip, 2).len();
    vec![
        one("/livez", "/livez"),
        many("lookup", 1, &HttpRequest::lookup),
        many("lookup without a match", 1, &HttpRequest::miss),
        many("lookup of 100 addresses, each", 100, &|number| HttpRequest::batch(number, 100)),
        many("lookup of 1,000 addresses, each", 1_000, &|number| HttpRequest::batch(number, 1_000)),
        many("explain", 1, &explain),
        one("/v1/status", "/v1/status"),
        one("/v1/problems", "/v1/problems"),
        one("/readyz?synced", "/readyz?synced"),
        one("/v1/clusters", "/v1/clusters"),
        one("/metrics", "/metrics"),
        one("ipcache, a page of 100", "/v1/ipcache?limit=100"),
        one("global services, a page of 100", "/v1/global-services?limit=100"),
        lines("ipcache of a cluster as lines, each", "/v1/ipcache?cluster=cluster-2", u32::try_from(entries).unwrap_or(u32::MAX)),
        one("ipcache pod=, none", "/v1/ipcache?pod=team-17/cart-7-abc-x2k4z"),
        one("ipcache namespace=, 50", "/v1/ipcache?namespace=team-17&limit=50"),
        one("ipcache namespace=, none", "/v1/ipcache?namespace=nobody&limit=50"),
        one("ipcache identity=, 10", "/v1/ipcache?identity=131372&limit=10"),
        one("ipcache node=, 10", "/v1/ipcache?node=172.16.2.7&limit=10"),
        one("nodes labelSelector=, none", "/v1/nodes?labelSelector=kubernetes.io/os%3Dbeos"),
        one("identities labelSelector=, none", "/v1/identities?labelSelector=app%3Dnobody"),
    ]
}

/// A running meshkeep with a number of clusters.
struct Bed {
    /// Index of its program.
    program: usize,
    clusters: u32,
    meshkeep: RunningProcess,
    address: String,
}

/// Returns the numbers of clusters of the measured meshes.
fn cluster_counts() -> Vec<u32> {
    sized(vec![3, data::clusters()], vec![data::clusters()])
}

pub(super) fn run(runtime: &Runtime, programs: &[Program]) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, etcd) = runtime.block_on(start_etcd(home.path()))?;
    let (count, _) = runtime.block_on(source::fill(&etcd, sized(1_000_000, 3_000)))?;
    println!("{count} keys of {} clusters", data::clusters());
    let mut beds = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        for clusters in cluster_counts() {
            let directory = create_directory(home.path(), program, &clusters.to_string())?;
            for number in 1..=clusters {
                add_cluster(&directory, data::cluster(number).as_str(), &url)?;
            }
            let (meshkeep, address) = start_meshkeep_program(&program.path, &directory)?;
            runtime.block_on(until(&address, "/readyz?synced", "200 OK", TIME_MAX))?;
            beds.push(Bed { program: index, clusters, meshkeep, address });
        }
    }
    // wait until the memory of the first lists is released and their last changes are folded
    std::thread::sleep(sized(Duration::from_secs(20), Duration::ZERO));
    measure_idle(&beds, runtime, &etcd)?.print("idle, ms of CPU time a second", programs);
    let mut tables: Vec<(u32, Table)> = cluster_counts().into_iter().map(|clusters| (clusters, Table::new())).collect();
    let mut bytes = Table::new();
    for round in 0..rounds() {
        for row in rows() {
            for bed in &beds {
                let micros = measure(bed, &row, runtime)?;
                for (_, table) in tables.iter_mut().filter(|(clusters, _)| *clusters == bed.clusters) {
                    table.add(row.name, bed.program, micros);
                }
                if round == 0 && bed.clusters == data::clusters() {
                    bytes.add(row.name, bed.program, client::answer(&bed.address, &row.requests[0])?.len() as f64);
                }
            }
        }
    }
    for (clusters, table) in tables {
        table.print(&format!("us of CPU time a request, {clusters} clusters"), programs);
    }
    bytes.print(&format!("bytes of an answer, {} clusters", data::clusters()), programs);
    Ok(())
}

/// Returns the microseconds of CPU time for each part of an answer.
fn measure(bed: &Bed, row: &Row, runtime: &Runtime) -> Outcome<f64> {
    let time = sized(Duration::from_secs(1), Duration::from_millis(20));
    let (busy, began) = (bed.meshkeep.busy()?, Instant::now());
    let rate = runtime.block_on(client::rate(&bed.address, CONNECTIONS, time, &row.requests))?;
    let (busy, elapsed) = (bed.meshkeep.busy()? - busy, began.elapsed());
    Ok(busy.as_secs_f64() * 1e6 / (rate * elapsed.as_secs_f64() * f64::from(row.parts)))
}

/// Measures all processes at the same time while nothing changes but a heartbeat a minute.
fn measure_idle(beds: &[Bed], runtime: &Runtime, etcd: &etcd_client::Client) -> Outcome<Table> {
    let mut table = Table::new();
    let time = sized(Duration::from_secs(60), Duration::from_millis(100));
    for _ in 0..sized(3, 1) {
        let busy = beds.iter().map(|bed| bed.meshkeep.busy()).collect::<Outcome<Vec<_>>>()?;
        runtime.block_on(source::beat(etcd))?;
        std::thread::sleep(time);
        for (bed, before) in beds.iter().zip(busy) {
            let millis = (bed.meshkeep.busy()? - before).as_secs_f64() * 1e3 / time.as_secs_f64();
            table.add(&format!("{} clusters", bed.clusters), bed.program, millis);
        }
    }
    Ok(table)
}

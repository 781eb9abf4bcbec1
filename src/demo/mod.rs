//! `meshkeep demo`: a mesh of three clusters on one machine, without anything to install.
//!
//! Each cluster is an in-memory etcd whose pods change all the time (`SimulatedCluster`). A real
//! `meshkeep serve` in its own process mirrors them, and clusters can be broken and healed from the
//! keyboard or over HTTP. The sidecar works as with real etcds, and it can be killed and started
//! again.

mod control;
mod data;
mod keys;
mod sidecar;
mod simulated_cluster;
mod simulated_etcd;

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use control::DemoCommand;
use sidecar::Sidecar;
use simulated_cluster::SimulatedCluster;

use crate::model::{ClusterName, printable};

/// Names and ids of the clusters.
const CLUSTERS: [(&str, u32); 3] = [("paris", 1), ("tokyo", 2), ("oslo", 3)];

/// Interval between batches of pod changes. Batches keep the number of ticks low when many pods
/// change per second.
const CHURN_INTERVAL: Duration = Duration::from_millis(100);

/// Interval between heartbeats. Agents leave an etcd without a heartbeat after two minutes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum number of queued commands, for keys pressed while one is carried out.
const COMMANDS_MAX: usize = 16;

/// Default address of the sidecar, the same as that of `serve`. Commands find it without
/// `--server`.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9870);

/// Options of the demo.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Number of pods per cluster.
    pub pods: u32,
    /// Number of pods of the whole mesh that change per second.
    pub changes_per_second: u32,
    /// Address on which the sidecar serves HTTP.
    pub listen: SocketAddr,
    /// Address of the control API.
    pub control: SocketAddr,
}

/// The reason why the demo cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The demo cannot listen on an address.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        cause: std::io::Error,
    },
    /// The demo's files cannot be created.
    #[error("cannot create the demo's files: {0}")]
    Files(std::io::Error),
    /// The sidecar cannot be started.
    #[error("cannot start meshkeep serve: {0}")]
    Sidecar(std::io::Error),
    /// The sidecar ended by itself.
    #[error("meshkeep serve ended ({status}); its newest log lines:\n{log}")]
    SidecarEnded {
        /// Exit status of the sidecar.
        status: std::process::ExitStatus,
        /// End of the sidecar's log.
        log: String,
    },
}

/// Runs the demo until `stopped` is ready or `q` is pressed.
///
/// # Errors
/// [`DemoError`].
pub async fn run(options: &DemoOptions, stopped: impl Future<Output = ()>) -> Result<(), DemoError> {
    let mut stopped = std::pin::pin!(stopped);
    let mut tasks = JoinSet::new();
    let mut sources = Vec::new();
    for (name, id) in CLUSTERS {
        // all names are valid
        let Ok(name) = ClusterName::parse(name) else { continue };
        let source = Arc::new(SimulatedCluster::new(name, id, options.pods));
        source.fill();
        sources.push(source);
    }
    let sources: Arc<[Arc<SimulatedCluster>]> = sources.into();
    let mut etcds = Vec::new();
    for source in sources.iter() {
        etcds.push(simulated_etcd::SimulatedEtcd::start(Arc::clone(source), &mut tasks).await?);
    }
    let (sender, mut commands) = tokio::sync::mpsc::channel(COMMANDS_MAX);
    let control = control::serve(options.control, sender.clone(), &mut tasks).await?;
    let listen = free_port(options.listen)?;
    let _terminal = keys::read_keys(sender);
    tasks.spawn(churn(Arc::clone(&sources), options.changes_per_second));
    tasks.spawn(write_heartbeat(Arc::clone(&sources)));
    let mut sidecar = Sidecar::start(listen, &etcds)?;
    print_usage(&DemoOptions { listen, control, ..options.clone() });
    loop {
        tokio::select! {
            () = stopped.as_mut() => break,
            ended = sidecar.ended() => return Err(ended),
            command = commands.recv() => match command {
                None | Some(DemoCommand::Quit) => break,
                Some(DemoCommand::Restart) => {
                    print_line("killed meshkeep (kill -9) and started it again: it answers from disk (`restored`), and streams continue");
                    sidecar.restart().await?;
                }
                Some(DemoCommand::Cluster(name, action)) => match etcds.iter_mut().find(|etcd| etcd.name() == name) {
                    Some(etcd) => print_line(&etcd.change(action)),
                    None => print_line(&format!("there is no cluster {name}")),
                }
                Some(DemoCommand::Next(action)) => {
                    if let Some(etcd) = etcds.iter_mut().find(|etcd| etcd.accepts(action)) {
                        print_line(&etcd.change(action));
                    }
                }
            }
        }
    }
    sidecar.stop().await;
    Ok(())
}

/// Returns the address with a free port if it asks for port 0. The sidecar keeps this port over
/// restarts.
fn free_port(address: SocketAddr) -> Result<SocketAddr, DemoError> {
    let bound = std::net::TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map_err(|cause| DemoError::Listen { address, cause })
}

/// Replaces pods with other pods at the given rate.
async fn churn(sources: Arc<[Arc<SimulatedCluster>]>, changes_per_second: u32) {
    let mut ticks = interval(CHURN_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut owed, mut next) = (0.0, 0);
    loop {
        ticks.tick().await;
        owed += f64::from(changes_per_second) * CHURN_INTERVAL.as_secs_f64();
        while owed >= 1.0 {
            owed -= 1.0;
            sources[next % sources.len()].replace_random_pod();
            next += 1;
        }
    }
}

async fn write_heartbeat(sources: Arc<[Arc<SimulatedCluster>]>) {
    let mut ticks = interval(HEARTBEAT_INTERVAL);
    loop {
        ticks.tick().await;
        sources.iter().for_each(|source| source.write_heartbeat());
    }
}

fn print_usage(options: &DemoOptions) {
    let clusters = CLUSTERS.map(|(name, _)| name).join(", ");
    print_line(&usage(options, &format!("{clusters}, {} pods each, {} changes a second", options.pods, options.changes_per_second)));
}

/// Returns the address of the page, and commands to try. Each query has the same request with curl
/// next to it.
fn usage(options: &DemoOptions, mesh: &str) -> String {
    let (http, control) = (options.listen, options.control);
    // the program as the user typed it, which may not be in `PATH`
    let program = std::env::args_os().next().map_or_else(|| "meshkeep".to_owned(), |program| program.to_string_lossy().into_owned());
    let server = if options.listen == DEFAULT_LISTEN { String::new() } else { format!(" --server http://{http}") };
    let meshkeep = format!("{program}{server}");
    let ip = data::address(1, 0);
    let queries = [
        (format!("{meshkeep} status"), format!("curl 'http://{http}/v1/status'")),
        (format!("{meshkeep} explain {ip}"), format!("curl 'http://{http}/v1/explain/{ip}'")),
        (format!("{meshkeep} watch --snapshot"), format!("curl -N 'http://{http}/v1/events?snapshot=true'")),
        (format!("{meshkeep} log"), format!("curl 'http://{http}/v1/log'")),
    ];
    let width = queries.iter().map(|(command, _)| command.len()).max().unwrap_or_default();
    let queries: String = queries.iter().map(|(command, request)| format!("  {command:width$}  # {request}\n")).collect();
    let faults = [
        ("paris/break", "its etcd is unreachable: backingOff"),
        ("tokyo/lose", "its etcd loses everything: entries are held"),
        ("paris/heal", "undoes both"),
    ];
    let faults = faults.map(|(path, effect)| format!("  curl -X POST http://{control}/demo/clusters/{path:11}  # {effect}\n")).concat();
    format!(
        "a mesh of {mesh}; the page:\n\n  http://{http}/\n\nin another terminal:\n\n{queries}{faults}\n\
         or press a key: b break a cluster, l lose the data of a cluster, h heal a cluster, r kill and restart meshkeep, q quit"
    )
}

/// Prints a line. A closed pipe does not stop the demo.
fn print_line(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{}", printable(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_page_has_its_own_line() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let options = DemoOptions { pods: 1, changes_per_second: 0, listen: DEFAULT_LISTEN, control: address("127.0.0.1:9869") };
        let by_default = usage(&options, "paris");
        assert!(by_default.lines().any(|line| line.trim() == "http://127.0.0.1:9870/"), "{by_default}");
        assert!(by_default.contains(" explain 10.1.0.10") && !by_default.contains("--server"), "{by_default}");
        let elsewhere = usage(&DemoOptions { listen: address("127.0.0.1:7000"), ..options }, "paris");
        assert!(elsewhere.lines().any(|line| line.trim() == "http://127.0.0.1:7000/"), "{elsewhere}");
        let command = elsewhere.lines().find(|line| line.contains(" --server http://127.0.0.1:7000 status ")).unwrap();
        assert!(command.ends_with("  # curl 'http://127.0.0.1:7000/v1/status'"), "{command}");
    }
}

//! The etcd of one simulated cluster, on its own port, which can be made unreachable.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::DemoError;
use super::control::ClusterAction;
use super::simulated_cluster::SimulatedCluster;
use crate::etcd_api::{EtcdOptions, service};

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 64;

/// The etcd of a simulated cluster.
pub(super) struct SimulatedEtcd {
    source: Arc<SimulatedCluster>,
    address: SocketAddr,
    /// True if the etcd can be reached.
    is_up: watch::Sender<bool>,
}

impl SimulatedEtcd {
    pub(super) async fn start(source: Arc<SimulatedCluster>, tasks: &mut JoinSet<()>) -> Result<Self, DemoError> {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let failed = |cause| DemoError::Listen { address: any_port, cause };
        let listener = TcpListener::bind(any_port).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (is_up, states) = watch::channel(true);
        tasks.spawn(serve(Arc::clone(&source), listener, address, states));
        Ok(Self { source, address, is_up })
    }

    pub(super) fn name(&self) -> &str {
        self.source.name()
    }

    /// Returns the client file for this etcd.
    pub(super) fn client_file(&self) -> String {
        format!("endpoints:\n- http://{}\n", self.address)
    }

    /// Returns whether a change applies: a broken cluster cannot be broken again.
    pub(super) fn accepts(&self, action: ClusterAction) -> bool {
        let is_fine = *self.is_up.borrow() && !self.source.is_lost();
        is_fine != (action == ClusterAction::Heal)
    }

    /// Changes the cluster. Returns a line that says what happened.
    pub(super) fn change(&mut self, action: ClusterAction) -> String {
        let name = self.name();
        match action {
            ClusterAction::Break => {
                self.is_up.send_replace(false);
                format!("{name}: its etcd is unreachable; meshkeep serves the last known state with its age (live → backingOff)")
            }
            ClusterAction::Lose => {
                self.source.lose();
                format!("{name}: its etcd lost everything; meshkeep holds the entries and marks them (sourceLost, `held`)")
            }
            ClusterAction::Heal => {
                if self.source.is_lost() {
                    self.source.fill();
                }
                self.is_up.send_replace(true);
                format!("{name}: healed; meshkeep reads only the changes")
            }
        }
    }
}

/// Accepts connections while the etcd is up, and closes all of them when it goes down.
async fn serve(source: Arc<SimulatedCluster>, listener: TcpListener, address: SocketAddr, mut states: watch::Receiver<bool>) {
    let mut listener = Some(listener);
    loop {
        let Some(open) = listener.take().or_else(|| bind(address)) else {
            tracing::error!(%address, "another process took the port of a demo cluster");
            return;
        };
        let options = EtcdOptions { urls: vec![format!("http://{address}")], ..EtcdOptions::default() };
        let service = service::<Incoming>(source.handle(), options);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = open.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let service = TowerToHyperService::new(service.clone());
                    connections.spawn(async move {
                        // errors of single connections are ignored
                        drop(auto::Builder::new(TokioExecutor::new()).http2_only().serve_connection(TokioIo::new(stream), service).await);
                    });
                }
                Some(_) = connections.join_next() => {}
                changed = states.wait_for(|is_up| !*is_up) => if changed.is_err() { return } else { break },
            }
        }
        drop((open, connections));
        if states.wait_for(|is_up| *is_up).await.is_err() {
            return;
        }
    }
}

fn bind(address: SocketAddr) -> Option<TcpListener> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.set_reuseaddr(true).ok()?;
    socket.bind(address).ok()?;
    socket.listen(BACKLOG).ok()
}

//! A wire between the sidecar and an etcd that can be cut, and that can run dry in the middle of an answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Ports of proxies: below those of the harness's etcds, so that a cut one is not taken meanwhile.
const PORTS: std::ops::Range<u16> = 10_000..15_000;

/// How many bytes one read takes: small, so that a budget ends inside an answer.
const CHUNK_BYTES: usize = 4_096;

/// A TCP proxy on a port of its own.
pub(crate) struct Proxy {
    address: SocketAddr,
    target: u16,
    budget: Arc<Budget>,
    tasks: JoinSet<()>,
}

/// How many bytes may still come from the server.
struct Budget {
    bytes: AtomicU64,
    refilled: Notify,
}

impl Proxy {
    /// A proxy to a port of this machine.
    pub(crate) async fn to(target: u16) -> Self {
        let listener = loop {
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", rand::random_range(PORTS))).await {
                break listener;
            }
        };
        let budget = Arc::new(Budget { bytes: AtomicU64::new(u64::MAX), refilled: Notify::new() });
        let address = listener.local_addr().unwrap();
        let mut proxy = Self { address, target, budget, tasks: JoinSet::new() };
        proxy.serve(listener);
        proxy
    }

    /// The port to connect to.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Another server for connections from now on.
    pub(crate) fn retarget(&mut self, target: u16) {
        self.target = target;
    }

    /// Breaks every connection and refuses new ones.
    pub(crate) async fn cut(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Takes connections again, on the same port.
    pub(crate) async fn restore(&mut self) {
        self.cut().await;
        let listener = super::eventually("the proxy's port to be free", || async { TcpListener::bind(self.address).await.ok() }).await;
        self.serve(listener);
    }

    /// Lets so many more bytes come from the server, over all connections, and then nothing until the next call.
    pub(crate) fn allow_bytes(&self, bytes: u64) {
        self.budget.bytes.store(bytes, Ordering::SeqCst);
        self.budget.refilled.notify_waiters();
    }

    /// Whether what comes from the server has (all but) run dry.
    pub(crate) fn is_dry(&self) -> bool {
        self.budget.bytes.load(Ordering::SeqCst) < CHUNK_BYTES as u64
    }

    fn serve(&mut self, listener: TcpListener) {
        let (target, budget) = (self.target, Arc::clone(&self.budget));
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(connect(client, target, Arc::clone(&budget)));
            }
        });
    }
}

async fn connect(client: TcpStream, target: u16, budget: Arc<Budget>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    // the end of either direction ends the connection
    tokio::select! {
        () = copy(client_read, server_write, None) => {}
        () = copy(server_read, client_write, Some(&budget)) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, budget: Option<&Budget>) {
    let mut chunk = [0; CHUNK_BYTES];
    loop {
        let Ok(length @ 1..) = from.read(&mut chunk).await else { return };
        if let Some(budget) = budget {
            budget.spend(length as u64).await;
        }
        if to.write_all(&chunk[..length]).await.is_err() {
            return;
        }
    }
}

impl Budget {
    async fn spend(&self, bytes: u64) {
        loop {
            let refilled = self.refilled.notified();
            let spent = self.bytes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
                u64::MAX => Some(u64::MAX),
                left => left.checked_sub(bytes),
            });
            match spent {
                Ok(_) => return,
                Err(_) => refilled.await,
            }
        }
    }
}

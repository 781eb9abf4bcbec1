//! A TCP proxy between the sidecar and an etcd. It can cut connections, stop in the middle of an
//! answer, and withhold etcd's answers to progress requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::etcd::unused_port;

/// Maximum number of bytes per read. Small, so that a budget ends inside an answer.
const CHUNK_BYTES: usize = 4_096;

/// Size of an HTTP/2 frame header: three bytes of length, one of type, one of flags and four of the
/// stream id (RFC 9113 §4.1).
const FRAME_HEAD_BYTES: usize = 9;

/// Type of a DATA frame.
const FRAME_DATA: u8 = 0;

/// Encoding of `watch_id: -1` in a `WatchResponse`. Only answers to progress requests and refused
/// watches have it.
const NO_WATCH_ID: [u8; 11] = [0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];

/// A TCP proxy with its own port.
pub(crate) struct Proxy {
    address: SocketAddr,
    target: u16,
    budget: Arc<Budget>,
    /// True while answers to progress requests are withheld; `None` if the proxy does not parse the
    /// traffic.
    withholds_progress: Option<Arc<AtomicBool>>,
    tasks: JoinSet<()>,
}

/// Number of bytes that the server may still send.
struct Budget {
    bytes: AtomicU64,
    refilled: Notify,
}

impl Proxy {
    /// Starts a proxy to a port of this machine.
    pub(crate) async fn to(target: u16) -> Self {
        Self::start(target, None).await
    }

    /// Starts a proxy for HTTP/2 without TLS that forwards everything except etcd's answers to
    /// progress requests.
    pub(crate) async fn withholding_progress(target: u16) -> Self {
        Self::start(target, Some(Arc::new(AtomicBool::new(true)))).await
    }

    async fn start(target: u16, withholds_progress: Option<Arc<AtomicBool>>) -> Self {
        let listener = loop {
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", unused_port())).await {
                break listener;
            }
        };
        let budget = Arc::new(Budget { bytes: AtomicU64::new(u64::MAX), refilled: Notify::new() });
        let address = listener.local_addr().unwrap();
        let mut proxy = Self { address, target, budget, withholds_progress, tasks: JoinSet::new() };
        proxy.serve(listener);
        proxy
    }

    /// Returns the port for clients.
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Forwards to another server from the next [`Proxy::restore`] on.
    pub(crate) fn retarget(&mut self, target: u16) {
        self.target = target;
    }

    /// Closes every connection and refuses new ones.
    pub(crate) async fn cut(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Accepts connections again, on the same port.
    pub(crate) async fn restore(&mut self) {
        self.cut().await;
        let listener = super::eventually("the proxy's port to be free", || async { TcpListener::bind(self.address).await.ok() }).await;
        self.serve(listener);
    }

    /// Forwards `bytes` more bytes from the server, over all connections, and then nothing until
    /// the next call.
    pub(crate) fn allow_bytes(&self, bytes: u64) {
        self.budget.bytes.store(bytes, Ordering::SeqCst);
        self.budget.refilled.notify_waiters();
    }

    /// Forwards answers to progress requests from now on.
    pub(crate) fn forward_progress(&self) {
        self.withholds_progress.iter().for_each(|withholds| withholds.store(false, Ordering::SeqCst));
    }

    /// Returns whether the byte budget is used up, except for a rest of less than one chunk.
    pub(crate) fn is_budget_spent(&self) -> bool {
        self.budget.bytes.load(Ordering::SeqCst) < CHUNK_BYTES as u64
    }

    fn serve(&mut self, listener: TcpListener) {
        let (target, budget, withholds) = (self.target, Arc::clone(&self.budget), self.withholds_progress.clone());
        self.tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(connect(client, target, Arc::clone(&budget), withholds.clone()));
            }
        });
    }
}

async fn connect(client: TcpStream, target: u16, budget: Arc<Budget>, withholds: Option<Arc<AtomicBool>>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let from_server = async {
        match withholds {
            None => copy(server_read, client_write, Some(&budget)).await,
            Some(withholds) => copy_frames(server_read, client_write, &withholds).await,
        }
    };
    // the end of either direction ends the connection
    tokio::select! {
        () = copy(client_read, server_write, None) => {}
        () = from_server => {}
    }
}

/// Copies frame by frame and drops the withheld answers.
async fn copy_frames(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, withholds: &AtomicBool) {
    loop {
        let mut frame = vec![0; FRAME_HEAD_BYTES];
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        frame.resize(FRAME_HEAD_BYTES + length, 0);
        if from.read_exact(&mut frame[FRAME_HEAD_BYTES..]).await.is_err() {
            return;
        }
        let is_progress_answer = frame[3] == FRAME_DATA && frame.windows(NO_WATCH_ID.len()).any(|bytes| bytes == NO_WATCH_ID);
        if !(is_progress_answer && withholds.load(Ordering::SeqCst)) && to.write_all(&frame).await.is_err() {
            return;
        }
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

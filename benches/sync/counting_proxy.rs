//! A TCP proxy that counts the bytes from the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::Outcome;

/// A proxy, ended on drop.
pub(crate) struct CountingProxy {
    address: SocketAddr,
    received: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl CountingProxy {
    /// Starts a proxy to a server.
    pub(crate) async fn start(server: SocketAddr) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, received) = (listener.local_addr()?, Arc::<AtomicU64>::default());
        let (count, mut tasks) = (Arc::clone(&received), JoinSet::new());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                connections.spawn(async move { drop(forward(client, server, &count).await) });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, received, _tasks: tasks })
    }

    /// Returns the URL for clients.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of bytes received from the server so far.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

async fn forward(client: TcpStream, server: SocketAddr, count: &AtomicU64) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.into_split(), server.into_split());
    let upstream = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let downstream = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let length = from_server.read(&mut buffer).await?;
            if length == 0 {
                return to_client.shutdown().await;
            }
            count.fetch_add(length as u64, Ordering::Relaxed);
            to_client.write_all(&buffer[..length]).await?;
        }
    };
    tokio::try_join!(upstream, downstream).map(drop)
}

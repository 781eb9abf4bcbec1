//! Tests of the crate `cilium-kvstore` with real etcd servers.

mod certificates;
mod client_files;
mod connection;
mod follow;
mod list;
mod locks;
mod operations;
mod servers;
mod session;
mod stores;
mod token;
mod watch;
mod watch_stream;
mod watcher;

use std::time::Duration;

use cilium_kvstore::{ClientOptions, Connection, Endpoint, EtcdConfig, KvstoreError, Session, SessionOptions};
use meshkeep::internals::client_file::ClientFile;
use tokio_util::sync::CancellationToken;

use crate::harness::etcd::Etcd;

fn client_file(etcd: &Etcd) -> EtcdConfig {
    ClientFile::parse(etcd.client_file_yaml().as_bytes()).unwrap().config
}

async fn open(etcd: &Etcd) -> Connection {
    open_with(etcd, &ClientOptions::default()).await
}

async fn open_with(etcd: &Etcd, options: &ClientOptions) -> Connection {
    Connection::open(&client_file(etcd), &Endpoint::new(etcd.url()), options).await.unwrap()
}

/// Opens a connection with a client file given as text, and returns the error.
async fn refusal(yaml: &str, endpoint: &str) -> KvstoreError {
    let file = ClientFile::parse(yaml.as_bytes()).unwrap().config;
    match Connection::open(&file, &Endpoint::new(endpoint), &ClientOptions::default()).await {
        Ok(_) => panic!("connected with {yaml}"),
        Err(error) => error,
    }
}

/// Returns options with which writes do not wait for the rate limit.
fn session_options() -> SessionOptions {
    let client = ClientOptions { requests_per_second_max: 10_000, request_timeout: Duration::from_secs(20), ..ClientOptions::default() };
    SessionOptions { client, ..SessionOptions::default() }
}

async fn session(etcd: &Etcd) -> Session {
    session_with(etcd, session_options()).await
}

async fn session_with(etcd: &Etcd, options: SessionOptions) -> Session {
    let session = Session::start(client_file(etcd), options, CancellationToken::new());
    session.connected().await.unwrap();
    session
}

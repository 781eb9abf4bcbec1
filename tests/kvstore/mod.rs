//! The kvstore room against real etcd servers.

mod connection;
mod follow;
mod list;
mod servers;
mod token;
mod watch;
mod watch_stream;

use meshkeep::kvstore::{ClientFile, ClientOptions, Connection, Endpoint, KvstoreError};

use crate::harness::etcd::Etcd;

fn client_file(etcd: &Etcd) -> ClientFile {
    ClientFile::parse(etcd.client_file_yaml().as_bytes()).unwrap()
}

async fn open(etcd: &Etcd) -> Connection {
    open_with(etcd, &ClientOptions::default()).await
}

async fn open_with(etcd: &Etcd, options: &ClientOptions) -> Connection {
    Connection::open(&client_file(etcd), &Endpoint::new(etcd.url()), options).await.unwrap()
}

/// Opens by a client file given as text; the error must come.
async fn refusal(yaml: &str, endpoint: &str) -> KvstoreError {
    let file = ClientFile::parse(yaml.as_bytes()).unwrap();
    match Connection::open(&file, &Endpoint::new(endpoint), &ClientOptions::default()).await {
        Ok(_) => panic!("connected with {yaml}"),
        Err(error) => error,
    }
}

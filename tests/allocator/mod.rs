//! Tests of the allocator with real etcd servers.

mod clusters;
mod concurrency;
mod killed;
mod locks;
mod remote;
mod shapes;
#[path = "../../crates/cilium-kvstore/src/allocator/tests/uses.rs"]
mod uses;

use std::time::Duration;

use cilium_kvstore::allocator::{Allocator, AllocatorKey, AllocatorOptions, EtcdBackend, Id, IdRange};
use cilium_kvstore::{ClientOptions, Session, SessionOptions};
use meshkeep::internals::client_file::ClientFile;
use tokio_util::sync::CancellationToken;

use crate::harness::etcd::Etcd;

const BASE: &str = "cilium/state/identities/v1";

/// A session and the allocator that uses it.
struct Node {
    session: Session,
    allocator: Allocator<EtcdBackend>,
}

/// Time to live of leases and locks in tests.
const TTL: Duration = Duration::from_secs(3);

fn range(min: u64, max: u64) -> IdRange {
    IdRange::new(min, max).unwrap()
}

fn key(name: &str) -> AllocatorKey {
    AllocatorKey::from_labels([("k8s:app", name), ("k8s:io.cilium.k8s.policy.cluster", "vms")])
}

async fn session(etcd: &Etcd) -> Session {
    session_of(&etcd.client_file_yaml()).await
}

/// Returns the session of a client file.
async fn session_of(file: &str) -> Session {
    let file = ClientFile::parse(file.as_bytes()).unwrap().config;
    let client = ClientOptions { requests_per_second_max: 10_000, requests_in_flight_max: 100, ..ClientOptions::default() };
    let options = SessionOptions { client, lease_ttl: TTL, lock_ttl: TTL, ..SessionOptions::default() };
    let session = Session::start(file, options, CancellationToken::new());
    session.connected().await.unwrap();
    session
}

impl Node {
    async fn start(etcd: &Etcd, name: &str, options: AllocatorOptions) -> Self {
        Self::of(session(etcd).await, name, options)
    }

    fn of(session: Session, name: &str, options: AllocatorOptions) -> Self {
        let backend = EtcdBackend::new(session.clone(), BASE, name);
        Self { allocator: Allocator::start(backend, options).unwrap(), session }
    }

    /// Ends the node without cleaning up, as `kill -9` would: nothing renews its leases.
    async fn die(&self) {
        self.session.close().await;
        self.allocator.delete().await;
    }
}

fn options() -> AllocatorOptions {
    AllocatorOptions { range: range(65_536, 131_071), master_key_protection: true, ..AllocatorOptions::default() }
}

/// Returns all keys below the base, with their values and whether they have a lease.
async fn content(etcd: &Etcd) -> Vec<(String, String, bool)> {
    let options = etcd_client::GetOptions::new().with_prefix();
    let reply = etcd.client().await.get(BASE, Some(options)).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    reply.kvs().iter().map(|found| (text(found.key()).replace(&format!("{BASE}/"), ""), text(found.value()), found.lease() != 0)).collect()
}

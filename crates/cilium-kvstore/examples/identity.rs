//! Allocates an identity, as an agent does, and releases it:
//! `identity http://127.0.0.1:2379 k8s:app=cart …`.

use std::error::Error;

use cilium_kvstore::allocator::{Allocator, AllocatorKey, AllocatorOptions, EtcdBackend, IdRange};
use cilium_kvstore::{EtcdConfig, Session, SessionOptions};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: give the address of an etcd")?;
    let labels: Vec<String> = arguments.collect();
    let key = AllocatorKey::from_labels(labels.iter().map(|label| label.split_once('=').unwrap_or((label.as_str(), ""))));
    let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
    let backend = EtcdBackend::new(session.clone(), "cilium/state/identities/v1", "example-node");
    let range = IdRange::new(256, 65_535).ok_or("not a valid range")?;
    let allocator = Allocator::start(backend, AllocatorOptions { range, ..AllocatorOptions::default() })?;
    let allocation = allocator.allocate(&key).await?;
    println!("{} has identity {}{}", key, allocation.id, if allocation.is_new { ", which is new" } else { "" });
    allocator.release(&key).await?;
    allocator.delete().await;
    session.close().await;
    Ok(())
}

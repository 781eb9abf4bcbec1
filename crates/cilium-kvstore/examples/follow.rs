//! Prints the changes of a prefix: `follow http://127.0.0.1:2379 [PREFIX]`.

use std::error::Error;

use cilium_kvstore::{EtcdConfig, EventKind, Session, SessionOptions};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: give the address of an etcd")?;
    let prefix = arguments.next().unwrap_or_else(|| "cilium/state/".into());
    let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
    let mut watcher = session.list_and_watch(prefix.as_bytes(), 256);
    while let Some(event) = watcher.next().await {
        match event.kind {
            EventKind::Create | EventKind::Modify | EventKind::Delete => {
                println!("{:?} {} at {}", event.kind, String::from_utf8_lossy(&event.key), event.mod_revision);
            }
            EventKind::ListDone => println!("the list is complete"),
            EventKind::Relisting => println!("the watch ended: listing again"),
            EventKind::Relisted => println!("the new list is complete"),
        }
    }
    Ok(())
}

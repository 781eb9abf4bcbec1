//! Elects a leader with a lock: `leader http://127.0.0.1:2379`. If several processes run it, one
//! leads until it ends with Ctrl-C.

use std::error::Error;

use cilium_kvstore::{EtcdConfig, Session, SessionOptions};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("usage: give the address of an etcd")?;
    let session = Session::start(EtcdConfig::new(url), SessionOptions::default(), CancellationToken::new());
    println!("waiting for the lock");
    let lock = session.lock_path_without_limit(b"cilium/example-leader").await?;
    println!("leading");
    tokio::select! {
        () = lock.lost() => return Err("the lease of the lock expired: another process may lead now".into()),
        signal = tokio::signal::ctrl_c() => signal?,
    }
    lock.unlock().await?;
    session.close().await;
    Ok(())
}

//! The reference for `refill`: etcd's client alone, which is the lower bound for every program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use etcd_client::{Client, PutOptions};
use tokio::task::JoinSet;

use super::data;
use crate::processes::Outcome;
use crate::sync::source::{KINDS, share};

/// Number of concurrent puts. Same as in `meshkeep reflect`.
const PUTS_AT_ONCE: usize = 64;

/// Number of keys per lease. Same as in Cilium.
const KEYS_PER_LEASE: usize = 1_000;

/// Lifetime of a lease in seconds.
const LEASE_TTL_S: i64 = 900;

/// Returns the keys and values of all clusters.
pub(crate) fn entries(keys: u32) -> Vec<(String, String)> {
    let clusters = 1..=data::clusters();
    let entries = clusters.flat_map(|number| KINDS.into_iter().flat_map(move |kind| share(kind, number, keys)));
    entries.map(|(key, value)| (key.to_string(), value)).collect()
}

/// Puts all entries, each with a lease and in a request of its own.
pub(crate) async fn put_all(client: &Client, entries: Arc<Vec<(String, String)>>) -> Outcome<()> {
    let mut leases = Vec::new();
    for _ in 0..entries.len().div_ceil(KEYS_PER_LEASE) {
        leases.push(client.clone().lease_grant(LEASE_TTL_S, None).await?.id());
    }
    let (leases, next) = (Arc::new(leases), Arc::new(AtomicUsize::new(0)));
    let mut putting = JoinSet::new();
    for _ in 0..PUTS_AT_ONCE {
        let (mut client, entries, leases, next) = (client.clone(), Arc::clone(&entries), Arc::clone(&leases), Arc::clone(&next));
        putting.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some((key, value)) = entries.get(index) else { return Ok::<_, etcd_client::Error>(()) };
                let options = PutOptions::new().with_lease(leases[index / KEYS_PER_LEASE]);
                client.put(key.as_str(), value.as_str(), Some(options)).await?;
            }
        });
    }
    while let Some(put) = putting.join_next().await {
        put??;
    }
    Ok(())
}

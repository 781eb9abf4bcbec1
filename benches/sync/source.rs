//! The source etcd: filled with all clusters in cache form, and changed at a rate.

use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, Txn, TxnOp};
use meshkeep::internals::model::{EntryKey, Kind};
use tokio::task::JoinSet;

use crate::processes::Outcome;
use crate::view::data;

/// Kinds of the generated mesh.
pub(crate) const KINDS: [Kind; 4] = [Kind::Node, Kind::Service, Kind::Identity, Kind::Ip];

/// Maximum number of operations in an etcd transaction.
pub(crate) const TXN_OPERATIONS_MAX: usize = 128;

/// Interval at which [`put`] calls `take_sample`.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// Number of concurrent transactions: enough to keep the etcd busy while its disk syncs, but few
/// enough that the rate drops if the etcd is too slow.
const TXNS_AT_ONCE: usize = 8;

/// Interval of compactions and heartbeats. Without compactions, the history would fill the disk.
const COMPACTION_INTERVAL: Duration = Duration::from_secs(30);

/// Step between the entries of two changes. It is a prime that does not divide the number of
/// entries, so that all entries are changed before one changes again.
const STRIDE: u64 = 7_919;

/// Returns the keys and values of one kind of cluster `number`, in a mesh whose clusters together
/// have about `keys` keys of all kinds.
pub(crate) fn share(kind: Kind, number: u32, keys: u32) -> Vec<(EntryKey, String)> {
    let mut values = data::values(kind, number);
    let share = values.len() * usize::try_from(keys).unwrap_or(usize::MAX) / 1_000_000;
    values.truncate(share.max(1));
    values
}

/// Fills an etcd with all clusters. Returns the number of keys and their bytes.
pub(crate) async fn fill(client: &Client, keys: u32) -> Outcome<(u64, u64)> {
    let (mut count, mut bytes) = (0, 0);
    let mut loading = JoinSet::new();
    for number in 1..=data::clusters() {
        let name = data::cluster(number);
        let mut puts = vec![TxnOp::put(
            format!("cilium/cluster-config/{name}"),
            format!(r#"{{"id":{number},"capabilities":{{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255}}}}"#),
            None,
        )];
        for kind in ["nodes", "services", "identities", "ip"] {
            puts.push(TxnOp::put(format!("cilium/synced/{name}/cilium/cache/{kind}/v1"), "2026-01-12T09:31:07Z", None));
        }
        for (key, value) in KINDS.into_iter().flat_map(|kind| share(kind, number, keys)) {
            let key = key.to_string();
            count += 1;
            bytes += (key.len() + value.len()) as u64;
            puts.push(TxnOp::put(key, value, None));
        }
        let mut client = client.clone();
        loading.spawn(async move {
            for puts in puts.chunks(TXN_OPERATIONS_MAX) {
                client.txn(Txn::new().and_then(puts.to_vec())).await?;
            }
            Ok::<_, etcd_client::Error>(())
        });
        while loading.len() >= 8 {
            loading.join_next().await.ok_or("nothing is loading")???;
        }
    }
    while let Some(loaded) = loading.join_next().await {
        loaded??;
    }
    beat(client).await?;
    Ok((count, bytes))
}

/// Returns the `number`th change, which gives the address of an entry to another pod. The three
/// texts are the key, the value, and two lines: the path of a lookup, and the pod that it must
/// return.
pub(crate) fn change(number: u64) -> Outcome<(String, String, String)> {
    let entries = u64::from(data::clusters()) * u64::from(data::IPS);
    let position = number * STRIDE % entries;
    let (cluster, index) = (u32::try_from(position / u64::from(data::IPS))? + 1, u32::try_from(position % u64::from(data::IPS))?);
    let address = data::address(cluster, index).to_string();
    let pod = format!("cart-7-{:08x}-{:05x}", number.wrapping_mul(0x9e37_79b9) & 0xffff_ffff, number & 0xf_ffff);
    let key = EntryKey::new(Kind::Ip, data::cluster(cluster), address.as_str()).to_string();
    Ok((key, data::ip_value(cluster, index, &pod), format!("/v1/ipcache/lookup?ip={address}\n{pod}")))
}

/// Changes entries at a rate for some time. It starts after the change with the number `after`,
/// because repeated changes would have no effect. Returns the number of changes and their bytes.
pub(crate) async fn put(
    client: &Client,
    rate: u32,
    after: u64,
    seconds: Duration,
    mut take_sample: impl FnMut() -> Outcome<()>,
) -> Outcome<(u64, u64)> {
    let (mut count, mut bytes, mut putting) = (0, 0, JoinSet::new());
    let began = Instant::now();
    let (mut next_sample, mut next_compaction) = (began, began + COMPACTION_INTERVAL);
    while began.elapsed() < seconds {
        let mut puts = Vec::with_capacity(TXN_OPERATIONS_MAX);
        for _ in 0..TXN_OPERATIONS_MAX {
            count += 1;
            let (key, value, _) = change(after + count)?;
            bytes += (key.len() + value.len()) as u64;
            puts.push(TxnOp::put(key, value, None));
        }
        let mut client = client.clone();
        let now = Instant::now();
        let is_due = now >= next_compaction;
        if is_due {
            next_compaction = now + COMPACTION_INTERVAL;
        }
        putting.spawn(async move {
            let revision = client.txn(Txn::new().and_then(puts)).await?.header().map_or(0, etcd_client::ResponseHeader::revision);
            if is_due {
                client.put("cilium/.heartbeat", "2026-01-12T09:31:07Z", None).await?;
                client.compact(revision - 1, Some(CompactionOptions::new())).await?;
            }
            Ok::<_, etcd_client::Error>(())
        });
        while putting.len() >= TXNS_AT_ONCE {
            putting.join_next().await.ok_or("nothing is put")???;
        }
        if now >= next_sample {
            next_sample = now + SAMPLE_INTERVAL;
            take_sample()?;
        }
        let due = began + Duration::from_secs(1) * u32::try_from(count)? / rate;
        tokio::time::sleep_until(due.into()).await;
    }
    while let Some(done) = putting.join_next().await {
        done??;
    }
    Ok((count, bytes))
}

/// Writes a heartbeat, which every cluster of the etcd receives.
pub(crate) async fn beat(client: &Client) -> Outcome<()> {
    client.clone().put("cilium/.heartbeat", "2026-01-12T09:31:07Z", None).await?;
    Ok(())
}

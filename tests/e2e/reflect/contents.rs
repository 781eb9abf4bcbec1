//! Expected and actual contents of a target.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions, KeyValue};

use crate::harness::eventually;
use crate::harness::mesh::{BASES, Form, MeshCluster, config_value};

/// Maximum time until the target has the expected contents. The lock of a killed leader must expire
/// meanwhile.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(60);

/// Returns everything below `cilium/`. Retries, because members that elect a leader do not answer
/// for a moment.
async fn read_all(target: &Client) -> Vec<KeyValue> {
    let get = async || target.clone().get("cilium/", Some(GetOptions::new().with_prefix())).await.ok();
    eventually("an answer of the target", get).await.kvs().to_vec()
}

/// Returns all values below `cilium/` by key, without locks and times.
pub(super) async fn contents(target: &Client) -> BTreeMap<String, String> {
    let kvs = read_all(target).await;
    let entries = kvs.iter().map(|kv| {
        let key = kv.key_str().unwrap().to_owned();
        // binary values become a text that differs whenever they do
        let value = String::from_utf8(kv.value().to_vec()).unwrap_or_else(|_| format!("{:?}", kv.value()));
        let is_time = key.starts_with("cilium/synced/") || key == "cilium/.heartbeat";
        (key, if is_time { "a time".into() } else { value })
    });
    entries.filter(|(key, _)| !key.contains("lock/")).collect()
}

/// Returns the expected contents of the target for these clusters.
pub(in crate::e2e) fn expected<'a>(clusters: impl IntoIterator<Item = &'a MeshCluster>) -> BTreeMap<String, String> {
    let text = |value: &Vec<u8>| String::from_utf8(value.clone()).unwrap_or_else(|_| format!("{value:?}"));
    let mut all = BTreeMap::from([("cilium/.heartbeat".to_owned(), "a time".to_owned())]);
    for cluster in clusters {
        let name = &cluster.name;
        all.extend(cluster.entries.iter().map(|(key, value)| (key.clone(), text(value))));
        all.insert(format!("cilium/cluster-config/{name}"), config_value(Form::Cache, cluster));
        all.extend(BASES.map(|base| (format!("cilium/synced/{name}/cilium/cache/{base}"), "a time".to_owned())));
    }
    all
}

/// Waits until the target has exactly the expected contents, with each key attached to a lease.
pub(in crate::e2e) async fn wait_for_contents(target: &Client, expected: &BTreeMap<String, String>, after: &str) {
    let deadline = Instant::now() + SETTLE_TIME_MAX;
    loop {
        let actual = contents(target).await;
        if actual == *expected {
            return assert_all_have_leases(target).await;
        }
        if Instant::now() > deadline {
            let lacking: Vec<_> = expected.iter().filter(|(key, value)| actual.get(*key) != Some(*value)).take(10).collect();
            let surplus: Vec<_> = actual.iter().filter(|(key, _)| !expected.contains_key(*key)).take(10).collect();
            panic!("after {after} the target lacks {lacking:#?} and has in excess {surplus:#?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn assert_all_have_leases(target: &Client) {
    let kvs = read_all(target).await;
    let without = kvs.iter().filter(|kv| kv.lease() == 0 && kv.key() != b"cilium/foreign");
    assert_eq!(without.map(|kv| kv.key_str().unwrap()).collect::<Vec<_>>(), Vec::<&str>::new(), "these keys have no lease");
}

/// Returns the revisions of all entries. A key that was written again has another revision.
pub(super) async fn revisions(target: &Client) -> BTreeMap<Vec<u8>, i64> {
    let kvs = read_all(target).await;
    kvs.iter().filter(|kv| kv.key().starts_with(b"cilium/cache/")).map(|kv| (kv.key().to_vec(), kv.mod_revision())).collect()
}

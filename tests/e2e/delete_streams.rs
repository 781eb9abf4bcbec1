//! Many deletes at a time, each in a revision of its own. They share reads of the evidence, which
//! must be newer than each of them (docs/develop/invariants.md, 4).

use std::collections::BTreeMap;

use etcd_client::{Txn, TxnOp};
use tokio::task::JoinSet;

use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, Shape, publish, put_entries, source_key};
use crate::harness::meshkeep::Home;
use crate::harness::scene::wait_until_served;
use crate::harness::stream::Follower;
use crate::harness::truth::Truth;

const SHAPE: Shape = Shape { nodes: 4, identities: 10, endpoints: 400, services: 5, exports: 0 };

/// Number of keys that are deleted before the cluster config, and as many after it.
const DELETES: usize = 100;

/// The config is deleted together with one key, in the middle of a stream of deletes. Evidence that
/// was read for an earlier delete must not vouch for that key.
#[tokio::test]
async fn a_key_that_is_deleted_with_the_config_is_held_in_a_stream_of_deletes() {
    let etcd = Etcd::start().await;
    let mut cluster = MeshCluster::generate(1, SHAPE);
    publish(&etcd, Form::State, std::slice::from_ref(&cluster), "2026-01-12T09:31:07Z").await;
    let mut home = Home::new();
    home.write_cluster("c01", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters([&cluster]).expected(), "the first loading").await;
    meshkeep.wait_for_phase("c01", "live").await;
    let follower = Follower::open(&meshkeep, "snapshot=true").await;
    eventually("the snapshot", || async { follower.state().events_named("synced", 0).next().map(drop) }).await;
    let seen = follower.state().events.len();

    let keys = cluster.keys_of("ip/v1");
    let (before, rest) = keys.split_at(DELETES);
    let (with_config, after) = (&rest[0], &rest[1..DELETES]);
    delete_all_at_once(&etcd, before).await;
    let together = ["cilium/cluster-config/c01".to_owned(), source_key(Form::State, "c01", with_config)];
    let operations: Vec<TxnOp> = together.into_iter().map(|key| TxnOp::delete(key, None)).collect();
    etcd.client().await.txn(Txn::new().and_then(operations)).await.unwrap();
    delete_all_at_once(&etcd, after).await;
    // this entry arrives after all deletes
    cluster.add_endpoints(1);
    let added: Vec<String> = cluster.keys_of("ip/v1").into_iter().filter(|key| !keys.contains(key)).collect();
    let mut newest = cluster.clone();
    newest.entries.retain(|key, _| added.contains(key));
    put_entries(&etcd, Form::State, &newest).await;
    eventually("the added entry", || async { follower.state().changes_since(seen).contains_key(&added[0]).then_some(()) }).await;

    let changes = follower.state().changes_since(seen);
    let held: BTreeMap<&String, usize> = rest[..DELETES].iter().filter_map(|key| Some((key, *changes.get(key)?))).collect();
    assert_eq!(held, BTreeMap::new(), "deleted although the config was deleted before");
    meshkeep.wait_for_phase("c01", "sourceLost").await;
}

/// Deletes keys in parallel, so that etcd sends many events within a millisecond.
async fn delete_all_at_once(etcd: &Etcd, keys: &[String]) {
    let client = etcd.client().await;
    let mut deletes = JoinSet::new();
    for key in keys {
        let (mut client, key) = (client.clone(), source_key(Form::State, "c01", key));
        deletes.spawn(async move { client.delete(key, None).await.map(drop) });
    }
    while let Some(deleted) = deletes.join_next().await {
        deleted.unwrap().unwrap();
    }
}

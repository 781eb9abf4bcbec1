//! `meshkeep reflect`: the target has the same contents as the sources, key by key, through
//! failures of sources, target and meshkeep.

mod chaos;
pub(super) mod contents;
mod events;
mod history;

use std::time::{Duration, Instant};

use etcd_client::{GetOptions, Permission, RoleRevokePermissionOptions};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, SMALL, source_key};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::Remote;
use contents::{contents, expected, revisions, wait_for_contents};

/// Checks, after a wipe, that each canary is newer than all of its entries, so that a reader that
/// finds it finds them too.
async fn assert_canaries_came_last(target: &Etcd) {
    let reply = target.client().await.get("cilium/", Some(GetOptions::new().with_prefix())).await.unwrap();
    let mut count = 0;
    for canary in reply.kvs() {
        let Some(path) = canary.key_str().unwrap().strip_prefix("cilium/synced/") else { continue };
        let (cluster, base) = path.split_once('/').unwrap();
        let entries = reply.kvs().iter().filter(|kv| kv.key().starts_with(format!("{base}/{cluster}/").as_bytes()));
        let youngest = entries.map(etcd_client::KeyValue::create_revision).max().unwrap_or_default();
        assert!(
            youngest < canary.create_revision(),
            "canary {path} has revision {}, but one of its entries has {youngest}",
            canary.create_revision()
        );
        count += 1;
    }
    assert!(count > 0);
}

fn home(target: &Etcd, remotes: &[&Remote]) -> Home {
    let home = Home::new().with_reflect_to(&target.client_file_yaml()).with_flags(&["--to-lock-ttl=2s", "--drain-grace=3s"]);
    for remote in remotes {
        for cluster in &remote.clusters {
            home.write_cluster(&cluster.name, &remote.client_file());
        }
    }
    home
}

#[tokio::test]
async fn the_target_equals_the_sources_and_is_refilled_after_a_loss() {
    for binary in etcd_binaries() {
        let mut target = Etcd::builder().binary(&binary).start().await;
        let mut direct = Remote::start(&binary, Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
        let cached = Remote::start(&binary, Form::Cache, vec![MeshCluster::generate(2, SMALL), MeshCluster::generate(3, SMALL)]).await;
        // keys left over from an earlier copy are deleted; keys of no reflected cluster stay
        target.put("cilium/cache/nodes/v1/c01/gone-long-ago", "{}").await;
        target.put("cilium/foreign", "1").await;
        let mut home = home(&target, &[&direct, &cached]);
        let meshkeep = home.start().await;
        let truth = |direct: &Remote| {
            let mut all = expected(direct.clusters.iter().chain(&cached.clusters));
            all.insert("cilium/foreign".into(), "1".into());
            all
        };
        wait_for_contents(&target.client().await, &truth(&direct), "the start").await;
        let mut random = StdRng::seed_from_u64(7);
        direct
            .change(|cluster| {
                cluster.change_one_percent(&mut random);
                cluster.delete_one_percent(&mut random);
                cluster.add_endpoints(3);
            })
            .await;
        wait_for_contents(&target.client().await, &truth(&direct), "changes").await;
        // rejected values are copied unchanged
        let bad = direct.clusters[0].keys_of("nodes/v1")[0].clone();
        direct.etcd.put(source_key(Form::State, "c01", &bad), "no node").await;
        direct.clusters[0].entries.insert(bad, b"no node".to_vec());
        wait_for_contents(&target.client().await, &truth(&direct), "a bad value").await;
        // the target loses its data, and a remote fails at the same time
        direct.etcd.kill();
        target.wipe();
        target.restart().await;
        let mut refilled = truth(&direct);
        refilled.remove("cilium/foreign");
        wait_for_contents(&target.client().await, &refilled, "the loss of the target").await;
        assert_canaries_came_last(&target).await;
        meshkeep.stop().await;
        assert_eq!(contents(&target.client().await).await, refilled, "a stop removes nothing");
    }
}

/// A restored backup has keys with the right values but without leases. Nothing would remove them
/// after the last writer has ended.
#[tokio::test]
async fn keys_of_the_target_without_a_lease_get_one() {
    let target = Etcd::start().await;
    let remote = Remote::start(&etcd_binaries()[0], Form::Cache, vec![MeshCluster::generate(1, SMALL)]).await;
    let truth = expected(&remote.clusters);
    let (key, value) = truth.iter().find(|(key, _)| key.contains("cache/nodes/")).unwrap();
    target.put(key.as_str(), value.as_str()).await;
    let mut home = home(&target, &[&remote]);
    let meshkeep = home.start().await;
    wait_for_contents(&target.client().await, &truth, "the start").await;
    eventually("a lease", || async {
        let found = target.client().await.get(key.as_str(), None).await.unwrap();
        (found.kvs()[0].lease() != 0).then_some(())
    })
    .await;
    meshkeep.stop().await;
}

/// A canary waits for its entries, because a reader that finds a canary treats missing entries as
/// deleted.
#[tokio::test]
async fn a_canary_waits_until_all_of_its_entries_are_written() {
    let mut target = Etcd::start().await;
    target.enable_auth("writer", "secret").await;
    // everything except ip entries can be written
    let mut client = target.client().await;
    client.role_revoke_permission("mesh", "cilium/", Some(RoleRevokePermissionOptions::new().with_prefix())).await.unwrap();
    for permission in [
        Permission::read("cilium/").with_prefix(),
        Permission::write("cilium/").with_range_end("cilium/cache/ip/"),
        Permission::write("cilium/cache/ip0").with_range_end("cilium0"),
    ] {
        client.role_grant_permission("mesh", permission).await.unwrap();
    }
    let remote = Remote::start(&etcd_binaries()[0], Form::Cache, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let mut home = home(&target, &[&remote]);
    let meshkeep = home.start().await;
    let mut refused = expected(&remote.clusters);
    refused.retain(|key, _| !key.contains("cache/ip/"));
    wait_for_contents(&client, &refused, "the start").await;
    client.role_grant_permission("mesh", Permission::write("cilium/cache/ip/").with_prefix()).await.unwrap();
    wait_for_contents(&client, &expected(&remote.clusters), "the right to write all").await;
    assert_canaries_came_last(&target).await;
    meshkeep.stop().await;
}

#[tokio::test]
async fn a_second_process_takes_over_without_rewriting_keys() {
    let target = Etcd::start().await;
    let mut remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
    let (mut first_home, mut second_home) = (home(&target, &[&remote]), home(&target, &[&remote]));
    let first = first_home.start().await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "the start").await;
    let second = second_home.start().await;
    second.wait_for_phase("c01", "live").await;
    let before = revisions(&target.client().await).await;
    first.kill();
    remote.change(|cluster| cluster.add_endpoints(1)).await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "the death of the leader").await;
    let mut after = revisions(&target.client().await).await;
    after.retain(|key, _| before.contains_key(key));
    assert_eq!(after, before, "existing keys are not written again: their leases are renewed");
    second.stop().await;
}

#[tokio::test]
async fn a_new_leader_without_a_source_leaves_the_target_alone() {
    let target = Etcd::start().await;
    let mut remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, SMALL)]).await;
    let mut stale_home = home(&target, &[&remote]);
    let stale = stale_home.start().await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "the start").await;
    stale.stop().await;
    // meanwhile another process writes changes that the first one has not seen
    let mut current_home = home(&target, &[&remote]);
    let current = current_home.start().await;
    let key = remote.clusters[0].keys_of("nodes/v1")[1].clone();
    remote
        .change(|cluster| {
            cluster.add_endpoints(2);
            cluster.delete(&key);
        })
        .await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "changes that one of them has not seen").await;
    current.kill();
    remote.etcd.kill();
    let stale = stale_home.start().await;
    let lock_prefix = "cilium/kvstoremesh-lock/";
    let locks = async || target.client().await.get(lock_prefix, Some(GetOptions::new().with_prefix())).await.unwrap().kvs().to_vec();
    let holder = locks().await.first().map(|kv| kv.lease());
    crate::harness::eventually("the stale one leads", async || {
        let holders = locks().await;
        (holders.len() == 1 && Some(holders[0].lease()) != holder).then_some(())
    })
    .await;
    let before = revisions(&target.client().await).await;
    // a wrong write would happen within a few ticks
    let since = Instant::now();
    crate::harness::eventually("two seconds", async || (since.elapsed() > Duration::from_secs(2)).then_some(())).await;
    assert_eq!(revisions(&target.client().await).await, before);
    // once the source is back, the leader continues
    remote.etcd.restart().await;
    remote.change(|cluster| cluster.add_endpoints(1)).await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "the return of the source").await;
    stale.stop().await;
}

/// Reflects the clusters `c01` and `c02` and removes the file of `c02`. Returns once the config of
/// `c02`, and nothing else, is deleted in the target.
async fn withdraw_one_of_two_clusters() -> (Etcd, Remote, Home, Meshkeep) {
    let target = Etcd::start().await;
    let clusters = vec![MeshCluster::generate(1, SMALL), MeshCluster::generate(2, SMALL)];
    let remote = Remote::start(&etcd_binaries()[0], Form::Cache, clusters).await;
    let mut home = home(&target, &[&remote]);
    let meshkeep = home.start().await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "the start").await;
    home.remove_cluster("c02");
    let mut without_config = expected(&remote.clusters);
    without_config.remove("cilium/cluster-config/c02");
    wait_for_contents(&target.client().await, &without_config, "the removal of the file").await;
    (target, remote, home, meshkeep)
}

#[tokio::test]
async fn a_removed_cluster_is_withdrawn_starting_with_its_config() {
    let (target, remote, home, meshkeep) = withdraw_one_of_two_clusters().await;
    wait_for_contents(&target.client().await, &expected(&remote.clusters[..1]), "the grace period").await;
    // the file is added again
    home.write_cluster("c02", &remote.client_file());
    wait_for_contents(&target.client().await, &expected(&remote.clusters), "its return").await;
    meshkeep.stop().await;
}

#[tokio::test]
async fn a_withdrawal_continues_in_the_next_leader_term() {
    let (target, remote, _home, meshkeep) = withdraw_one_of_two_clusters().await;
    let lock = target.client().await.get("cilium/kvstoremesh-lock/", Some(GetOptions::new().with_prefix())).await.unwrap();
    target.client().await.lease_revoke(lock.kvs()[0].lease()).await.unwrap();
    wait_for_contents(&target.client().await, &expected(&remote.clusters[..1]), "the grace period, in another term").await;
    meshkeep.stop().await;
}

#[test]
fn reflect_without_a_target_is_a_usage_error() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_meshkeep")).arg("reflect").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "error: --to is missing: it is the client file of the etcd to write into\n");
}

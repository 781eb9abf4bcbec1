//! Clients of copies of the data directory. A client may resume from its last revision at any copy:
//! either it reaches the true state, or its watch is compacted and it lists again.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use etcd_client::{Client, EventType, WatchOptions};
use meshkeep::internals::model::Sequence;
use meshkeep::internals::store::{Group, Store};
use rustix::process::{Pid, Signal, kill_process};

use super::watches::next_response;
use super::{FLAG, MirroredCluster, client, etcd_api_url, list, values};
use crate::harness::mesh::MeshCluster;
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{Remote, wait_until_served};
use crate::harness::truth::Truth;

const PREFIX: &str = "cilium/cache/";

/// An etcd client that lists, follows the changes, and lists again if its watch was compacted.
struct Reflector {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    revision: i64,
    lists: usize,
}

impl Reflector {
    async fn start(api: &mut Client) -> Self {
        let mut reflector = Self { entries: BTreeMap::new(), revision: 0, lists: 0 };
        reflector.list(api).await;
        reflector
    }

    async fn list(&mut self, api: &mut Client) {
        let listed = list(api, PREFIX).await;
        (self.entries, self.revision, self.lists) = (values(&listed), listed.header().unwrap().revision(), self.lists + 1);
    }

    /// Watches from its last revision until it has received all changes.
    async fn follow(&mut self, api: &mut Client) {
        let mut watch = api.watch(PREFIX, Some(WatchOptions::new().with_prefix().with_start_revision(self.revision + 1))).await.unwrap();
        assert!(next_response(&mut watch).await.created());
        let head = list(api, PREFIX).await.header().unwrap().revision();
        watch.request_progress().await.unwrap();
        loop {
            let response = next_response(&mut watch).await;
            if response.canceled() {
                assert!(response.compact_revision() > 0, "{response:?}");
                return self.list(api).await;
            }
            for event in response.events() {
                let kv = event.kv().unwrap();
                match event.event_type() {
                    EventType::Put => self.entries.insert(kv.key().to_vec(), kv.value().to_vec()),
                    EventType::Delete => self.entries.remove(kv.key()),
                };
            }
            self.revision = self.revision.max(response.header().unwrap().revision());
            if self.revision >= head {
                return;
            }
        }
    }

    async fn assert_equal_to_list(&self, api: &mut Client) {
        let listed = list(api, PREFIX).await;
        assert_eq!(self.entries, values(&listed), "{} lists", self.lists);
    }
}

/// Deletes some entries and changes others.
async fn churn(remote: &mut Remote) {
    let keys = remote.clusters[0].keys_of("ip/v1");
    let change = |cluster: &mut MeshCluster| {
        cluster.delete(&keys[0]);
        keys[1..].iter().take(20).for_each(|key| cluster.change(key));
        cluster.add_endpoints(1);
    };
    remote.change(change).await;
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if path.is_dir() {
            copy_tree(&path, &to.join(name));
        } else {
            std::fs::copy(&path, to.join(name)).unwrap();
        }
    }
}

/// Creates the directories of another sidecar that starts with a copy of the store.
fn home_with_copy(remote: &Remote, data: &Path) -> Home {
    let home = Home::new().with_flags(&[FLAG]);
    home.write_cluster("c01", &remote.client_file());
    copy_tree(data, &home.data_directory());
    home
}

async fn start_settled(home: &mut Home, remote: &Remote, after: &str) -> (Meshkeep, Client) {
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &Truth::from_clusters(&remote.clusters).expected(), after).await;
    let api = client(&etcd_api_url(home)).await;
    (meshkeep, api)
}

async fn cluster_id(api: &mut Client) -> u64 {
    list(api, PREFIX).await.header().unwrap().cluster_id()
}

#[tokio::test]
async fn a_restored_backup_resumes_only_revisions_that_it_knows() {
    let MirroredCluster { mut remote, mut home, meshkeep, mut api } = MirroredCluster::start().await;
    let mut early = Reflector::start(&mut api).await;
    let original_cluster_id = cluster_id(&mut api).await;
    meshkeep.stop().await;
    let backup = tempfile::tempdir().unwrap();
    copy_tree(&home.data_directory(), backup.path());
    for quiet in [false, true] {
        let (meshkeep, mut api) = start_settled(&mut home, &remote, "a start").await;
        early.follow(&mut api).await;
        assert_eq!(early.lists, 1, "a restart needs no new list");
        let mut reflector = Reflector { entries: early.entries.clone(), ..early };
        for _ in 0..5 {
            churn(&mut remote).await;
        }
        wait_until_served(&meshkeep, &Truth::from_clusters(&remote.clusters).expected(), "changes that the backup lacks").await;
        reflector.follow(&mut api).await;
        reflector.assert_equal_to_list(&mut api).await;
        meshkeep.kill();
        std::fs::remove_dir_all(home.data_directory()).unwrap();
        copy_tree(backup.path(), &home.data_directory());
        if !quiet {
            churn(&mut remote).await;
        }
        let (meshkeep, mut api) = start_settled(&mut home, &remote, "a restored backup").await;
        // make more changes than the restore lost: if a start continued to count from the last
        // stored revision, the lost revisions would be used a second time
        for _ in 0..8 {
            churn(&mut remote).await;
        }
        wait_until_served(&meshkeep, &Truth::from_clusters(&remote.clusters).expected(), "changes after the restore").await;
        assert_eq!(cluster_id(&mut api).await, original_cluster_id);
        reflector.follow(&mut api).await;
        reflector.assert_equal_to_list(&mut api).await;
        assert_eq!(reflector.lists, 2, "the client knew revisions that this store never announced");
        early = Reflector { lists: 1, ..reflector };
        meshkeep.stop().await;
        std::fs::remove_dir_all(backup.path()).unwrap();
        copy_tree(&home.data_directory(), backup.path());
    }
}

#[tokio::test]
async fn a_client_may_switch_between_running_copies() {
    let MirroredCluster { mut remote, mut home, meshkeep, .. } = MirroredCluster::start().await;
    meshkeep.stop().await;
    let mut other = home_with_copy(&remote, &home.data_directory());
    let (mut first, mut second) =
        (start_settled(&mut home, &remote, "the first").await, start_settled(&mut other, &remote, "its copy").await);
    let mut reflector = Reflector::start(&mut first.1).await;
    for _ in 0..4 {
        for (meshkeep, api) in [&mut second, &mut first] {
            churn(&mut remote).await;
            wait_until_served(meshkeep, &Truth::from_clusters(&remote.clusters).expected(), "changes with a copy").await;
            reflector.follow(api).await;
            reflector.assert_equal_to_list(api).await;
        }
    }
    assert!(reflector.lists > 4, "{} lists", reflector.lists);
}

/// A client continues after a volume snapshot of a running process, which captures one moment.
#[tokio::test]
async fn a_snapshot_of_a_running_store_knows_all_earlier_revisions() {
    let MirroredCluster { mut remote, home, meshkeep, mut api } = MirroredCluster::start().await;
    let mut before = Reflector::start(&mut api).await;
    let mut after = Reflector::start(&mut api).await;
    let pid = Pid::from_raw(meshkeep.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let mut copy = home_with_copy(&remote, &home.data_directory());
    kill_process(pid, Signal::CONT).unwrap();
    churn(&mut remote).await;
    wait_until_served(&meshkeep, &Truth::from_clusters(&remote.clusters).expected(), "changes after the snapshot").await;
    after.follow(&mut api).await;
    drop(meshkeep);
    let (_copied, mut api) = start_settled(&mut copy, &remote, "a snapshot").await;
    for (reflector, lists) in [(&mut before, 1), (&mut after, 2)] {
        reflector.follow(&mut api).await;
        reflector.assert_equal_to_list(&mut api).await;
        assert_eq!(reflector.lists, lists);
    }
}

/// Copies of a store that contains a time in the future get different cluster ids, because they
/// cannot know which revisions others announce.
#[tokio::test]
async fn copies_with_a_clock_set_back_get_different_cluster_ids() {
    let MirroredCluster { remote, mut home, meshkeep, mut api } = MirroredCluster::start().await;
    let original_cluster_id = cluster_id(&mut api).await;
    let mut reflector = Reflector::start(&mut api).await;
    meshkeep.stop().await;
    let future_us = (SystemTime::now() + Duration::from_secs(3_600)).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros();
    let (store, _) = Store::open(&home.data_directory(), Duration::ZERO).unwrap();
    let sequence_reserved = Some(Sequence(u64::try_from(future_us).unwrap()));
    store.apply(&Group { sequence_reserved, ..Group::default() }).unwrap();
    store.close().unwrap();
    let mut other = home_with_copy(&remote, &home.data_directory());
    let (mut first, mut second) =
        (start_settled(&mut home, &remote, "a clock set back").await, start_settled(&mut other, &remote, "a copy").await);
    let ids = [cluster_id(&mut first.1).await, cluster_id(&mut second.1).await];
    assert!(ids[0] != ids[1] && !ids.contains(&original_cluster_id), "{ids:?} and {original_cluster_id}");
    reflector.follow(&mut second.1).await;
    reflector.assert_equal_to_list(&mut second.1).await;
    assert_eq!(reflector.lists, 1, "both copies know the revisions from before the copy");
    // the second copy does not know revisions of the first
    reflector.list(&mut first.1).await;
    reflector.follow(&mut second.1).await;
    reflector.assert_equal_to_list(&mut second.1).await;
}

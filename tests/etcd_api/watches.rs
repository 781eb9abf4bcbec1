//! Watches: live events, events from a revision, and revisions whose history is no longer
//! available.

use std::collections::BTreeSet;

use etcd_client::{Client, EventType, WatchFilterType, WatchOptions, WatchResponse, WatchStream};

use super::{FLAG, MirroredCluster, client, etcd_api_url, list, values};
use crate::harness::PATIENCE;
use crate::harness::mesh::MeshCluster;
use crate::harness::scene::wait_until_served;
use crate::harness::truth::Truth;

pub(super) async fn next_response(watch: &mut WatchStream) -> WatchResponse {
    tokio::time::timeout(PATIENCE, watch.message()).await.expect("must get a response in time").unwrap().expect("must stay open")
}

async fn start_watch(api: &mut Client, key: &str, options: WatchOptions) -> WatchStream {
    let mut watch = api.watch(key, Some(options)).await.unwrap();
    assert!(next_response(&mut watch).await.created());
    watch
}

#[tokio::test]
async fn a_watch_reports_each_change_once_and_no_progress_ahead_of_it() {
    let MirroredCluster { mut remote, home: _home, meshkeep: _meshkeep, mut api } = MirroredCluster::start().await;
    let listed = list(&mut api, "cilium/cache/ip/").await;
    let mut copy = values(&listed);
    let first = listed.header().unwrap().revision();
    let options = || WatchOptions::new().with_prefix().with_start_revision(first + 1);
    let mut watch = start_watch(&mut api, "cilium/cache/ip/", options().with_prev_key()).await;
    // the second watch on the same stream receives only deletes
    watch.watch("cilium/cache/ip/", Some(options().with_filters([WatchFilterType::NoPut]))).await.unwrap();
    let second = next_response(&mut watch).await;
    assert!(second.created() && second.watch_id() == 1);
    let (mut deletes, mut reported, mut last) = (0, 0, first);
    for _ in 0..5 {
        let keys = remote.clusters[0].keys_of("ip/v1");
        remote
            .change(|cluster| {
                cluster.delete(&keys[0]);
                keys[1..4].iter().for_each(|key| cluster.change(key));
            })
            .await;
        let (wanted, wanted_deletes) = (reported + 4, deletes + 1);
        while reported < wanted || deletes < wanted_deletes {
            let response = next_response(&mut watch).await;
            let revision = response.header().unwrap().revision();
            for event in response.events() {
                let kv = event.kv().unwrap();
                assert!(kv.mod_revision() <= revision);
                if response.watch_id() == 1 {
                    assert!(event.event_type() == EventType::Delete && event.prev_kv().is_none());
                    deletes += 1;
                    continue;
                }
                assert!(kv.mod_revision() > last, "each revision once, in order");
                last = kv.mod_revision();
                reported += 1;
                let before = copy.remove(kv.key());
                assert_eq!(event.prev_kv().map(|kv| kv.value().to_vec()), before);
                if event.event_type() == EventType::Put {
                    copy.insert(kv.key().to_vec(), kv.value().to_vec());
                }
            }
        }
    }
    watch.request_progress().await.unwrap();
    let progress = next_response(&mut watch).await;
    assert!(progress.events().is_empty() && progress.watch_id() == -1);
    assert!(progress.header().unwrap().revision() >= last);
    assert_eq!(copy, values(&list(&mut api, "cilium/cache/ip/").await));
    watch.cancel(0).await.unwrap();
    let canceled = next_response(&mut watch).await;
    assert!(canceled.canceled() && canceled.watch_id() == 0 && canceled.cancel_reason().is_empty());
}

/// From a revision of an earlier start, a watch receives the newest state of each changed key, in
/// order, and the deletes.
#[tokio::test]
async fn a_watch_from_before_a_restart_ends_with_the_true_state() {
    let mut mirrored = MirroredCluster::start().await;
    let listed = list(&mut mirrored.api, "cilium/cache/").await;
    let mut copy = values(&listed);
    let first = listed.header().unwrap().revision();
    for _ in 0..3 {
        let keys = mirrored.remote.clusters[0].keys_of("ip/v1");
        let change = |cluster: &mut MeshCluster| {
            cluster.delete(&keys[0]);
            keys[1..9].iter().for_each(|key| cluster.change(key));
        };
        mirrored.remote.change(change).await;
    }
    mirrored.wait_until_served("some changes").await;
    let mut mirrored = mirrored.restart_after_kill(|_| {}).await;
    let api = &mut mirrored.api;
    let mut watch = start_watch(api, "cilium/cache/", WatchOptions::new().with_prefix().with_start_revision(first + 1)).await;
    let (mut last, mut seen) = (first, BTreeSet::new());
    let now = values(&list(api, "cilium/cache/").await);
    while copy != now {
        let response = next_response(&mut watch).await;
        assert!(!response.canceled(), "{response:?}");
        for event in response.events() {
            let kv = event.kv().unwrap();
            assert!(kv.mod_revision() > last && kv.mod_revision() <= response.header().unwrap().revision());
            assert!(seen.insert(kv.key().to_vec()), "only the newest state of each key");
            last = kv.mod_revision();
            match event.event_type() {
                EventType::Put => copy.insert(kv.key().to_vec(), kv.value().to_vec()),
                EventType::Delete => copy.remove(kv.key()),
            };
        }
    }
}

#[tokio::test]
async fn a_watch_from_below_the_kept_deletes_or_ahead_is_compacted() {
    // meshkeep keeps a tombstone of the newest delete only
    let MirroredCluster { mut remote, mut home, meshkeep, mut api } = MirroredCluster::with_flags(&[FLAG, "--tombstone-max-count=1"]).await;
    let first = list(&mut api, "cilium/cache/").await.header().unwrap().revision();
    let keys = remote.clusters[0].keys_of("ip/v1");
    let mut live = start_watch(&mut api, "cilium/cache/", WatchOptions::new().with_prefix().with_start_revision(first + 1)).await;
    remote.change(|cluster| keys[..3].iter().for_each(|key| cluster.delete(key))).await;
    let expected = Truth::from_clusters(&remote.clusters).expected();
    wait_until_served(&meshkeep, &expected, "some deletes").await;
    let (mut count, mut deleted) = (0, 0);
    while count < 3 {
        let reported = next_response(&mut live).await;
        count += reported.events().len();
        deleted = reported.events().last().map_or(deleted, |event| event.kv().unwrap().mod_revision());
    }
    meshkeep.stop().await;
    let meshkeep = home.start().await;
    wait_until_served(&meshkeep, &expected, "a start").await;
    let mut api = client(&etcd_api_url(&home)).await;
    let mut compacted = 0;
    // a watch from a delete without a tombstone, or from an earlier revision, is compacted or
    // reports the delete that has a tombstone; it never stays silent
    for revision in first + 1..=deleted {
        let mut watch = start_watch(&mut api, "cilium/cache/", WatchOptions::new().with_prefix().with_start_revision(revision)).await;
        let reported = next_response(&mut watch).await;
        if reported.canceled() {
            assert!(reported.compact_revision() > revision && reported.events().is_empty());
            compacted += 1;
            let from_there = WatchOptions::new().with_prefix().with_start_revision(reported.compact_revision());
            let mut watch = start_watch(&mut api, "cilium/cache/", from_there).await;
            watch.request_progress().await.unwrap();
            assert!(!next_response(&mut watch).await.canceled());
        } else {
            assert_eq!(reported.events().len(), 1);
            assert_eq!(reported.events()[0].event_type(), EventType::Delete);
        }
    }
    assert!(compacted >= 1, "the first deletes are forgotten");
    let metrics = meshkeep.text("/metrics").await;
    assert!(metrics.contains(&format!("meshkeep_etcd_watches_compacted_total {compacted}\n")), "{metrics}");
    let head = list(&mut api, "cilium/cache/").await.header().unwrap().revision();
    // 100 revisions ahead, because heartbeats may be written meanwhile
    let mut watch = start_watch(&mut api, "cilium/cache/", WatchOptions::new().with_prefix().with_start_revision(head + 100)).await;
    let reported = next_response(&mut watch).await;
    assert!(reported.canceled() && reported.compact_revision() > 0 && reported.events().is_empty(), "{reported:?}");
    let mut watch = start_watch(&mut api, "cilium/cache/", WatchOptions::new().with_prefix().with_start_revision(head + 1)).await;
    watch.request_progress().await.unwrap();
    assert!(!next_response(&mut watch).await.canceled());
}

/// If the events do not fit into one answer, neither the revision in an answer's header nor a
/// progress notification is ahead of an event that follows.
#[tokio::test]
async fn a_watch_that_is_reported_in_parts_has_no_revision_ahead() {
    const ADDED: u32 = 3_000;
    let mut mirrored = MirroredCluster::start().await;
    let first = list(&mut mirrored.api, "cilium/cache/ip/").await.header().unwrap().revision();
    mirrored.remote.change(|cluster| cluster.add_endpoints(ADDED)).await;
    mirrored.wait_until_served("many new entries").await;
    // the first round reads the changes from memory, the second one from the store
    for _ in 0..2 {
        let options = WatchOptions::new().with_prefix().with_start_revision(first + 1);
        let mut watch = mirrored.api.watch("cilium/cache/ip/", Some(options)).await.unwrap();
        watch.request_progress().await.unwrap();
        let (mut head, mut answers, mut keys, mut progress) = (0, 0, BTreeSet::new(), false);
        while keys.len() < ADDED as usize || !progress {
            let response = next_response(&mut watch).await;
            let revision = response.header().unwrap().revision();
            if response.created() {
                continue;
            }
            for event in response.events() {
                let kv = event.kv().unwrap();
                assert!(kv.mod_revision() > head && kv.mod_revision() <= revision, "{} at {head} in {revision}", kv.mod_revision());
                assert!(keys.insert(kv.key().to_vec()));
            }
            assert!(revision >= head);
            head = revision;
            answers += usize::from(!response.events().is_empty());
            progress |= response.watch_id() == -1;
        }
        assert!(answers > 2, "all events in {answers} answers");
        mirrored = mirrored.restart_after_kill(|_| {}).await;
    }
}

//! Tests of `FollowedRange`: a range with few keys whose changes are reported across compactions.

use std::time::Duration;

use cilium_kvstore::{Event, FollowedRange, prefix_end};
use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::open;
use crate::harness::PATIENCE;
use crate::harness::etcd::{Etcd, etcd_binaries};

const PREFIX: &[u8] = b"cilium/synced/paris/";

/// Returns the next changes, as `key=value`, or `key` for a delete.
async fn next_changes(follow: &mut FollowedRange) -> Vec<String> {
    loop {
        let events = tokio::time::timeout(PATIENCE, follow.next()).await.expect("a message in time").unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let changes = events.into_iter().map(|event| match event {
            Event::Put(put) => format!("{}={}", text(&put.key), text(&put.value)),
            Event::Delete { key, .. } => text(&key),
        });
        let changes: Vec<String> = changes.collect();
        if !changes.is_empty() {
            return changes;
        }
    }
}

/// Puts an unrelated key and compacts its revision, in an endless loop.
async fn compact_forever(etcd: etcd_client::Client) {
    let (mut puts, mut compactions) = (etcd.kv_client(), etcd.kv_client());
    loop {
        let revision = puts.put("elsewhere", "1", None).await.unwrap().header().unwrap().revision();
        compactions.compact(revision, None).await.unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

#[tokio::test]
async fn a_followed_range_misses_no_change_during_compactions() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        etcd.put("cilium/synced/paris/a", "1").await;
        etcd.put("cilium/synced/paris/b", "1").await;
        // this key never changes, so reading the range again must not report it
        etcd.put("cilium/synced/paris/z", "1").await;
        let mut compacting = JoinSet::new();
        compacting.spawn(compact_forever(etcd.client().await));
        let connection = open(&etcd).await;
        let mut follows = Vec::new();
        for _ in 0..16 {
            let (found, follow) = connection.follow(PREFIX, Some(&prefix_end(PREFIX))).await.unwrap();
            assert_eq!(found.len(), 3);
            follows.push(follow);
        }
        // etcd synchronizes new watches every 100 ms, and the compactions end some of them before
        // that: their range is then read again, and no change may be missing
        etcd.put("cilium/synced/paris/a", "2").await;
        etcd.delete("cilium/synced/paris/b").await;
        // concurrently, because a watch that is not read delays the others of its connection
        let next_two = async |follow: &mut FollowedRange| {
            let mut changes = next_changes(follow).await;
            while changes.len() < 2 {
                changes.extend(next_changes(follow).await);
            }
            changes.sort();
            changes
        };
        for changes in join_all(follows.iter_mut().map(next_two)).await {
            assert_eq!(changes, ["cilium/synced/paris/a=2", "cilium/synced/paris/b"]);
        }
        compacting.shutdown().await;
        etcd.put("cilium/synced/paris/c", "3").await;
        for changes in join_all(follows.iter_mut().map(next_changes)).await {
            assert_eq!(changes, ["cilium/synced/paris/c=3"]);
        }
    }
}

#[tokio::test]
async fn a_followed_range_with_too_many_keys_is_refused() {
    let etcd = Etcd::start().await;
    etcd.put_many((0..65).map(|number| (format!("cilium/synced/paris/{number}"), "1"))).await;
    let error = open(&etcd).await.follow(PREFIX, Some(&prefix_end(PREFIX))).await.err().unwrap().to_string();
    let expected = "etcd sent an invalid answer: more than 64 keys that begin with \"cilium/synced/paris/\", where Cilium writes a few";
    assert_eq!(error, expected);
}

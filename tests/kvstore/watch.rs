//! Tests of watches.

use std::time::Duration;

use cilium_kvstore::{ClientOptions, Disposition, Event, KeyValue, Watch, WatchMessage, prefix_end};
use cilium_kvstore::{LeaseId, Revision};
use etcd_client::{DeleteOptions, Txn, TxnOp};

use super::{open, open_with};
use crate::harness::PATIENCE;
use crate::harness::etcd::{Etcd, etcd_binaries};

const PREFIX: &[u8] = b"cilium/";

async fn next(watch: &mut Watch) -> WatchMessage {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("a message in time").unwrap()
}

fn put(key: &str, value: &str, revisions: [i64; 2], version: i64) -> Event {
    let [create_revision, mod_revision] = revisions.map(Revision);
    Event::Put(KeyValue { key: key.into(), value: value.as_bytes().into(), create_revision, mod_revision, version, lease: LeaseId(0) })
}

fn delete(key: &str, revision: i64) -> Event {
    Event::Delete { key: key.into(), mod_revision: Revision(revision) }
}

fn events(revision: i64, events: Vec<Event>) -> WatchMessage {
    WatchMessage::Events { revision: Revision(revision), events }
}

#[tokio::test]
async fn puts_and_deletes_after_a_revision_arrive_in_order() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        etcd.put("cilium/a", "1").await;
        etcd.put("cilium/b", "2").await;
        etcd.put("other", "3").await;
        let connection = open(&etcd).await;
        let mut range = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(2)).await.unwrap();
        let mut exact = connection.watch(b"cilium/a", None, Revision(3)).await.unwrap();
        assert_eq!(next(&mut range).await, WatchMessage::Created { revision: Revision(4) });
        assert_eq!(next(&mut exact).await, WatchMessage::Created { revision: Revision(4) });
        assert_eq!(next(&mut range).await, events(3, vec![put("cilium/b", "2", [3, 3], 1)]));
        etcd.put("cilium/ab", "4").await;
        assert_eq!(next(&mut range).await, events(5, vec![put("cilium/ab", "4", [5, 5], 1)]));
        etcd.put("cilium/a", "5").await;
        assert_eq!(next(&mut range).await, events(6, vec![put("cilium/a", "5", [2, 6], 2)]));
        assert_eq!(next(&mut exact).await, events(6, vec![put("cilium/a", "5", [2, 6], 2)]));
        etcd.client().await.delete("cilium/a", Some(DeleteOptions::new().with_prefix())).await.unwrap();
        assert_eq!(next(&mut range).await, events(7, vec![delete("cilium/a", 7), delete("cilium/ab", 7)]));
        assert_eq!(next(&mut exact).await, events(7, vec![delete("cilium/a", 7)]));
    }
}

#[tokio::test]
async fn a_watch_of_compacted_history_reports_the_oldest_revision() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        for value in ["1", "2", "3"] {
            etcd.put("cilium/a", value).await;
        }
        etcd.compact(3).await;
        let connection = open(&etcd).await;
        let error = match connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(1)).await {
            Err(error) => error,
            Ok(mut watch) => {
                assert_eq!(next(&mut watch).await, WatchMessage::Created { revision: Revision(4) });
                watch.next().await.unwrap_err()
            }
        };
        let expected = "watching \"cilium/\": the revision is compacted up to 3";
        assert_eq!((error.to_string().as_str(), error.disposition()), (expected, Disposition::Resync));
        let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(3)).await.unwrap();
        next(&mut watch).await;
        assert_eq!(next(&mut watch).await, events(4, vec![put("cilium/a", "3", [2, 4], 3)]));
    }
}

/// Between a list and its watch another client deletes a key and compacts. With etcd before 3.4.36
/// and 3.5.18 a watch from the next revision would never receive anything (etcd #18089, #19179).
#[tokio::test]
async fn a_delete_compacted_before_the_watch_is_an_error() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let listed = Revision(etcd.put("cilium/a", "1").await);
        let deleted = etcd.delete("cilium/a").await;
        etcd.compact(deleted).await;
        let connection = open(&etcd).await;
        for (key, end) in [(PREFIX, Some(prefix_end(PREFIX))), (b"cilium/a", None)] {
            let error = match connection.watch(key, end.as_deref(), listed).await {
                Err(error) => error,
                Ok(mut watch) => {
                    next(&mut watch).await;
                    tokio::time::timeout(PATIENCE, watch.next()).await.expect("an error in time").unwrap_err()
                }
            };
            assert_eq!(error.disposition(), Disposition::Resync, "{error}");
        }
        // an idle etcd that is compacted at its newest revision has no lost history: nothing is
        // sent, not even the delete, until there is a change
        let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(deleted)).await.unwrap();
        next(&mut watch).await;
        let put_at = etcd.put("cilium/b", "2").await;
        assert_eq!(next(&mut watch).await, events(put_at, vec![put("cilium/b", "2", [put_at; 2], 1)]));
    }
}

/// etcd before 3.4.38 and 3.5.22 sends old events to a watch from a future revision (etcd #20221),
/// and every etcd sends nothing else until that revision exists.
#[tokio::test]
async fn a_watch_after_a_future_revision_is_an_error() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        etcd.put("cilium/a", "1").await;
        let connection = open(&etcd).await;
        let error = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(9)).await.err().unwrap();
        assert_eq!(error.disposition(), Disposition::Retry);
        assert!(error.to_string().starts_with("watching \"cilium/\": etcd went back from revision 9 to 2: "), "{error}");
    }
}

/// To let a watch catch up, etcd sends many revisions in one response, which it splits into
/// fragments of the size of its own request limit.
#[tokio::test]
async fn a_response_larger_than_a_message_arrives_in_whole_revisions() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let value = "x".repeat(500 << 10);
        let mut expected = Vec::new();
        let mut client = etcd.client().await;
        for revision in 2..12 {
            // pairs in one revision, larger than half a fragment, so that fragments end within a
            // revision
            let pair = ["a", "b"].map(|half| format!("cilium/{revision}{half}"));
            let puts: Vec<TxnOp> = pair.iter().map(|key| TxnOp::put(key.as_str(), value.as_str(), None)).collect();
            client.txn(Txn::new().and_then(puts)).await.unwrap();
            expected.extend(pair.map(|key| put(&key, &value, [revision, revision], 1)));
        }
        let options = ClientOptions { message_bytes_max: 4 << 20, ..ClientOptions::default() };
        let connection = open_with(&etcd, &options).await;
        let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(1)).await.unwrap();
        assert_eq!(next(&mut watch).await, WatchMessage::Created { revision: Revision(11) });
        let (mut received, mut messages) = (Vec::new(), 0);
        while received.len() < expected.len() {
            let WatchMessage::Events { revision, events } = next(&mut watch).await else { panic!("expected events") };
            assert!(events.len() % 2 == 0, "revision {revision} arrived incomplete");
            assert_eq!(events.last().unwrap().mod_revision(), revision);
            received.extend(events);
            messages += 1;
        }
        assert!(received == expected);
        assert!(messages > 1, "with one message the test proves nothing");
    }
}

#[tokio::test]
async fn too_many_changes_in_one_revision_require_a_list() {
    let etcd = Etcd::start().await;
    etcd.put_many((0..128).map(|i| (format!("cilium/{i}"), "x".repeat(10_000)))).await;
    let connection = open_with(&etcd, &ClientOptions { message_bytes_max: 100_000, ..ClientOptions::default() }).await;
    let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(0)).await.unwrap();
    next(&mut watch).await;
    let error = watch.next().await.unwrap_err();
    let expected = "watching \"cilium/\": more than 100000 bytes of changes in one revision";
    assert_eq!((error.to_string().as_str(), error.disposition()), (expected, Disposition::Resync));
    // the stream was lost, the connection was not
    let listed = Revision(etcd.put("elsewhere", "1").await);
    let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), listed).await.unwrap();
    let revision = Revision(etcd.put("cilium/a", "1").await);
    next(&mut watch).await;
    assert_eq!(next(&mut watch).await, events(revision.0, vec![put("cilium/a", "1", [revision.0; 2], 1)]));
}

#[tokio::test]
async fn progress_is_reported_while_nothing_changes() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).watch_progress_interval("200ms").start().await;
        let revision = Revision(etcd.put("cilium/a", "1").await);
        let connection = open(&etcd).await;
        let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(1)).await.unwrap();
        next(&mut watch).await;
        next(&mut watch).await;
        etcd.put("elsewhere", "1").await;
        for _ in 0..2 {
            assert!(matches!(next(&mut watch).await, WatchMessage::Progress { revision: sent } if sent >= revision));
        }
    }
}

#[tokio::test]
async fn progress_is_requested_from_an_idle_server() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let revision = Revision(etcd.put("cilium/a", "1").await);
        let options = ClientOptions { progress_interval: Duration::from_millis(20), ..ClientOptions::default() };
        let connection = open_with(&etcd, &options).await;
        let mut watches = Vec::new();
        for _ in 0..2 {
            let mut watch = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), revision.previous()).await.unwrap();
            // a progress answer may arrive before the change
            while next(&mut watch).await != events(revision.0, vec![put("cilium/a", "1", [revision.0; 2], 1)]) {}
            watches.push(watch);
        }
        let newest = Revision(etcd.put("elsewhere", "1").await);
        for watch in &mut watches {
            // an answer from before the put may come first
            while !matches!(next(watch).await, WatchMessage::Progress { revision } if revision == newest) {}
        }
    }
}

//! Tests of the stream that all watches of a connection share.

use std::time::Duration;

use cilium_kvstore::Revision;
use cilium_kvstore::{ClientOptions, Connection, EtcdConfig, Event, Watch, WatchMessage, prefix_end};
use futures_util::future::join_all;
use meshkeep::internals::client_file::ClientFile;

use super::{client_file, open, open_with};
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::meshkeep::http;
use crate::harness::proxy::Proxy;
use crate::harness::{PATIENCE, eventually};

const PREFIX: &[u8] = b"cilium/";

/// Returns the next changes of a watch, as `key=value`, or `key` for a delete.
async fn next_changes(watch: &mut Watch) -> Vec<String> {
    loop {
        let message = tokio::time::timeout(PATIENCE, watch.next()).await.expect("a message in time").unwrap();
        let WatchMessage::Events { events, .. } = message else { continue };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let change = |event: Event| match event {
            Event::Put(put) => format!("{}={}", text(&put.key), text(&put.value)),
            Event::Delete { key, .. } => text(&key),
        };
        return events.into_iter().map(change).collect();
    }
}

/// Returns the number of watch streams and of watches of the server.
async fn streams_and_watches(etcd: &Etcd) -> [u64; 2] {
    let text = http().get(format!("{}/metrics", etcd.url())).send().await.unwrap().text().await.unwrap();
    ["etcd_debugging_mvcc_watch_stream_total ", "etcd_debugging_mvcc_watcher_total "].map(|name| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}in {text}"));
        value.parse().unwrap()
    })
}

async fn wait_for_server_counts(etcd: &Etcd, expected: [u64; 2]) {
    let what = format!("{expected:?} streams and watches at the server");
    eventually(&what, || async { (streams_and_watches(etcd).await == expected).then_some(()) }).await;
}

async fn watch_key(connection: &Connection, key: &str, after: i64) -> Watch {
    connection.watch(key.as_bytes(), None, Revision(after)).await.unwrap()
}

#[tokio::test]
async fn watches_share_a_stream_and_each_gets_its_own_events() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let connection = open(&etcd).await;
        let keys: Vec<String> = (0..40).map(|i| format!("cilium/{i}")).collect();
        let mut watches = join_all(keys.iter().map(|key| watch_key(&connection, key, 1))).await;
        wait_for_server_counts(&etcd, [1, 40]).await;
        etcd.put_many(keys.iter().map(|key| (key.as_str(), "1"))).await;
        for (key, watch) in keys.iter().zip(&mut watches) {
            assert_eq!(next_changes(watch).await, [format!("{key}=1")]);
        }
        watches.truncate(3);
        wait_for_server_counts(&etcd, [1, 3]).await;
        etcd.delete("cilium/2").await;
        assert_eq!(next_changes(&mut watches[2]).await, ["cilium/2"]);
        drop((watches, connection));
        wait_for_server_counts(&etcd, [0, 0]).await;
    }
}

#[tokio::test]
async fn dropped_watches_are_cancelled_at_the_server() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let connection = open(&etcd).await;
        let _open_watch = watch_key(&connection, "cilium/a", 1).await;
        // dropped before, during and after the creation of the watch
        for delay_step in 0..20 {
            let creation = connection.watch(b"cilium/b", None, Revision(1));
            let _ = tokio::time::timeout(delay_step * Duration::from_micros(200), creation).await;
        }
        let _later_watch = watch_key(&connection, "cilium/c", 1).await;
        wait_for_server_counts(&etcd, [1, 2]).await;
    }
}

#[tokio::test]
async fn an_unread_watch_costs_other_watches_no_events() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let connection = open(&etcd).await;
        let unread = connection.watch(PREFIX, Some(&prefix_end(PREFIX)), Revision(1)).await.unwrap();
        let mut second = watch_key(&connection, "cilium/a", 1).await;
        for value in 0..20 {
            etcd.put("cilium/a", value.to_string()).await;
        }
        drop(unread);
        let mut changes = Vec::new();
        while changes.len() < 20 {
            changes.extend(next_changes(&mut second).await);
        }
        assert_eq!(changes, (0..20).map(|value| format!("cilium/a={value}")).collect::<Vec<_>>());
        wait_for_server_counts(&etcd, [1, 1]).await;
    }
}

#[tokio::test]
async fn a_watch_that_etcd_ends_does_not_affect_other_watches() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        etcd.put_many([("cilium/a", "1")]).await;
        etcd.put("cilium/a", "2").await;
        etcd.compact(3).await;
        let connection = open(&etcd).await;
        let mut open_watch = watch_key(&connection, "cilium/a", 3).await;
        for _ in 0..3 {
            // some versions report the compaction when the watch is created
            if let Ok(mut compacted) = connection.watch(b"cilium/a", None, Revision(1)).await {
                compacted.next().await.unwrap();
                let error = compacted.next().await.unwrap_err().to_string();
                assert_eq!(error, "watching \"cilium/a\": the revision is compacted up to 3");
            }
        }
        wait_for_server_counts(&etcd, [1, 1]).await;
        etcd.put("cilium/a", "3").await;
        assert_eq!(next_changes(&mut open_watch).await, ["cilium/a=3"]);
    }
}

/// A refused watch does not affect concurrent ones. A refusal contains the requested id only in
/// some versions of etcd.
#[tokio::test]
async fn a_refused_watch_does_not_affect_concurrent_watches() {
    for binary in etcd_binaries() {
        let mut etcd = Etcd::builder().binary(binary).start().await;
        etcd.enable_auth("meshkeep", "secret").await;
        let connection = open(&etcd).await;
        let mut first = watch_key(&connection, "cilium/a", 1).await;
        let (refused, mut second, refused_too, mut third) = tokio::join!(
            connection.watch(b"elsewhere", None, Revision(1)),
            watch_key(&connection, "cilium/b", 1),
            connection.watch(b"elsewhere", None, Revision(1)),
            watch_key(&connection, "cilium/c", 1),
        );
        for error in [refused.err().unwrap().to_string(), refused_too.err().unwrap().to_string()] {
            assert!(error.starts_with("watching \"elsewhere\": ") && error.contains("permission denied"), "{error}");
        }
        for (key, watch) in [("cilium/a", &mut first), ("cilium/b", &mut second), ("cilium/c", &mut third)] {
            etcd.put(key, "1").await;
            assert_eq!(next_changes(watch).await, [format!("{key}=1")]);
        }
    }
}

#[tokio::test]
async fn time_blocked_by_an_unread_watch_is_not_listening_time() {
    let etcd = Etcd::start().await;
    let limit = Duration::from_secs(2);
    let connection = open_with(&etcd, &ClientOptions { request_timeout: limit, ..ClientOptions::default() }).await;
    let mut unread = watch_key(&connection, "cilium/a", 1).await;
    let mut second = watch_key(&connection, "cilium/b", 1).await;
    // etcd adds a new watch to the synchronized ones at its next check, every 100 ms
    for (key, watch) in [("cilium/a", &mut unread), ("cilium/b", &mut second)] {
        etcd.put(key, "0").await;
        assert_eq!(next_changes(watch).await, [format!("{key}=0")]);
    }
    eventually("some silence", || async { (unread.silence() > Duration::from_millis(20)).then_some(()) }).await;
    // the first change is delivered, the second is buffered, and the third blocks the reader
    for value in ["1", "2", "3"] {
        etcd.put("cilium/a", value).await;
    }
    let blocked_at = || async {
        let listened = second.listened();
        etcd.put("elsewhere", "1").await;
        (second.silence() == Duration::ZERO && second.listened() == listened).then_some(listened)
    };
    let listened = eventually("the reader is blocked by the unread watch", blocked_at).await;
    // a request with a timeout also waits for the unread watch
    let creation = connection.watch(b"cilium/c", None, Revision(1));
    let creation = tokio::time::timeout(2 * limit, creation).await;
    assert!(creation.is_err(), "a watch requested while the reader is blocked must wait");
    assert_eq!(second.listened(), listened);
    etcd.put("cilium/b", "4").await;
    for value in ["1", "2", "3"] {
        assert_eq!(next_changes(&mut unread).await, [format!("cilium/a={value}")]);
    }
    assert_eq!(next_changes(&mut second).await, ["cilium/b=4"]);
}

#[tokio::test]
async fn a_proxy_that_withholds_progress_is_detected() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let proxy = Proxy::withholding_progress(etcd.port()).await;
        let text = etcd.client_file_yaml().replace(&format!(":{}", etcd.port()), &format!(":{}", proxy.port()));
        let file = ClientFile::parse(text.as_bytes()).unwrap().config;
        let options = ClientOptions { progress_interval: Duration::from_millis(20), ..ClientOptions::default() };
        let open = async |file: &EtcdConfig| Connection::open(file, &file.endpoints()[0], &options).await.unwrap();
        let (proxied, second) = (open(&file).await, open(&client_file(&etcd)).await);
        let (mut watch, mut other) = (watch_key(&proxied, "cilium/a", 1).await, watch_key(&second, "cilium/a", 1).await);
        let wait_for_detection = async |expected: bool| {
            let what = format!("unanswered: {expected}");
            eventually(&what, || async { (proxied.progress_is_unanswered().await == expected).then_some(()) }).await;
        };
        wait_for_detection(true).await;
        etcd.put("cilium/a", "1").await;
        for watch in [&mut watch, &mut other] {
            assert_eq!(next_changes(watch).await, ["cilium/a=1"]);
        }
        assert!(proxied.progress_is_unanswered().await && !second.progress_is_unanswered().await);
        proxy.forward_progress();
        wait_for_detection(false).await;
    }
}

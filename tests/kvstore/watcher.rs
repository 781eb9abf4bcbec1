//! Tests of list and watch, across every event that ends a watch.

use cilium_kvstore::{EventKind, KeyValueEvent, Watcher};

use super::session;
use crate::harness::PATIENCE;
use crate::harness::etcd::{Etcd, etcd_binaries};

async fn next(watcher: &mut Watcher) -> KeyValueEvent {
    tokio::time::timeout(PATIENCE, watcher.next()).await.expect("an event in time").expect("the session is open")
}

/// Returns the next events as text: `+key=value` for a created key, `*key=value` for a modified
/// one, `-key` for a deleted one, `.` for the end of a list, `<` and `>` around a new list.
async fn next_events(watcher: &mut Watcher, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    for _ in 0..count {
        let event = next(watcher).await;
        let (key, value) = (String::from_utf8_lossy(&event.key), String::from_utf8_lossy(&event.value));
        texts.push(match event.kind {
            EventKind::Create => format!("+{key}={value}"),
            EventKind::Modify => format!("*{key}={value}"),
            EventKind::Delete => format!("-{key}"),
            EventKind::ListDone => ".".into(),
            EventKind::Relisting => "<".into(),
            EventKind::Relisted => ">".into(),
        });
    }
    texts
}

#[tokio::test]
async fn keys_are_listed_before_their_changes_are_reported() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        etcd.put("n/a", "1").await;
        etcd.put("n/a", "2").await;
        etcd.put("nx", "1").await;
        let session = session(&etcd).await;
        let mut watcher = session.list_and_watch(b"n/", 4);
        assert_eq!(next_events(&mut watcher, 2).await, ["+n/a=2", "."]);
        etcd.put("n/b", "1").await;
        etcd.put("n/b", "2").await;
        etcd.delete("n/b").await;
        etcd.put("n/b", "3").await;
        assert_eq!(next_events(&mut watcher, 4).await, ["+n/b=1", "*n/b=2", "-n/b", "+n/b=3"]);
        let mut empty = session.list_and_watch(b"nothing/", 1);
        assert_eq!(next_events(&mut empty, 1).await, ["."]);
        session.close().await;
        assert_eq!(watcher.next().await, None);
    }
}

#[tokio::test]
async fn a_slow_reader_receives_all_events() {
    let etcd = Etcd::start().await;
    etcd.put_many((0..1000).map(|i| (format!("n/{i:04}"), "x"))).await;
    let session = session(&etcd).await;
    let mut watcher = session.list_and_watch(b"n/", 1);
    for i in 0..1000 {
        assert_eq!(next(&mut watcher).await.key, format!("n/{i:04}").into_bytes());
    }
    assert_eq!(next(&mut watcher).await.kind, EventKind::ListDone);
    etcd.put_many((0..1000).map(|i| (format!("n/{i:04}"), "y"))).await;
    for i in 0..1000 {
        let event = next(&mut watcher).await;
        assert_eq!((event.kind, event.key), (EventKind::Modify, format!("n/{i:04}").into_bytes()));
    }
}

#[tokio::test]
async fn after_a_restart_or_a_wipe_missing_keys_are_deleted() {
    for wiped in [false, true] {
        let mut etcd = Etcd::start().await;
        etcd.put("n/a", "1").await;
        etcd.put("n/b", "1").await;
        let session = session(&etcd).await;
        let mut watcher = session.list_and_watch(b"n/", 16);
        assert_eq!(next_events(&mut watcher, 3).await, ["+n/a=1", "+n/b=1", "."]);
        if wiped {
            etcd.wipe();
            etcd.restart().await;
            etcd.put("n/b", "2").await;
        } else {
            etcd.kill();
            etcd.restart().await;
            etcd.delete("n/a").await;
            etcd.put("n/b", "2").await;
        }
        let mut listing = false;
        // the intermediate events depend on the time of the list, but the final state does not
        let mut state = std::collections::BTreeMap::from([("n/a".to_owned(), "1".to_owned()), ("n/b".to_owned(), "1".to_owned())]);
        while state != std::collections::BTreeMap::from([("n/b".to_owned(), "2".to_owned())]) {
            let event = next(&mut watcher).await;
            let (key, value) = (String::from_utf8(event.key).unwrap(), String::from_utf8_lossy(&event.value).into_owned());
            match event.kind {
                EventKind::Delete => drop(state.remove(&key)),
                EventKind::Create | EventKind::Modify => drop(state.insert(key, value)),
                EventKind::ListDone => panic!("reported twice"),
                EventKind::Relisting => listing = true,
                EventKind::Relisted => assert!(std::mem::take(&mut listing)),
            }
        }
    }
}

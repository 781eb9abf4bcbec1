//! Tests of expiring tokens. etcd's default tokens expire `--auth-token-ttl` after their last use.

use std::time::Duration;

use cilium_kvstore::Revision;
use cilium_kvstore::{ClientOptions, Connection, Endpoint, Event, WatchMessage, prefix_end};
use meshkeep::internals::client_file::ClientFile;

use super::{client_file, open};
use crate::harness::PATIENCE;
use crate::harness::etcd::{Etcd, etcd_binaries};

const TOKEN_TTL_S: u32 = 5;

/// Time after which a token has expired: longer than its time to live, because etcd checks for
/// expired tokens only once a second.
const LONG_AFTER: Duration = Duration::from_secs(8);

async fn value_of_next_put(watch: &mut cilium_kvstore::Watch) -> Vec<u8> {
    loop {
        match tokio::time::timeout(PATIENCE, watch.next()).await.expect("a message in time").unwrap() {
            WatchMessage::Events { events, .. } => match events.as_slice() {
                [Event::Put(key_value)] => return key_value.value.to_vec(),
                other => panic!("{other:?}"),
            },
            WatchMessage::Created { .. } | WatchMessage::Progress { .. } => {}
        }
    }
}

/// A token expires only by real time, so this test really waits.
#[tokio::test]
async fn watches_and_calls_work_after_the_token_expired() {
    for binary in etcd_binaries() {
        let mut etcd = Etcd::builder().binary(binary).auth_token_ttl_s(TOKEN_TTL_S).start().await;
        etcd.enable_auth("meshkeep", "secret").await;
        let first = etcd.put("cilium/a", "1").await;
        let end = prefix_end(b"cilium/");
        // two connections: on one of them a watch is the first to notice the expired token, on the
        // other several concurrent reads are
        let (watcher, reader) = (open(&etcd).await, open(&etcd).await);
        let mut watch = watcher.watch(b"cilium/", Some(&end), Revision(first - 1)).await.unwrap();
        assert_eq!(value_of_next_put(&mut watch).await, b"1");

        tokio::time::sleep(LONG_AFTER).await;
        let second = etcd.put("cilium/a", "2").await;
        let (left, right) = tokio::join!(
            watcher.watch(b"cilium/", Some(&end), Revision(second - 1)),
            watcher.watch(b"cilium/a", None, Revision(second - 1))
        );
        for each in [&mut left.unwrap(), &mut right.unwrap(), &mut watch] {
            assert_eq!(value_of_next_put(each).await, b"2");
        }
        let mut list = reader.list(b"cilium/");
        let (page, value, lowest_key) = tokio::join!(list.next_page(), reader.get(b"cilium/a", None), reader.first_key(b"cilium/", &end));
        assert_eq!(page.unwrap().unwrap().total_count, 1);
        assert_eq!(value.unwrap().0.unwrap().value.as_ref(), b"2");
        assert_eq!(lowest_key.unwrap(), Some(b"cilium/a".to_vec()));
        // reading a forbidden key still fails: after one more login, with the same error
        let error = watcher.watch(b"elsewhere", None, Revision(0)).await.err().unwrap().to_string();
        assert!(error.contains("permission denied"), "{error}");
    }
}

#[tokio::test]
async fn a_configured_user_is_ignored_if_authentication_is_off() {
    let etcd = Etcd::start().await;
    let file = format!("{}username: u\npassword: p\n", etcd.client_file_yaml());
    let file = ClientFile::parse(file.as_bytes()).unwrap().config;
    let connection = Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.unwrap();
    assert_eq!(connection.get(b"cilium/a", None).await.unwrap(), (None, Revision(1)));
    assert_ne!(file, client_file(&etcd));
}

//! Expiring tokens. etcd's default tokens live for `--auth-token-ttl` after their last use.

use std::time::Duration;

use cilium_kvstore::Revision;
use cilium_kvstore::{ClientOptions, Connection, Endpoint, Event, WatchMessage, prefix_end};
use meshkeep::internals::client_file::ClientFile;

use super::{client_file, open};
use crate::harness::PATIENCE;
use crate::harness::etcd::{Etcd, etcd_binaries};

const TOKEN_TTL_S: u32 = 5;

/// Longer than a token lives. etcd looks for expired tokens once a second.
const LONG_AFTER: Duration = Duration::from_secs(8);

async fn value_of_next_put(watch: &mut cilium_kvstore::Watch) -> Vec<u8> {
    loop {
        match tokio::time::timeout(PATIENCE, watch.next()).await.expect("a message in time").unwrap() {
            WatchMessage::Events { events, .. } => match events.as_slice() {
                [Event::Put(key_value)] => return key_value.value.to_vec(),
                other => panic!("{other:?}"),
            },
            WatchMessage::Created { .. } | WatchMessage::Progress => {}
        }
    }
}

/// Only the passing of time expires a token, so this test really waits.
#[tokio::test]
async fn old_watches_go_on_and_everything_new_works_after_the_token_ran_out() {
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
        for fresh in [&mut left.unwrap(), &mut right.unwrap(), &mut watch] {
            assert_eq!(value_of_next_put(fresh).await, b"2");
        }
        let mut list = reader.list(b"cilium/");
        let (page, one, more) = tokio::join!(list.next_page(), reader.get(b"cilium/a", None), reader.first_key(b"cilium/", &end));
        assert_eq!(page.unwrap().unwrap().total_count, 1);
        assert_eq!(one.unwrap().0.unwrap().value.as_ref(), b"2");
        assert_eq!(more.unwrap(), Some(b"cilium/a".to_vec()));
        // keys that the user may not read stay denied: one more login, then the error
        let error = watcher.watch(b"elsewhere", None, Revision(0)).await.err().unwrap().to_string();
        assert!(error.contains("permission denied"), "{error}");
    }
}

#[tokio::test]
async fn a_user_in_the_file_does_no_harm_where_authentication_is_off() {
    let etcd = Etcd::start().await;
    let file = format!("{}username: u\npassword: p\n", etcd.client_file_yaml());
    let file = ClientFile::parse(file.as_bytes()).unwrap().config;
    let connection = Connection::open(&file, &Endpoint::new(etcd.url()), &ClientOptions::default()).await.unwrap();
    assert_eq!(connection.get(b"cilium/a", None).await.unwrap(), (None, Revision(1)));
    assert_ne!(file, client_file(&etcd));
}

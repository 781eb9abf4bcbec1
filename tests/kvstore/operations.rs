//! Tests of each operation of a session: its changes and its results, compared with etcd's own
//! revisions, versions and leases.

use cilium_kvstore::{KeyLifetime, KeyValue, KvLocker, KvstoreError, Session, SessionOptions};
use meshkeep::internals::client_file::ClientFile;

use super::{session, session_with};
use crate::harness::etcd::{Etcd, etcd_binaries};

/// Returns value, version and lease of a key in etcd.
async fn etcd_state(etcd: &Etcd, key: &str) -> Option<(String, i64, i64)> {
    let reply = etcd.client().await.get(key, None).await.unwrap();
    reply.kvs().first().map(|found| (found.value_str().unwrap().to_owned(), found.version(), found.lease()))
}

/// Starts a session that writes no key of its own. A session with the quorum check (`check_quorum`)
/// puts and deletes the init lock at its start and from time to time. This adds revisions to those
/// of the test and, for a moment, a key below `cilium/`.
async fn quiet_session(etcd: &Etcd) -> Session {
    session_with(etcd, SessionOptions { quorum_check: false, ..super::session_options() }).await
}

fn names(found: &[KeyValue]) -> Vec<String> {
    found.iter().map(|found| String::from_utf8_lossy(&found.key).into_owned()).collect()
}

#[tokio::test]
async fn each_operation_makes_the_documented_change() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let session = quiet_session(&etcd).await;
        assert_eq!(session.get(b"cilium/a").await.unwrap(), None);
        let first = session.update(b"cilium/a", b"1", KeyLifetime::Permanent).await.unwrap();
        let second = session.update(b"cilium/a", b"1", KeyLifetime::Permanent).await.unwrap();
        assert_eq!(second.0, first.0 + 1, "an update always writes");
        assert_eq!(etcd_state(&etcd, "cilium/a").await, Some(("1".into(), 2, 0)));

        assert!(!session.update_if_different(b"cilium/a", b"1", KeyLifetime::Permanent).await.unwrap());
        assert!(session.update_if_different(b"cilium/a", b"2", KeyLifetime::Permanent).await.unwrap());
        assert_eq!(etcd_state(&etcd, "cilium/a").await, Some(("2".into(), 3, 0)));
        assert!(session.update_if_different(b"cilium/a", b"2", KeyLifetime::Leased).await.unwrap(), "the key has no lease yet");
        let lease = session.lease_of(b"cilium/a").unwrap();
        assert_eq!(etcd_state(&etcd, "cilium/a").await, Some(("2".into(), 4, lease.0)));
        assert!(!session.update_if_different(b"cilium/a", b"2", KeyLifetime::Leased).await.unwrap());
        assert!(
            session.update_if_different(b"cilium/absent", b"", KeyLifetime::Permanent).await.unwrap(),
            "an absent key differs from an empty one"
        );

        assert!(session.create_only(b"cilium/b", b"1", KeyLifetime::Leased).await.unwrap());
        assert!(!session.create_only(b"cilium/b", b"2", KeyLifetime::Leased).await.unwrap());
        assert_eq!(etcd_state(&etcd, "cilium/b").await, Some(("1".into(), 1, lease.0)), "both keys have the same lease");

        let found = session.list_prefix(b"cilium/").await.unwrap();
        assert_eq!(names(&found), ["cilium/a", "cilium/absent", "cilium/b"]);
        assert_eq!(found[0], session.get(b"cilium/a").await.unwrap().unwrap());
        assert_eq!(session.get_prefix(b"cilium/ab").await.unwrap().unwrap().key, b"cilium/absent");

        assert!(session.delete(b"cilium/b").await.unwrap());
        assert!(!session.delete(b"cilium/b").await.unwrap(), "deleting a missing key is not an error");
        assert_eq!(session.lease_of(b"cilium/b"), None);
        assert_eq!(session.delete_prefix(b"cilium/a").await.unwrap(), 2);
        assert_eq!(session.lease_of(b"cilium/a"), None, "the key is no longer counted on its lease");
        assert_eq!(session.delete_prefix(b"cilium/a").await.unwrap(), 0);
    }
}

/// Asserts that an operation under a lost lock changes nothing.
async fn assert_nothing_happens(etcd: &Etcd, session: &Session, lock: &KvLocker) {
    let before = etcd.client().await.get("cilium/", None).await.unwrap().header().unwrap().revision();
    let lost = |error: KvstoreError| assert!(matches!(error, KvstoreError::LockLost { .. }), "{error}");
    lost(session.get_if_locked(b"cilium/a", lock).await.unwrap_err());
    lost(session.get_prefix_if_locked(b"cilium/", lock).await.unwrap_err());
    lost(session.list_prefix_if_locked(b"cilium/", lock).await.unwrap_err());
    lost(session.update_if_locked(b"cilium/a", b"9", KeyLifetime::Permanent, lock).await.unwrap_err());
    lost(session.update_if_different_if_locked(b"cilium/a", b"9", KeyLifetime::Leased, lock).await.unwrap_err());
    lost(session.create_only_if_locked(b"cilium/new", b"9", KeyLifetime::Leased, lock).await.unwrap_err());
    lost(session.delete_if_locked(b"cilium/a", lock).await.unwrap_err());
    // for an existing key the answer does not depend on the lock
    assert!(!session.create_only_if_locked(b"cilium/a", b"9", KeyLifetime::Permanent, lock).await.unwrap());
    let after = etcd.client().await.get("cilium/", None).await.unwrap().header().unwrap().revision();
    assert_eq!(before, after);
}

#[tokio::test]
async fn operations_under_a_lost_lock_change_nothing() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).start().await;
        let session = quiet_session(&etcd).await;
        let lock = session.lock_path(b"locks/a").await.unwrap();
        assert_eq!(session.get_if_locked(b"cilium/a", &lock).await.unwrap(), None);
        assert!(session.create_only_if_locked(b"cilium/a", b"1", KeyLifetime::Permanent, &lock).await.unwrap());
        assert!(!session.create_only_if_locked(b"cilium/a", b"2", KeyLifetime::Permanent, &lock).await.unwrap());
        session.update_if_locked(b"cilium/a", b"2", KeyLifetime::Permanent, &lock).await.unwrap();
        assert!(!session.update_if_different_if_locked(b"cilium/a", b"2", KeyLifetime::Permanent, &lock).await.unwrap());
        assert!(session.update_if_different_if_locked(b"cilium/a", b"2", KeyLifetime::Leased, &lock).await.unwrap());
        let lease = session.lease_of(b"cilium/a").unwrap();
        assert_eq!(etcd_state(&etcd, "cilium/a").await, Some(("2".into(), 3, lease.0)));
        session.update_if_locked(b"cilium/b", b"1", KeyLifetime::Leased, &lock).await.unwrap();
        assert_eq!(*session.get_if_locked(b"cilium/a", &lock).await.unwrap().unwrap().value, *b"2");
        assert_eq!(session.get_prefix_if_locked(b"cilium/b", &lock).await.unwrap().unwrap().key, b"cilium/b");
        assert_eq!(names(&session.list_prefix_if_locked(b"cilium/", &lock).await.unwrap()), ["cilium/a", "cilium/b"]);
        assert!(session.delete_if_locked(b"cilium/b", &lock).await.unwrap());
        assert!(session.delete_if_locked(b"cilium/a", &lock).await.unwrap());
        assert_eq!(session.lease_of(b"cilium/a"), None);

        etcd.put("cilium/a", "1").await;
        etcd.delete(lock.comparator().key.clone()).await;
        assert_nothing_happens(&etcd, &session, &lock).await;
        // a key of another client with the same name is not our lock
        etcd.put(lock.comparator().key.clone(), "").await;
        assert_nothing_happens(&etcd, &session, &lock).await;
    }
}

#[tokio::test]
async fn an_operation_without_permission_is_refused() {
    let mut etcd = Etcd::start().await;
    etcd.put("cilium/state/a", "1").await;
    etcd.enable_auth("meshkeep", "secret").await;
    etcd.restrict_to_remote("paris").await;
    let session = session(&etcd).await;
    assert_eq!(*session.get(b"cilium/state/a").await.unwrap().unwrap().value, *b"1");
    let error = session.update(b"cilium/state/a", b"2", KeyLifetime::Leased).await.unwrap_err();
    assert_eq!(error.to_string(), "writing \"cilium/state/a\": permission denied by etcd");
    assert!(error.hint().unwrap().contains("grant-permission"));
    assert!(session.update(b"cilium/state/a", b"2", KeyLifetime::Permanent).await.is_err());
    assert!(session.delete(b"cilium/state/a").await.is_err());
    assert_eq!(etcd_state(&etcd, "cilium/state/a").await, Some(("1".into(), 1, 0)));
    assert!(session.is_connected(), "a missing permission does not end the connection");
}

#[tokio::test]
async fn errors_of_a_full_etcd_have_a_hint_and_reads_continue() {
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(binary).flag("--quota-backend-bytes=1048576").start().await;
        let session = session(&etcd).await;
        session.update(b"cilium/a", b"1", KeyLifetime::Permanent).await.unwrap();
        let large = vec![b'x'; 256 << 10];
        let error = loop {
            if let Err(error) = session.update(b"cilium/large", &large, KeyLifetime::Permanent).await {
                break error;
            }
        };
        assert!(error.to_string().contains("database space exceeded"), "{error}");
        assert!(error.hint().unwrap().contains("--quota-backend-bytes"));
        assert_eq!(*session.get(b"cilium/a").await.unwrap().unwrap().value, *b"1");
    }
}

#[tokio::test]
async fn users_are_created_with_their_roles_and_deleted() {
    for binary in etcd_binaries() {
        let mut etcd = Etcd::builder().binary(binary).start().await;
        etcd.enable_auth("meshkeep", "secret").await;
        let mut client = etcd.client().await;
        for role in ["remote", "local", "old"] {
            client.role_add(role).await.unwrap();
        }
        let yaml = format!("endpoints:\n- {}\nusername: root\npassword: root-password\n", etcd.url());
        let file = ClientFile::parse(yaml.as_bytes()).unwrap().config;
        let session = Session::start(file, super::session_options(), tokio_util::sync::CancellationToken::new());
        let roles = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        session.user_enforce_presence("remote-paris", &roles(&["old", "remote"])).await.unwrap();
        session.user_enforce_presence("remote-paris", &roles(&["local", "remote"])).await.unwrap();
        let mut assigned = client.user_get("remote-paris").await.unwrap().roles().to_vec();
        assigned.sort();
        assert_eq!(assigned, ["local", "remote"]);
        let error = session.user_enforce_presence("remote-oslo", &roles(&["absent"])).await.unwrap_err();
        assert!(error.to_string().contains("\"absent\""), "{error}");
        client.user_get("remote-oslo").await.unwrap();
        for name in ["remote-paris", "remote-oslo", "remote-oslo"] {
            session.user_enforce_absence(name).await.unwrap();
        }
        assert!(client.user_get("remote-oslo").await.is_err());
    }
}

#[tokio::test]
async fn serializable_reads_work_and_a_list_is_one_call() {
    let etcd = Etcd::start().await;
    let options = cilium_kvstore::SessionOptions { serializable_reads: true, ..super::session_options() };
    let session = session_with(&etcd, options).await;
    etcd.put_many((0..600).map(|i| (format!("cilium/{i:03}"), "x"))).await;
    assert_eq!(session.list_prefix(b"cilium/").await.unwrap().len(), 600);
    assert_eq!(*session.get(b"cilium/007").await.unwrap().unwrap().value, *b"x");
}

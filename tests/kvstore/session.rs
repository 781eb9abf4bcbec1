//! Tests of sessions: restarts and wipes of etcd, and lost leases.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cilium_kvstore::LeaseId;
use cilium_kvstore::{EtcdConfig, KeyLifetime, KvstoreError, Session, SessionOptions};
use meshkeep::internals::client_file::ClientFile;
use tokio_util::sync::CancellationToken;

use super::{client_file, session, session_options, session_with};
use crate::harness::etcd::{Etcd, etcd_binaries};
use crate::harness::{PATIENCE, eventually};

/// Returns the number of keys on each lease, according to etcd.
async fn keys_by_lease(etcd: &Etcd, prefix: &str) -> Vec<usize> {
    let options = etcd_client::GetOptions::new().with_prefix();
    let reply = etcd.client().await.get(prefix, Some(options)).await.unwrap();
    let leases: BTreeSet<i64> = reply.kvs().iter().map(etcd_client::KeyValue::lease).collect();
    leases.into_iter().map(|lease| reply.kvs().iter().filter(|found| found.lease() == lease).count()).collect()
}

/// Records which of these keys lose their lease.
fn watch_losses(session: &Session, keys: &'static [&'static str]) -> Arc<Mutex<BTreeSet<&'static str>>> {
    let lost = Arc::new(Mutex::new(BTreeSet::new()));
    let recorder = Arc::clone(&lost);
    session.on_lease_lost(b"cilium/", move |lost_keys| {
        recorder.lock().unwrap().extend(keys.iter().filter(|key| lost_keys.contains(key.as_bytes())));
    });
    lost
}

#[tokio::test]
async fn keys_share_leases_up_to_a_limit_and_closing_can_revoke_them() {
    for revoke_on_close in [false, true] {
        let etcd = Etcd::start().await;
        let session = session_with(&etcd, SessionOptions { keys_per_lease_max: 3, revoke_on_close, ..session_options() }).await;
        let writes = (0..7).map(|i| {
            let session = session.clone();
            async move { session.update(format!("cilium/{i}").as_bytes(), b"x", KeyLifetime::Leased).await }
        });
        futures_util::future::try_join_all(writes).await.unwrap();
        let mut counts = keys_by_lease(&etcd, "cilium/").await;
        counts.sort_unstable();
        assert_eq!(counts, [1, 3, 3]);
        assert_eq!(session.status().leases, 3);
        let ttl = etcd.client().await.lease_time_to_live(session.lease_of(b"cilium/0").unwrap().0, None).await.unwrap();
        assert_eq!(ttl.granted_ttl(), 900);
        session.close().await;
        assert_eq!(keys_by_lease(&etcd, "cilium/").await.is_empty(), revoke_on_close);
        let error = session.update(b"cilium/0", b"x", KeyLifetime::Leased).await.unwrap_err();
        assert!(matches!(error, KvstoreError::Closed { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_session_and_its_leases_survive_restarts() {
    for binary in etcd_binaries() {
        let mut etcd = Etcd::builder().binary(binary).start().await;
        let options = SessionOptions { lease_ttl: Duration::from_secs(6), ..session_options() };
        let session = session_with(&etcd, options).await;
        session.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
        let lost = watch_losses(&session, &["cilium/a"]);
        let lease = session.lease_of(b"cilium/a");
        etcd.kill();
        tokio::time::timeout(PATIENCE, session.disconnected()).await.unwrap();
        assert!(!session.is_connected());
        etcd.restart().await;
        // an operation waits for the connection
        session.update(b"cilium/b", b"1", KeyLifetime::Leased).await.unwrap();
        let granted = tokio::time::Instant::now();
        // longer than the time to live of a lease
        eventually("the lease is renewed", async || (granted.elapsed() > Duration::from_secs(7)).then_some(())).await;
        assert_eq!((session.lease_of(b"cilium/a"), session.get(b"cilium/a").await.unwrap().unwrap().lease), (lease, lease.unwrap()));
        assert!(lost.lock().unwrap().is_empty());
    }
}

/// The session must not treat its keys as existing for longer than etcd keeps them.
#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_after_its_ttl() {
    let etcd = Etcd::start().await;
    let options = SessionOptions { lease_ttl: Duration::from_secs(6), ..session_options() };
    let session = session_with(&etcd, options).await;
    let lost = watch_losses(&session, &["cilium/a"]);
    session.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
    drop(etcd);
    eventually("the lease is lost", async || (!lost.lock().unwrap().is_empty()).then_some(())).await;
    assert_eq!(session.lease_of(b"cilium/a"), None);
}

#[tokio::test]
async fn observers_see_lost_leases_and_writes_get_new_leases() {
    let etcd = Etcd::start().await;
    let session = session(&etcd).await;
    session.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
    session.update(b"cilium/b", b"1", KeyLifetime::Leased).await.unwrap();
    let lost = watch_losses(&session, &["cilium/a", "cilium/b"]);
    // a deleted key is not reported as lost, but a key that was written again is
    session.delete(b"cilium/b").await.unwrap();
    session.delete(b"cilium/a").await.unwrap();
    session.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
    let first = session.lease_of(b"cilium/a").unwrap();
    etcd.client().await.lease_revoke(first.0).await.unwrap();
    let error = session.update(b"cilium/a", b"2", KeyLifetime::Leased).await.unwrap_err();
    assert!(error.to_string().contains("requested lease not found"), "{error}");
    assert!(error.hint().is_some());
    assert_eq!(*lost.lock().unwrap(), BTreeSet::from(["cilium/a"]));
    session.update(b"cilium/a", b"2", KeyLifetime::Leased).await.unwrap();
    assert_ne!(session.lease_of(b"cilium/a"), Some(first));
}

#[tokio::test]
async fn all_leases_of_a_wiped_etcd_are_lost() {
    for token in ["meshkeep-test", "another"] {
        let mut etcd = Etcd::start().await;
        let session = session(&etcd).await;
        let lost = watch_losses(&session, &["cilium/a"]);
        session.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
        etcd.wipe();
        etcd.set_cluster_token(token);
        etcd.restart().await;
        eventually("the lease is lost", async || (!lost.lock().unwrap().is_empty()).then_some(())).await;
        assert!(session.update_if_different(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap());
    }
}

#[tokio::test]
async fn a_session_reports_its_status_and_tries_endpoints_in_turn() {
    let etcd = Etcd::start().await;
    let unused_port = crate::harness::etcd::unused_port();
    let yaml = format!("endpoints:\n- http://127.0.0.1:{unused_port}\n- {}\n", etcd.url());
    let file = ClientFile::parse(yaml.as_bytes()).unwrap().config;
    let cancel = CancellationToken::new();
    let session = Session::start(file, session_options(), cancel.clone());
    session.connected().await.unwrap();
    let status =
        eventually("both endpoints were checked", async || Some(session.status()).filter(|status| status.endpoints.len() == 2)).await;
    assert_eq!(status.endpoints.iter().map(|endpoint| endpoint.version.is_ok()).collect::<Vec<_>>(), [false, true]);
    assert!(status.endpoints[1].is_leader && status.quorum_error.is_none() && status.connected, "{status:?}");
    let text = status.to_string();
    assert!(text.starts_with("etcd: 1/2 connected, leases=0, lock leases=1, has quorum: http://127.0.0.1:"), "{text}");
    assert_eq!(status.heartbeat_at, None);
    etcd.put("cilium/.heartbeat", "2026-01-12T09:31:07Z").await;
    eventually("the heartbeat is recorded", async || session.status().heartbeat_at).await;
    // the quorum check leaves no keys behind
    let left = etcd.client().await.get("cilium/.initlock", Some(etcd_client::GetOptions::new().with_prefix())).await.unwrap();
    assert_eq!(left.count(), 0);
    cancel.cancel();
    assert!(session.connected().await.is_err());
}

#[tokio::test]
async fn calls_to_a_frozen_etcd_time_out_and_are_not_repeated() {
    let etcd = Etcd::start().await;
    let mut options = session_options();
    options.client.request_timeout = Duration::from_millis(300);
    let session = session_with(&etcd, options).await;
    session.update(b"cilium/a", b"1", KeyLifetime::Permanent).await.unwrap();
    etcd.pause();
    let error = session.update(b"cilium/a", b"2", KeyLifetime::Permanent).await.unwrap_err();
    assert!(matches!(error, KvstoreError::Timeout { .. }) && error.hint().unwrap().contains("timeout exceeded"), "{error}");
    etcd.resume();
    let found = eventually("etcd answers again", async || session.get(b"cilium/a").await.ok().flatten()).await;
    assert!(found.version <= 2, "{found:?}");
}

#[tokio::test]
async fn an_unconnected_session_reports_the_reason() {
    let unused_port = crate::harness::etcd::unused_port();
    let file = EtcdConfig::new(format!("http://127.0.0.1:{unused_port}"));
    let mut options = session_options();
    options.client.request_timeout = Duration::from_millis(500);
    let session = Session::start(file, options, CancellationToken::new());
    let error = session.get(b"cilium/a").await.unwrap_err().to_string();
    assert!(error.contains("not connected to etcd (cannot connect to 127.0.0.1:"), "{error}");
    assert!(session.status().to_string().contains("cannot connect"));
}

#[tokio::test]
async fn a_key_of_another_session_is_attached_to_an_own_lease() {
    let etcd = Etcd::start().await;
    let first = session(&etcd).await;
    first.update(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap();
    first.close().await;
    let second = Session::start(client_file(&etcd), session_options(), CancellationToken::new());
    assert!(second.update_if_different(b"cilium/a", b"1", KeyLifetime::Leased).await.unwrap());
    let found = second.get(b"cilium/a").await.unwrap().unwrap();
    assert_eq!((Some(found.lease), found.version), (second.lease_of(b"cilium/a"), 2));
    assert_ne!(found.lease, LeaseId(0));
}

/// Restoring a backup of an etcd counts as a loss of all leases. The backup contains the leases,
/// which etcd renews, but not the keys that were attached to them later.
#[tokio::test]
async fn all_leases_are_lost_when_a_backup_is_restored() {
    let mut etcd = Etcd::start().await;
    // the init lock of the quorum check would be another key below `cilium/`
    let session = session_with(&etcd, SessionOptions { quorum_check: false, ..session_options() }).await;
    let lost = watch_losses(&session, &["cilium/before", "cilium/after"]);
    session.update(b"cilium/before", b"1", KeyLifetime::Leased).await.unwrap();
    etcd.stop().await;
    let (data, backup) = (etcd.directory().join("data"), etcd.directory().join("backup"));
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        assert!(std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    copy(&data, &backup);
    etcd.restart().await;
    eventually("a write after the backup", async || session.update(b"cilium/after", b"1", KeyLifetime::Leased).await.ok()).await;
    assert_eq!(keys_by_lease(&etcd, "cilium/").await, [2], "both keys have the lease that the backup contains");
    for _ in 0..20 {
        session.update(b"elsewhere", b"1", KeyLifetime::Permanent).await.unwrap();
    }
    etcd.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    etcd.restart().await;
    eventually("both keys to be lost", async || (lost.lock().unwrap().len() == 2).then_some(())).await;
    session.close().await;
}

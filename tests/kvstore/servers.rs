//! Tests of the harness: a server starts, keeps its data across a restart, and loses its data in a
//! wipe.

use crate::harness::etcd::{Etcd, Tls, all_etcd_binaries};

#[tokio::test]
async fn a_test_server_keeps_its_data_until_it_is_wiped() {
    for binary in all_etcd_binaries() {
        for tls in [Tls::None, Tls::Server, Tls::Mutual] {
            let mut etcd = Etcd::builder().binary(&binary).tls(tls).start().await;
            assert_eq!(etcd.put_many((0..300).map(|i| (format!("cilium/{i}"), "x"))).await, 4);
            etcd.restart().await;
            assert_eq!(etcd.put("cilium/a", "1").await, 5);
            etcd.kill();
            etcd.restart().await;
            assert_eq!(etcd.delete("cilium/a").await, 6);
            etcd.wipe();
            etcd.restart().await;
            assert_eq!(etcd.put("cilium/a", "1").await, 2);
            etcd.enable_auth("meshkeep", "secret").await;
            assert_eq!(etcd.put("cilium/a", "1").await, 3);
        }
    }
}

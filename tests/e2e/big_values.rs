//! Values up to etcd's own limit. Only a few of them fit into one message.

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{SMALL, source_key};
use crate::harness::scene::Scene;

/// Number of values. Together they are 42 MiB, and a page of 256 keys (the default) would contain
/// all of them.
const COUNT: u32 = 30;

/// Size of a label in each value: 1.4 MiB, below etcd's limit of 1.5 MiB per request.
const LABEL_BYTES: usize = 1_468_006;

#[tokio::test]
async fn values_near_etcds_limit_are_all_served() {
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let remote = &mut scene.remotes[0];
    for index in 0..COUNT {
        let key = format!("cilium/cache/services/v1/c01/big/svc-{index}");
        let label = char::from(b'a' + u8::try_from(index % 26).unwrap()).to_string().repeat(LABEL_BYTES);
        let value = format!(
            r#"{{"cluster":"c01","namespace":"big","name":"svc-{index}","frontends":{{}},"backends":{{}},"labels":{{"big":"{label}"}},"selector":{{}},"includeExternal":true,"shared":true,"clusterID":1}}"#
        );
        remote.etcd.put(source_key(remote.form, "c01", &key), value.clone()).await;
        remote.clusters[0].entries.insert(key, value.into_bytes());
    }
    scene.start_meshkeep().await;
    scene.wait_until_settled("loading big values").await;
    // after a restart they are loaded from the store
    scene.remotes[0].proxy.cut().await;
    scene.kill_meshkeep();
    scene.start_meshkeep().await;
    crate::harness::scene::assert_served(scene.meshkeep(), &scene.truth().expected(), "right after a kill -9").await;
}

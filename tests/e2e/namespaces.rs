//! Namespaces that their cluster removes from the mesh.

use serde_json::json;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::scene::Scene;

/// `clustermesh.cilium.io/global: "false"` deletes all keys of a namespace at once, while the
/// config, the canaries and every lease still exist. The cluster wants this deletion, so nothing is
/// held.
#[tokio::test]
async fn a_namespace_removed_from_the_mesh_is_deleted_at_once() {
    for binary in etcd_binaries() {
        let mut scene = Scene::start(&binary, 1, 1, SMALL).await;
        scene.wait_until_settled("a start").await;
        for remote in &mut scene.remotes {
            remote
                .change(|cluster| {
                    for key in [cluster.keys_of("services/v1"), cluster.keys_of("ip/v1")].concat() {
                        cluster.delete(&key);
                    }
                })
                .await;
        }
        scene.wait_until_settled("a namespace out of the mesh").await;
        for name in scene.names() {
            let state = scene.meshkeep().cluster(&name).await;
            assert_eq!((&state["phase"], &state["failures"]), (&json!("live"), &json!(0)), "{state}");
        }
    }
}

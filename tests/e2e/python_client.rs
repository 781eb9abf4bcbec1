//! The Python client that is generated from the committed OpenAPI document reads every list.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::scene::Scene;

#[tokio::test]
async fn the_generated_python_client_reads_every_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let set_up = Command::new(root.join("scripts/python-client-setup")).output().unwrap();
    assert!(set_up.status.success(), "{}", String::from_utf8_lossy(&set_up.stderr));
    let scene = Scene::start(&etcd_binaries()[0], 1, 1, SMALL).await;
    scene.settles("the first loading").await;
    let output = Command::new(root.join("tests/clients/python/read_all.py")).arg(scene.meshkeep().url()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counts = &scene.meshkeep().get("/v1/status").await["counts"];
    for kind in ["nodes", "services", "identities", "ipcache"] {
        assert_eq!(
            read[kind].as_array().map(Vec::len),
            counts[kind].as_u64().and_then(|count| usize::try_from(count).ok()),
            "{kind}: {read}"
        );
    }
}

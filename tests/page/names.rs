//! Searches for a part of a name, a label or an address, in a list that is longer than what the
//! page loads.

use serde_json::json;

use super::browser::Page;
use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish, put_leased};
use crate::harness::meshkeep::{Home, Meshkeep};

/// Number of services: more than two pages of the list (`PAGE` in
/// `src/page/assets/parts/services.js`).
const SERVICES: usize = 1_100;

/// Name of the last service.
const LAST: &str = "svc-01099";

/// A part of it that no other name has.
const PART: &str = "VC-01099";

/// Starts a mesh with many services, all of them in the namespace that sorts last.
async fn mesh() -> (Etcd, Home, Meshkeep) {
    let etcd = Etcd::start().await;
    publish(&etcd, Form::State, &[MeshCluster::generate(1, SMALL)], "2026-01-12T09:31:07Z").await;
    let service = |number| {
        let value = json!({ "cluster": "c01", "clusterID": 1, "namespace": "zoo", "name": format!("svc-{number:05}"), "shared": true, "includeExternal": true });
        (format!("cilium/state/services/v1/c01/zoo/svc-{number:05}"), value.to_string().into_bytes())
    };
    put_leased(&etcd, (0..SERVICES).map(service)).await;
    let mut home = Home::new();
    home.write_cluster("c01", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    eventually("all services", || async {
        let status = meshkeep.get("/v1/status").await;
        (status["counts"]["globalServices"].as_u64()? >= SERVICES as u64).then_some(())
    })
    .await;
    (etcd, home, meshkeep)
}

#[tokio::test]
async fn the_page_finds_parts_of_names_that_it_has_not_loaded() {
    let (_etcd, _home, meshkeep) = mesh().await;
    let page = Page::open(meshkeep.url()).await;
    page.wait_for_text(&["c01", "1/1 live"]).await;
    let row = format!("zoo/{LAST}");
    // while typing
    page.press(&["/"]).await;
    page.type_text(PART).await;
    page.wait_for("the service", &format!("return document.querySelector('#found')?.innerText.includes({})", json!(row))).await;
    page.press(&["Escape"]).await;
    page.press(&["/"]).await;
    page.type_text("svc-nobody").await;
    page.wait_for_text(&["there is no pod, shared service, node, cluster, label or address with this text"]).await;
    page.press(&["Escape"]).await;
    // the beginning of an address, and the name of a reserved identity
    for (text, suggestion) in [("10.", "10."), ("world-ipv4", "reserved:world-ipv4")] {
        page.press(&["/"]).await;
        page.type_text(text).await;
        page.wait_for("the suggestion", &format!("return document.querySelector('#found')?.innerText.includes({})", json!(suggestion)))
            .await;
        page.press(&["Escape"]).await;
    }
    // in the find view
    for path in [LAST.to_owned(), PART.to_owned(), row.replace('/', "%2F")] {
        page.go_to(&format!("#/find/{path}")).await;
        let link = format!("return [...document.querySelectorAll('.find a')].some((one) => one.textContent === {})", json!(row));
        page.wait_for("the link", &link).await;
    }
    page.go_to("#/find/svc-nobody").await;
    page.wait_for_text(&["No pod, shared service, node, cluster, label or address of this mesh has this text"]).await;
    // the filter searches all services
    page.go_to("#/services").await;
    page.wait_for("the list", "return document.querySelectorAll('.items li').length === 500").await;
    page.chromium.run("document.querySelector('.filter').focus()").await;
    page.type_text(PART).await;
    page.wait_for("the match", "return document.querySelectorAll('.items li').length === 1").await;
    page.wait_for_text(&[&row]).await;
    page.assert_readable("the filter").await;
    page.type_text("x").await;
    page.wait_for_text(&["no shared service has this text in its name"]).await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

//! Names that the page has not loaded. Before the page reports that a name does not exist, it asks
//! meshkeep for exactly that name.

use serde_json::json;

use super::browser::Page;
use crate::harness::etcd::Etcd;
use crate::harness::eventually;
use crate::harness::mesh::{Form, MeshCluster, SMALL, publish, put_leased};
use crate::harness::meshkeep::{Home, Meshkeep};

/// Number of services: more than the page reads for completion (`NAMES_MAX` in
/// `src/page/assets/search_query.js`).
const SERVICES: usize = 10_100;

/// Name of the last service, which is after the first 10,000 names.
const LAST: &str = "svc-10099";

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
async fn the_page_finds_names_beyond_the_first_ten_thousand() {
    let (_etcd, _home, meshkeep) = mesh().await;
    let page = Page::open(meshkeep.url()).await;
    page.wait_for_text(&["c01", "1/1 live"]).await;
    let row = format!("zoo/{LAST}");
    // while typing
    page.press(&["/"]).await;
    page.type_text(LAST).await;
    page.wait_for("the suggestion", &format!("return document.querySelector('#found')?.innerText.includes({})", json!(row))).await;
    page.press(&["Escape"]).await;
    page.press(&["/"]).await;
    page.type_text("svc-nobody").await;
    page.wait_for_text(&["there is no pod, shared service, node or cluster with this name"]).await;
    page.press(&["Escape"]).await;
    // in the find view
    for path in [LAST.to_owned(), row.replace('/', "%2F")] {
        page.go_to(&format!("#/find/{path}")).await;
        let link = format!("return [...document.querySelectorAll('.find a')].some((one) => one.textContent === {})", json!(row));
        page.wait_for("the link", &link).await;
    }
    page.go_to("#/find/svc-nobody").await;
    page.wait_for_text(&["No pod, shared service, node or cluster of this mesh has this name", "the first 10,000"]).await;
    page.go_to("#/find/svc-*").await;
    page.wait_for_text(&["names must be exact"]).await;
    // the filter searches only the services that the page has read, and says so
    page.go_to("#/services").await;
    page.wait_for("the list", "return document.querySelectorAll('.items li').length === 500").await;
    page.chromium.run("document.querySelector('.filter').focus()").await;
    page.type_text(LAST).await;
    page.wait_for_text(&["500 of 10,1", "services searched", &row]).await;
    page.assert_readable("the filter").await;
    page.type_text("x").await;
    page.wait_for_text(&["none of these 500 matches, and no service has exactly this name"]).await;
    assert_eq!(page.console_errors(&["400"]).await, Vec::<String>::new());
}

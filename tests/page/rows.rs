//! Rows of the mesh and copies: filters, sorting, natural order, pod names, and the commands of
//! each view.

use serde_json::json;

use super::SimulatedMesh;
use super::browser::Page;
use super::changes::answer_requests;
use crate::harness::meshkeep::Home;

/// Script that returns the names of the rows.
const NAMES: &str = "return [...document.querySelectorAll('tbody tr[data-cluster]')].map((row) => row.dataset.cluster)";

#[tokio::test]
async fn columns_sort_and_filter_and_names_sort_naturally() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 200, 0, "");
    let page = Page::open(&simulated.url).await;
    page.wait_for("the fold", "return document.querySelector('.fold')").await;
    page.go_to("#/mesh?q=oslo").await;
    page.wait_for("13 rows", "return document.querySelectorAll('tbody tr').length === 13").await;
    page.go_to("#/mesh?q=oslo&sort=cluster").await;
    page.wait_for("the order of names", "return document.querySelector('th[aria-sort=ascending]')?.innerText.includes('cluster')").await;
    let expected: Vec<String> = (1..=13).map(|number| if number == 1 { "oslo".to_owned() } else { format!("oslo-{number}") }).collect();
    assert_eq!(page.chromium.run(NAMES).await, json!(expected), "oslo-2 is before oslo-10");
    // a second click reverses the order
    page.chromium.run("document.querySelector('th[aria-sort] button').click()").await;
    page.wait_for("the reverse order", "return document.querySelector('tbody tr').dataset.cluster === 'oslo-13'").await;
    // a filter may have several words, and the opened row is shown although it does not match
    page.go_to("#/mesh/oslo?q=").await;
    page.wait_for("the empty filter", "return document.querySelector('.filters input')?.value === ''").await;
    page.chromium.run("document.querySelector('.filters input').focus()").await;
    page.type_text("backing ").await;
    page.wait_for("the filtered rows", "return document.querySelectorAll('tbody tr[data-cluster]').length < 10").await;
    page.type_text("off").await;
    page.wait_for("the space", "return new URLSearchParams(location.hash.split('?')[1]).get('q') === 'backing off'").await;
    page.wait_for("the opened row", "return document.querySelector('tr.open')?.dataset.cluster === 'oslo'").await;
    // certificates sort by their expiry, the earliest first
    page.go_to("#/mesh?sort=certificate").await;
    page.wait_for("the certificates", "return document.querySelector('tbody .cert')?.innerText.includes('▲')").await;
    // the legend filters by state
    page.go_to("#/mesh").await;
    page.wait_for("the legend", "return document.querySelector('.legend')?.innerText.includes('old data')").await;
    page.chromium.run("[...document.querySelectorAll('.legend button')].find((one) => one.innerText.includes('old data')).click()").await;
    page.wait_for("only old data", "const rows = [...document.querySelectorAll('tbody tr')]; return rows.length > 0 && rows.every((row) => row.classList.contains('is-warn'))").await;
    // wide screens are used
    page.set_appearance("light", 2_560).await;
    let used = page.chromium.run("return document.querySelector('.mesh').getBoundingClientRect().width").await;
    assert!(used.as_f64().unwrap() > 2_400.0, "{used}");
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn each_view_can_be_copied_as_commands() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 20, 0, "");
    let (page, url) = (Page::open(&simulated.url).await, &simulated.url);
    for (hash, path, words) in [
        ("#/mesh", "/v1/clusters", "status"),
        ("#/mesh/osaka", "/v1/clusters/osaka", "get clusters osaka"),
        ("#/mesh/osaka?impact=yes", "/v1/impact?cluster=osaka", "impact osaka"),
        ("#/explain/10.2.1.9", "/v1/explain/10.2.1.9", "explain 10.2.1.9"),
        ("#/services/shop/cart", "/v1/global-services/shop/cart", "get global-services shop/cart"),
        ("#/problems?severity=warning", "/v1/problems?severity=warning", "problems --severity=warning"),
        ("#/changes?kind=ipcache&pod=cart", "/v1/events?kind=ipcache&pod=cart", "watch --kind=ipcache --filter=pod=cart"),
        ("#/find/131331", "/v1/ipcache?identity=131331", "get ipcache --filter=identity=131331"),
    ] {
        page.go_to(hash).await;
        let flag = if path.contains("events") { "-N" } else { "-s" };
        let quote = if path.contains('?') { "'" } else { "" };
        let expected = json!([format!("curl {flag} {quote}{url}{path}{quote}"), format!("meshkeep {words} --server {url}")]);
        page.wait_for(
            hash,
            &format!(
                "return JSON.stringify([...document.querySelectorAll('.commands button')].map((one) => one.title)) === {}",
                json!(expected.to_string())
            ),
        )
        .await;
    }
    // the buttons copy
    page.chromium.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }").await;
    page.go_to("#/explain/10.2.1.9").await;
    page.wait_for("the buttons", "return document.querySelectorAll('.answer .copy').length === 2").await;
    for (index, text) in [(0, "10.2.1.9"), (1, "131331")] {
        page.chromium.run(&format!("document.querySelectorAll('.answer .copy')[{index}].click()")).await;
        page.wait_for("the copy", &format!("return window.copied === '{text}'")).await;
    }
    page.wait_for_text(&["copied"]).await;
    // backends have the names of their pods
    page.go_to("#/services/shop/cart").await;
    page.wait_for_text(&["shop/cart-21", "shop/cart-23"]).await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_row_shows_the_impact_of_its_cluster() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 20, 0, "");
    let page = Page::open(&simulated.url).await;
    page.go_to("#/mesh/osaka?q=osa").await;
    page.wait_for("the link", "return document.querySelector('.links a[href*=impact]')?.getAttribute('aria-expanded') === 'false'").await;
    page.chromium.run("document.querySelector('.links a[href*=impact]').click()").await;
    page.wait_for_text(&[
        "Without osaka",
        "1 global service would lose all backends",
        "1 global service would fall back to other backends",
        "1 global service would not notice",
        "1 identity and 1 CIDR would no longer be announced",
    ])
    .await;
    // the worst effect comes first
    let names = "return [...document.querySelectorAll('.impact tbody th')].map((one) => one.innerText)";
    assert_eq!(page.chromium.run(names).await, json!(["shop/checkout", "shop/front", "shop/cart"]));
    assert_eq!(page.chromium.run("return location.hash").await, json!("#/mesh/osaka?q=osa&impact=yes"), "the filter stays");
    page.assert_accessible("impact").await;
    page.chromium.run("document.querySelector('.links a[aria-expanded=true]').click()").await;
    page.wait_for("the closed section", "return document.querySelector('.impact') === null").await;
    // counts of a part of the list are lower bounds, except those of kinds before the last item's
    let item = |kind: &str| json!({"kind": kind, "effect": "losesAll", "namespace": "shop", "name": "cart", "identity": 7, "prefix": "10.0.0.0/8"});
    for (kinds, words) in [
        (&["service"][..], ["1+ global services would lose all backends", "0+ identities and 0+ CIDRs would"]),
        (&["service", "identity"], ["1 global service would lose all backends", "1+ identities and 0+ CIDRs would"]),
        (&["identity", "cidr"], ["no global service would change", "1 identity and 1+ CIDRs would"]),
        (&[], ["not all global services were checked", "0+ identities and 0+ CIDRs would"]),
    ] {
        let items: Vec<_> = kinds.iter().map(|kind| item(kind)).collect();
        page.chromium.run(&answer_requests("/v1/impact", &[json!({"items": items, "nextPageToken": "more", "meta": {}})])).await;
        page.go_to("#/mesh/osaka?impact=yes").await;
        page.wait_for_text(&words).await;
        page.go_to("#/mesh/osaka").await;
        page.wait_for("the closed section", "return document.querySelector('.impact') === null").await;
    }
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

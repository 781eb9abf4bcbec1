//! `search=`: parts of names, pods and labels, beginnings of addresses, and reserved identities.

use serde_json::Value;

use super::global_services::mesh;
use super::pages::pods;
use crate::admission::ScanLimits;
use crate::api::tests::fixture::ApiFixture;
use crate::handle::SliceLimit;

/// Returns one member of each item of a list.
async fn items(fixture: &ApiFixture, uri: &str, member: &str) -> Vec<String> {
    let list = fixture.json(uri).await;
    let text = |item: &Value| item[member].as_str().map_or_else(|| item[member].to_string(), str::to_owned);
    list["items"].as_array().unwrap_or_else(|| panic!("{uri}: {list}")).iter().map(text).collect()
}

#[tokio::test]
async fn a_search_finds_parts_of_names_labels_and_addresses() {
    let fixture = ApiFixture::new();
    let cases: [(&str, &str, &[&str]); 21] = [
        ("nodes?search=PARIS", "name", &["paris-worker-1"]),
        ("nodes?search=worker", "name", &["paris-worker-1", "tokyo-worker-1"]),
        ("nodes?search=tokyo/tok", "name", &["tokyo-worker-1"]),
        ("nodes?search=172.18.2", "name", &["tokyo-worker-1"]),
        ("nodes?search=72.18.2", "name", &[]),
        ("nodes?search=worker&cluster=paris", "name", &["paris-worker-1"]),
        ("services?search=art", "name", &["cart"]),
        ("services?search=shop/c", "name", &["cart"]),
        ("services?search=172.20.", "name", &["cart"]),
        ("services?search=basket", "name", &[]),
        ("global-services?search=SHOP/CA", "name", &["cart"]),
        ("global-services?search=basket", "name", &[]),
        ("endpoint-slices?search=cart", "name", &[]),
        ("identities?search=bask", "cluster", &["paris"]),
        ("identities?search=k8s:app=ca", "cluster", &["tokyo"]),
        ("identities?search=68353", "id", &["68353"]),
        ("ipcache?search=10.1.200", "prefix", &["10.1.200.0/24"]),
        ("ipcache?search=10.1.200.0/2", "prefix", &["10.1.200.0/24"]),
        ("ipcache?search=shop/CART", "prefix", &["10.1.2.40/32", "10.1.2.40/32"]),
        ("ipcache?search=hop&cluster=tokyo", "prefix", &["10.1.2.40/32"]),
        ("ipcache?search=till", "prefix", &[]),
    ];
    for (query, member, expected) in cases {
        assert_eq!(items(&fixture, &format!("/v1/{query}"), member).await, expected, "{query}");
    }
    for path in ["clusters", "problems", "entries", "events"] {
        assert_eq!(fixture.get(&format!("/v1/{path}?search=cart")).await.status.as_u16(), 400, "{path}");
    }
}

#[tokio::test]
async fn a_search_finds_exports_and_slices_by_their_names() {
    let fixture = ApiFixture::with_view(mesh());
    for (query, expected) in [
        ("endpoint-slices?search=CART-x", vec!["cart-x"]),
        ("endpoint-slices?search=paris/shop", vec!["cart-x"]),
        ("endpoint-slices?search=basket", vec![]),
        ("service-exports?search=op/ca", vec!["cart", "cart"]),
        ("service-exports?search=tokyo/shop", vec!["cart"]),
        ("service-exports?search=basket", vec![]),
    ] {
        assert_eq!(items(&fixture, &format!("/v1/{query}"), "name").await, expected, "{query}");
    }
}

#[tokio::test]
async fn a_search_finds_reserved_identities_before_announced_ones() {
    let fixture = ApiFixture::new();
    let world = ["world", "world-ipv4", "world-ipv6", "aggregate-world"];
    assert_eq!(items(&fixture, "/v1/identities?search=world", "reserved").await, world);
    // with another filter, only announced identities match
    assert_eq!(items(&fixture, "/v1/identities?search=world&cluster=paris", "id").await, Vec::<String>::new());
    // `e` is in reserved names and in all labels of pods
    let whole = items(&fixture, "/v1/identities?search=e", "id").await;
    assert_eq!(whole[whole.len() - 3..], ["68352", "68353", "68352"]);
    let (mut paged, mut token) = (Vec::new(), String::new());
    loop {
        let page = fixture.json(&format!("/v1/identities?search=e&limit=1{token}")).await;
        paged.extend(page["items"].as_array().unwrap().iter().map(|item| item["id"].to_string()));
        let Some(next) = page["nextPageToken"].as_str() else { break };
        token = format!("&pageToken={next}");
    }
    assert_eq!(paged, whole);
}

#[tokio::test]
async fn a_search_ends_its_pages_after_their_scan_time() {
    let limits = ScanLimits { slice: SliceLimit::Rows(10), page: SliceLimit::Rows(50) };
    let fixture = ApiFixture::with_view(pods(120)).with_scan_limits(limits);
    let page = fixture.json("/v1/ipcache?search=10.1.0.11").await;
    let next = page["nextPageToken"].as_str().unwrap();
    let rest = fixture.json(&format!("/v1/ipcache?search=10.1.0.11&pageToken={next}")).await;
    assert_eq!(fixture.scans.total_usage().rows, 100);
    assert!(rest["nextPageToken"].is_string(), "{rest}");
}

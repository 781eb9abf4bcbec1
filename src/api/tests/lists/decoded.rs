//! Values that are large once decoded. They wait for memory or are refused, and do not affect other
//! values. A service that never fits into memory is listed with `tooLarge`.

use std::time::{Duration, SystemTime};

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, key, put};
use crate::commit::DecodedBudget;
use crate::model::{Change, Command, EndpointSlice, Kind, LabelSet, Object, Scope, Sequence, Service, SliceEndpoint};
use crate::view::View;
use crate::wire::tests::slice_object;

/// A slice of `shop/cart` with empty endpoints. Each has 2 B in the message and counts as 10 B in
/// the budget.
pub(in crate::api::tests) fn slice(cluster: &str, name: &str, endpoints: usize, revision: i64) -> Change {
    let slice = EndpointSlice {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        labels: LabelSet::from([("kubernetes.io/service-name".to_owned(), "cart".to_owned())]),
        address_type: "IPv4".to_owned(),
        endpoints: vec![SliceEndpoint::default(); endpoints],
        ..EndpointSlice::default()
    };
    put(key(Kind::EndpointSlice, cluster, &format!("shop/{name}")), slice_object(&slice), revision)
}

fn view(changes: impl IntoIterator<Item = Change>) -> View {
    let mut view = View::starting_at(Sequence(0));
    for change in changes {
        let Change::Put { key, .. } = &change else { continue };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    }
    view
}

/// Slices of paris, by name and number of endpoints.
pub(in crate::api::tests) fn with_slices(slices: &[(&str, usize)]) -> View {
    view(slices.iter().map(|(name, endpoints)| slice("paris", name, *endpoints, 7)))
}

/// `shop/cart`, small in paris and more than half a MiB in tokyo, and `till/desk`, which both
/// share.
fn with_large_service() -> ApiFixture {
    let desk = |name| {
        let service = Service { namespace: "till".to_owned(), name: "desk".to_owned(), shared: true, ..Service::default() };
        put(key(Kind::Service, name, "till/desk"), Object::Service(service), 8)
    };
    let slices = [slice("paris", "a", 10_000, 7), slice("tokyo", "b", 30_000, 7), slice("tokyo", "c", 30_000, 7)];
    let view = view(slices.into_iter().chain([desk("paris"), desk("tokyo")]));
    ApiFixture::with_view(view).with_decoded_budget(DecodedBudget::new(512 << 10))
}

fn names(page: &Value) -> Vec<&str> {
    page["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_slice_too_large_for_memory_is_refused_and_ends_a_page() {
    let fixture =
        ApiFixture::with_view(with_slices(&[("a", 1), ("b", 90_000), ("c", 1)])).with_decoded_budget(DecodedBudget::new(512 << 10));
    let answer = fixture.get("/v1/endpoint-slices/paris/shop/b").await;
    let (status, body) = (answer.status, answer.json());
    assert_eq!((status, body["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("memoryLimitReached")), "{body}");
    assert!(body["detail"].as_str().unwrap().contains("--decoded-max-bytes"), "{body}");
    assert_eq!(fixture.get("/v1/endpoint-slices/paris/shop/a").await.status, StatusCode::OK);
    let page = fixture.json("/v1/endpoint-slices").await;
    assert_eq!(names(&page), ["a"], "{page}");
    let next = page["nextPageToken"].as_str().unwrap();
    assert_eq!(fixture.get(&format!("/v1/endpoint-slices?pageToken={next}")).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_service_too_large_to_merge_is_an_item_with_the_reason() {
    let fixture = with_large_service();
    let page = fixture.json("/v1/global-services").await;
    assert_eq!((names(&page), page.get("nextPageToken")), (vec!["cart", "desk"], None), "{page}");
    let (large, other) = (&page["items"][0], &page["items"][1]);
    assert_eq!(other["clusters"].as_array().unwrap().len(), 2);
    let reported = &large["tooLarge"];
    assert_eq!((&reported["cluster"], &reported["bytesMax"]), (&json!("tokyo"), &json!(512 << 10)));
    assert_eq!(reported["key"], json!("cilium/cache/endpointslices/v1/tokyo/shop/b"));
    assert!(reported["bytes"].as_u64().unwrap() > 700_000, "{reported}");
    let reason = reported["reason"].as_str().unwrap();
    assert!(reason.contains("tokyo") && reason.contains("--decoded-max-bytes"), "{reason}");
    assert_eq!((&large["namespace"], &large["clusters"], &large["backends"]), (&json!("shop"), &json!([]), &json!([])));
    // a single answer has the reason, too, and its sources
    let alone = fixture.json("/v1/global-services/shop/cart").await;
    assert_eq!((&alone["tooLarge"], alone["meta"]["sourceCount"].as_u64()), (reported, Some(2)), "{alone}");
    // with `fields=`, items still have `tooLarge`, and so has NDJSON
    let cut = fixture.json("/v1/global-services?fields=name,backends.ip").await;
    assert_eq!(cut["items"], json!([{ "name": "cart", "backends": [], "tooLarge": reported }, { "name": "desk", "backends": [] }]));
    let chosen = fixture.json("/v1/global-services?affinity=local&from=paris").await;
    assert_eq!((&chosen["items"][0]["tooLarge"], chosen["items"][0].get("selection")), (reported, None));
    // filters use what is known without the slices; a service of other clusters is skipped
    assert_eq!(names(&fixture.json("/v1/global-services?cluster=paris&namespace=shop").await), ["cart"]);
    assert_eq!(names(&fixture.json("/v1/global-services?cluster=oslo").await), [""; 0]);
    assert_eq!(names(&fixture.json("/v1/global-services?conflict=any").await), [""; 0]);
    assert_eq!(names(&fixture.json("/v1/global-services?labelSelector=app%3Dcart").await), ["cart"]);
}

/// The finding names the cluster and the key. It is resolved when the cluster has fewer endpoints.
#[tokio::test]
async fn a_service_too_large_to_merge_is_a_finding() {
    let fixture = with_large_service();
    let found = fixture.json("/v1/problems?kind=serviceTooLarge").await;
    let finding = &found["items"][0];
    assert_eq!((&finding["id"], &finding["severity"]), (&json!("serviceTooLarge/shop/cart"), &json!("critical")), "{found}");
    assert_eq!((&finding["clusters"], &finding["key"]), (&json!(["tokyo"]), &json!("cilium/cache/endpointslices/v1/tokyo/shop/b")));
    assert!(finding["detail"].as_str().unwrap().contains("524288"), "{finding}");
    let advice = "of tokyo (the first is cilium/cache/endpointslices/v1/tokyo/shop/b); if";
    assert!(finding["advice"].as_str().unwrap().contains(advice), "{finding}");
    fixture.change(slice("tokyo", "b", 10, 9)).await;
    wait_for_findings(&fixture, 0).await;
    assert_eq!(fixture.json("/v1/global-services/shop/cart").await.get("tooLarge"), None);
    fixture.change(slice("tokyo", "d", 90_000, 10)).await;
    wait_for_findings(&fixture, 1).await;
}

/// Polls until there are this many findings. An answer waits only 100 ms for new ones, and decoding
/// these slices can take longer.
async fn wait_for_findings(fixture: &ApiFixture, count: usize) {
    let ask = async { while fixture.json("/v1/problems?kind=serviceTooLarge").await["items"].as_array().unwrap().len() != count {} };
    tokio::time::timeout(Duration::from_secs(60), ask).await.unwrap();
}

/// Memory is released after each answer, so all requests succeed.
#[tokio::test]
async fn memory_is_released_after_each_answer() {
    let fixture = ApiFixture::with_view(with_slices(&[("a", 90_000), ("b", 90_000)])).with_decoded_budget(DecodedBudget::new(1 << 20));
    let asked = (0..8).map(|_| fixture.get("/v1/endpoint-slices/paris/shop/a"));
    let answers = futures_util::future::join_all(asked).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    // there is not enough memory for both together
    let service = fixture.json("/v1/global-services/shop/cart").await;
    assert_eq!(service["tooLarge"]["cluster"], json!("paris"), "{service}");
}

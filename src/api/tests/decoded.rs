//! What is large once it is decoded waits for room, or is told to ask again, and touches nothing else.

use std::time::SystemTime;

use axum::http::StatusCode;

use super::fixture::{Fixture, cluster, key, put};
use crate::commit::DecodedBudget;
use crate::model::{Command, EndpointSlice, Kind, LabelSet, Object, Scope, Sequence, Service, SliceEndpoint};
use crate::view::View;
use crate::wire::tests::slice_object;

/// A slice of `shop/cart` with so many endpoints of nothing, 2 B each in its message and 10 B as they are counted.
pub(super) fn with_slices(slices: &[(&str, usize)]) -> View {
    let mut view = View::starting_at(Sequence(0));
    for (name, endpoints) in slices {
        let slice = EndpointSlice {
            namespace: "shop".to_owned(),
            name: (*name).to_owned(),
            labels: LabelSet::from([("kubernetes.io/service-name".to_owned(), "cart".to_owned())]),
            address_type: "IPv4".to_owned(),
            endpoints: vec![SliceEndpoint::default(); *endpoints],
            ..EndpointSlice::default()
        };
        let change = put(key(Kind::EndpointSlice, "paris", &format!("shop/{name}")), slice_object(&slice), 7);
        let scope = Scope { cluster: cluster("paris"), kind: Kind::EndpointSlice };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    }
    view
}

#[tokio::test]
async fn what_has_no_room_is_refused_with_a_reason_and_a_page_ends_before_it() {
    let fixture = Fixture::of(with_slices(&[("a", 1), ("b", 90_000), ("c", 1)])).with_decoded(DecodedBudget::new(512 << 10));
    for path in ["/v1/endpoint-slices/paris/shop/b", "/v1/global-services/shop/cart", "/v1/global-services"] {
        let answer = fixture.get(path).await;
        let (status, body) = (answer.status, answer.json());
        assert_eq!((status, body["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("noRoom")), "{path}: {body}");
        assert!(body["detail"].as_str().unwrap().contains("--decoded-max-bytes"), "{body}");
    }
    assert_eq!(fixture.get("/v1/endpoint-slices/paris/shop/a").await.status, StatusCode::OK);
    let page = fixture.json("/v1/endpoint-slices").await;
    assert_eq!((page["items"].as_array().unwrap().len(), page["items"][0]["name"].as_str()), (1, Some("a")), "{page}");
    let next = page["nextPageToken"].as_str().unwrap();
    assert_eq!(fixture.get(&format!("/v1/endpoint-slices?pageToken={next}")).await.status, StatusCode::SERVICE_UNAVAILABLE);
}

/// A filter for clusters merges no service that none of them has a share in, however large it is.
#[tokio::test]
async fn a_service_of_other_clusters_is_passed_over_before_it_takes_room() {
    let mut view = with_slices(&[("b", 90_000)]);
    let service = Object::Service(Service { namespace: "till".to_owned(), name: "desk".to_owned(), shared: true, ..Service::default() });
    let scope = Scope { cluster: cluster("tokyo"), kind: Kind::Service };
    let changes = vec![put(key(Kind::Service, "tokyo", "till/desk"), service, 8)];
    view.apply(Command::Apply { scope, changes, cursor: None }, SystemTime::now());
    let fixture = Fixture::of(view).with_decoded(DecodedBudget::new(512 << 10));
    let page = fixture.json("/v1/global-services?cluster=tokyo").await;
    assert_eq!((page["items"].as_array().unwrap().len(), page["items"][0]["name"].as_str()), (1, Some("desk")), "{page}");
    assert_eq!(fixture.get("/v1/global-services?cluster=paris").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

/// Room is given back: one after the other all are served.
#[tokio::test]
async fn what_fits_is_served_however_often_it_is_asked_for() {
    let fixture = Fixture::of(with_slices(&[("a", 90_000), ("b", 90_000)])).with_decoded(DecodedBudget::new(1 << 20));
    let asked = (0..8).map(|_| fixture.get("/v1/endpoint-slices/paris/shop/a"));
    let answers = futures_util::future::join_all(asked).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
    // the two together have no room
    assert_eq!(fixture.get("/v1/global-services/shop/cart").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

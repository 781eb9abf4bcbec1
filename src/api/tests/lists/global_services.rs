//! Global services over HTTP: merged, filtered, paged, and with selected backends.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::admission::ScanLimits;
use crate::api::tests::fixture::{ApiFixture, TestResponse, cluster, key, put};
use crate::handle::SliceLimit;
use crate::model::*;
use crate::view::View;
use crate::wire::tests::slice_object;

fn service(namespace: &str, name: &str, ip: &str) -> Service {
    let port = |name: &str| Port { name: name.to_owned(), protocol: "TCP".to_owned(), port: 80 };
    Service {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        cluster_id: 1,
        backends: vec![Backend { ip: ip.parse().unwrap(), ports: [port("http"), port("web")].into(), hostname: String::new(), zone: None }],
        labels: LabelSet::from([("app".to_owned(), name.to_owned())]),
        shared: true,
        include_external: true,
        ..Service::default()
    }
}

pub(in crate::api::tests) fn export(created: u64, service_type: &str) -> Object {
    Object::ServiceExport(Box::new(ServiceExport {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
        created: SystemTime::UNIX_EPOCH + Duration::from_secs(created),
        ports: vec![ExportPort { name: "http".to_owned(), protocol: "TCP".to_owned(), app_protocol: String::new(), port: 80 }],
        service_type: service_type.to_owned(),
        session_affinity: "None".to_owned(),
        session_affinity_timeout_seconds: None,
        ip_families: vec!["IPv4".to_owned()],
        internal_traffic_policy: String::new(),
        traffic_distribution: String::new(),
        labels: LabelSet::new(),
        annotations: LabelSet::new(),
    }))
}

pub(in crate::api::tests) fn slice() -> Object {
    let terminating =
        SliceEndpoint { addresses: vec!["10.1.2.40".parse().unwrap()], ready: Some(false), terminating: Some(true), ..Default::default() };
    slice_object(&EndpointSlice {
        namespace: "shop".to_owned(),
        name: "cart-x".to_owned(),
        labels: LabelSet::from([("kubernetes.io/service-name".to_owned(), "cart".to_owned())]),
        address_type: "IPv4".to_owned(),
        endpoints: vec![SliceEndpoint { node_name: "worker-1".to_owned(), ..terminating }],
        ..EndpointSlice::default()
    })
}

/// `shop/cart` in paris (with a slice and an export), tokyo (with an export) and oslo; `till/desk`
/// only in tokyo.
pub(in crate::api::tests) fn mesh() -> View {
    let mut view = View::starting_at(Sequence(0));
    let puts = [
        put(key(Kind::Service, "paris", "shop/cart"), Object::Service(service("shop", "cart", "10.1.2.40")), 11),
        put(key(Kind::EndpointSlice, "paris", "shop/cart-x"), slice(), 12),
        put(key(Kind::ServiceExport, "paris", "shop/cart"), export(20, "ClusterSetIP"), 13),
        put(key(Kind::ServiceExport, "tokyo", "shop/cart"), export(10, "Headless"), 14),
        put(key(Kind::Service, "tokyo", "shop/cart"), Object::Service(service("shop", "cart", "10.2.2.40")), 15),
        put(key(Kind::Service, "tokyo", "till/desk"), Object::Service(service("till", "desk", "10.2.2.41")), 16),
        put(
            key(Kind::Service, "oslo", "shop/cart"),
            Object::Service(Service { include_external: false, ..service("shop", "cart", "10.3.2.40") }),
            17,
        ),
    ];
    for change in puts {
        let Change::Put { key, .. } = &change else { continue };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    }
    view.apply(Command::Confirm(Scope { cluster: cluster("tokyo"), kind: Kind::Service }), SystemTime::now());
    view
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
    items.iter().map(|item| format!("{}/{}", item["namespace"].as_str().unwrap(), item["name"].as_str().unwrap())).collect()
}

/// Clusters and addresses of an item's backends.
fn backends(item: &Value) -> Vec<String> {
    let backends = item["backends"].as_array().unwrap_or_else(|| panic!("{item}"));
    backends.iter().map(|one| format!("{} {}", one["cluster"].as_str().unwrap(), one["ip"].as_str().unwrap())).collect()
}

#[tokio::test]
async fn a_service_is_merged_over_its_clusters() {
    let fixture = ApiFixture::with_view(mesh());
    let mut found = fixture.json("/v1/global-services/shop/cart").await;
    let meta = found.as_object_mut().unwrap().remove("meta").unwrap();
    let ports = json!([{ "name": "http", "names": ["http", "web"], "protocol": "TCP", "port": 80 }]);
    // only paris has a task, so only its age is known
    for one in found["clusters"].as_array_mut().unwrap() {
        for member in ["ageSeconds", "lastContact"] {
            one.as_object_mut().unwrap().remove(member);
        }
    }
    let of = |cluster: &str, include_external: bool, revision: u32| {
        json!({
            "cluster": cluster, "clusterID": 1, "source": "service", "includeExternal": include_external, "backendCount": 1,
            "labels": { "app": "cart" }, "origin": "live", "revision": revision,
        })
    };
    let expected = json!({
        "namespace": "shop",
        "name": "cart",
        "clusters": [of("oslo", false, 17), of("paris", true, 11), of("tokyo", true, 15)],
        "backends": [
            { "ip": "10.3.2.40", "cluster": "oslo", "origin": "live", "ports": ports, "state": "active" },
            {
                "ip": "10.1.2.40", "cluster": "paris", "origin": "live", "ports": ports, "state": "terminating",
                "nodeName": "worker-1", "endpointSlices": ["cart-x"],
            },
            { "ip": "10.2.2.40", "cluster": "tokyo", "origin": "live", "ports": ports, "state": "active" },
        ],
        "exports": {
            "clusters": ["tokyo", "paris"],
            "exportCreationTimestamp": "1970-01-01T00:00:10Z",
            "type": "Headless",
            "ports": [{ "name": "http", "protocol": "TCP", "port": 80 }],
            "sessionAffinity": "None",
            "ipFamilies": ["IPv4"],
        },
        "conflicts": [{ "reason": "TypeConflict", "clusters": ["paris"], "message": "type: \"Headless\" of tokyo, the oldest export, is used" }],
    });
    assert_eq!(found, expected);
    let sources: Vec<String> =
        meta["sources"].as_array().unwrap().iter().map(|one| format!("{} {}", one["cluster"], one["kind"])).collect();
    let expected = ["oslo service", "paris service", "tokyo service", "paris endpointSlice", "tokyo serviceExport", "paris serviceExport"];
    assert_eq!(sources.iter().map(|source| source.replace('"', "")).collect::<Vec<_>>(), expected);
    assert_eq!(meta["position"], json!("v1.000000000000feed.7"));
}

#[tokio::test]
async fn filters_select_services_but_not_their_backends() {
    let fixture = ApiFixture::with_view(mesh());
    let cases: [(&str, &[&str]); 11] = [
        ("", &["shop/cart", "till/desk"]),
        ("?namespace=shop", &["shop/cart"]),
        ("?namespace=sho", &[]),
        ("?name=desk", &["till/desk"]),
        ("?namespace=shop&name=desk", &[]),
        ("?cluster=paris", &["shop/cart"]),
        ("?cluster=tokyo", &["shop/cart", "till/desk"]),
        ("?cluster=paris&cluster=oslo", &["shop/cart"]),
        ("?cluster=nowhere", &[]),
        ("?labelSelector=app%3Ddesk", &["till/desk"]),
        ("?labelSelector=app%3Ddesk&cluster=paris", &[]),
    ];
    for (query, expected) in cases {
        let list = fixture.json(&format!("/v1/global-services{query}")).await;
        assert_eq!(names(&list), expected, "{query}");
    }
    let of_paris = fixture.json("/v1/global-services?cluster=paris").await;
    assert_eq!(backends(&of_paris["items"][0]), ["oslo 10.3.2.40", "paris 10.1.2.40", "tokyo 10.2.2.40"]);
}

#[tokio::test]
async fn exports_that_disagree_are_a_finding_and_a_filter() {
    let fixture = ApiFixture::with_view(mesh());
    let conflicts = || fixture.json("/v1/problems?kind=exportConflict");
    let found = conflicts().await;
    let finding = &found["items"][0];
    assert_eq!((found["items"].as_array().unwrap().len(), &finding["id"]), (1, &json!("exportConflict/shop/cart")));
    assert_eq!((&finding["severity"], &finding["clusters"]), (&json!("warning"), &json!(["paris", "tokyo"])));
    assert_eq!(finding["key"], "cilium/cache/serviceexports/v1/paris/shop/cart");
    let detail = "the exports of service shop/cart conflict: TypeConflict of paris (type: \"Headless\" of tokyo, the oldest export, is used); the oldest export is used";
    assert_eq!(finding["detail"], detail);
    assert_eq!(fixture.json("/v1/problems?cluster=tokyo").await["items"][0]["id"], "exportConflict/shop/cart");
    for (query, expected) in [
        ("conflict=any", &["shop/cart"][..]),
        ("conflict=TypeConflict", &["shop/cart"]),
        ("conflict=PortConflict", &[]),
        ("conflict=any&cluster=oslo", &["shop/cart"]),
        ("conflict=any&namespace=till", &[]),
    ] {
        assert_eq!(names(&fixture.json(&format!("/v1/global-services?{query}")).await), expected, "{query}");
    }
    let refused = fixture.get("/v1/global-services?conflict=ports").await;
    assert_eq!((refused.status.as_u16(), refused.json()["code"].clone()), (400, json!("badParameter")));

    // first the exports agree on the type, then they disagree on the ports
    fixture.change(put(key(Kind::ServiceExport, "paris", "shop/cart"), export(20, "Headless"), 30)).await;
    assert_eq!(conflicts().await["items"], json!([]));
    let Object::ServiceExport(mut other) = export(20, "Headless") else { panic!("an export is an export") };
    other.ports[0].port = 81;
    fixture.change(put(key(Kind::ServiceExport, "paris", "shop/cart"), Object::ServiceExport(other), 31)).await;
    let detail = conflicts().await["items"][0]["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("PortConflict of paris"), "{detail}");
    assert_eq!(names(&fixture.json("/v1/global-services?conflict=PortConflict").await), ["shop/cart"]);
    fixture.change(Change::Delete { key: key(Kind::ServiceExport, "tokyo", "shop/cart") }).await;
    assert_eq!(conflicts().await["items"], json!([]));
}

/// A hundred services of tokyo, and one of paris that comes last.
#[tokio::test]
async fn pages_that_end_early_still_lead_to_all_services() {
    let mut view = mesh();
    let put_in = |view: &mut View, cluster_name: &str, name: &str| {
        let change = put(key(Kind::Service, cluster_name, &format!("a/{name}")), Object::Service(service("a", name, "10.2.2.43")), 20);
        let scope = Scope { cluster: cluster(cluster_name), kind: Kind::Service };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    };
    (0..100).for_each(|number| put_in(&mut view, "tokyo", &format!("s{number:03}")));
    put_in(&mut view, "rome", "zoo");
    let fixture = ApiFixture::with_view(view).with_scan_limits(ScanLimits { slice: SliceLimit::Rows(10), page: SliceLimit::Rows(50) });
    let (mut found, mut lengths, mut token) = (Vec::new(), Vec::new(), String::new());
    while lengths.len() < 10 {
        let page = fixture.json(&format!("/v1/global-services?cluster=rome&limit=5{token}")).await;
        lengths.push(names(&page).len());
        found.extend(names(&page));
        let Some(next) = page["nextPageToken"].as_str() else { break };
        token = format!("&pageToken={next}");
    }
    assert_eq!((found, lengths), (vec!["a/zoo".to_owned()], vec![0, 0, 1]));
    assert_eq!(fixture.scans.total_usage().rows, 103);
}

#[tokio::test]
async fn pages_continue_by_name_and_follow_changes() {
    let fixture = ApiFixture::with_view(mesh());
    let first = fixture.json("/v1/global-services?limit=1").await;
    assert_eq!(names(&first), ["shop/cart"]);
    let added = Object::Service(service("shop", "zoo", "10.2.2.42"));
    fixture.change(put(key(Kind::Service, "tokyo", "shop/zoo"), added, 20)).await;
    let token = first["nextPageToken"].as_str().unwrap();
    let second = fixture.json(&format!("/v1/global-services?limit=1&pageToken={token}")).await;
    // the next page begins where the first page ended; its position is that of the first page, with
    // the newest sequence that was seen since
    let position = json!("v1.000000000000feed0000000000000008.7");
    assert_eq!((names(&second), &second["meta"]["position"]), (vec!["till/desk".to_owned()], &position));
    assert_eq!(second["nextPageToken"], Value::Null);
    fixture.change(Change::Delete { key: key(Kind::Service, "tokyo", "till/desk") }).await;
    assert_eq!(names(&fixture.json("/v1/global-services").await), ["shop/cart", "shop/zoo"]);
    assert_eq!(fixture.get("/v1/global-services/till/desk").await.status.as_u16(), 404);
}

#[tokio::test]
async fn an_affinity_selects_backends_with_a_reason() {
    let fixture = ApiFixture::with_view(mesh());
    let cases: [(&str, &[&str], &str); 7] = [
        ("none&from=tokyo", &["oslo 10.3.2.40", "paris 10.1.2.40", "tokyo 10.2.2.40"], "noAffinity"),
        ("local&from=tokyo", &["tokyo 10.2.2.40"], "localActive"),
        ("remote&from=tokyo", &["oslo 10.3.2.40", "paris 10.1.2.40"], "remoteHealthy"),
        // its only backend is terminating: healthy, but not active
        ("local&from=paris", &["oslo 10.3.2.40", "paris 10.1.2.40", "tokyo 10.2.2.40"], "localInactive"),
        ("remote&from=paris", &["oslo 10.3.2.40", "tokyo 10.2.2.40"], "remoteHealthy"),
        ("none&from=oslo", &["oslo 10.3.2.40"], "notGlobal"),
        ("remote&from=oslo", &["oslo 10.3.2.40"], "notGlobal"),
    ];
    for (query, expected, rule) in cases {
        let found = fixture.json(&format!("/v1/global-services/shop/cart?affinity={query}")).await;
        assert_eq!((backends(&found).as_slice(), &found["selection"]["rule"]), (texts(expected).as_slice(), &json!(rule)), "{query}");
        assert!(found["reason"].is_string() && found["clusters"].as_array().unwrap().len() == 3, "{query}: {found}");
    }
    // once all services of paris were read, it is known that paris has no till/desk
    let uri = "/v1/global-services?namespace=till&affinity=none&from=paris";
    let list = fixture.json(uri).await;
    let (used, rule) = (vec!["tokyo 10.2.2.41".to_owned()], json!("noAffinity"));
    assert_eq!((backends(&list["items"][0]), &list["items"][0]["selection"]["rule"]), (used, &rule));
    let (scope, etcd_cluster_id) = (Scope { cluster: cluster("paris"), kind: Kind::Service }, EtcdClusterId(1));
    let cursor = Cursor::new(etcd_cluster_id, Revision(20), true);
    fixture.command(Command::Apply { scope, changes: Vec::new(), cursor: Some(cursor) }).await;
    // the writer handles commands in order
    fixture.change(put(key(Kind::ServiceExport, "tokyo", "shop/other"), export(10, "Headless"), 21)).await;
    let list = fixture.json(uri).await;
    assert_eq!((backends(&list["items"][0]), &list["items"][0]["selection"]["rule"]), (Vec::new(), &json!("noLocalService")));
}

#[tokio::test]
async fn the_own_cluster_selects_backends_by_default() {
    let fixture = ApiFixture::with_view(mesh());
    let refused = fixture.get("/v1/global-services/shop/cart?affinity=local").await;
    assert_eq!((refused.status.as_u16(), parameter(&refused)), (400, "affinity".to_owned()));
    let fixture = ApiFixture::with_own_cluster(mesh(), Some(cluster("home")));
    let found = fixture.json("/v1/global-services/shop/cart?affinity=local").await;
    let expected =
        json!({ "from": "home", "affinity": "local", "rule": "localInactive", "local": true, "remote": true, "localKnown": false });
    assert_eq!(found["selection"], expected);
    assert_eq!(backends(&found).len(), 3);
}

/// Held entries stay in use, as in agents. Restored entries are marked (docs/develop/invariants.md,
/// 4 and 3).
#[tokio::test]
async fn the_backends_of_a_cluster_have_their_age() {
    let mut view = mesh();
    let lost = key(Kind::Service, "tokyo", "shop/cart");
    let scope = Scope { cluster: cluster("tokyo"), kind: Kind::Service };
    view.apply(Command::Apply { scope, changes: vec![Change::Hold { key: lost }], cursor: None }, SystemTime::now());
    view.restore(Record {
        key: key(Kind::Service, "rome", "shop/cart"),
        value: b"restored".as_slice().into(),
        good_value: None,
        object: Some(std::sync::Arc::new(Object::Service(service("shop", "cart", "10.4.2.40")))),
        rejection: None,
        source: SourceStamp::default(),
        create_sequence: Sequence(1),
        last_sequence: Sequence(1),
        version: 1,
        generation: 0,
    });
    let found = ApiFixture::with_view(view).json("/v1/global-services/shop/cart?affinity=remote&from=paris").await;
    let cluster_states = |items: &Value| -> Vec<Value> {
        items.as_array().unwrap().iter().map(|one| json!([one["cluster"], one["origin"], one["stale"]])).collect()
    };
    let (oslo, rome, tokyo) = (json!(["oslo", "live", null]), json!(["rome", "restored", null]), json!(["tokyo", "live", true]));
    assert_eq!(cluster_states(&found["backends"]), [oslo.clone(), rome.clone(), tokyo.clone()]);
    assert_eq!(cluster_states(&found["clusters"]), [oslo, json!(["paris", "live", null]), rome, tokyo]);
}

#[tokio::test]
async fn invalid_parameters_are_refused() {
    let fixture = ApiFixture::with_view(mesh());
    for (query, expected) in [
        ("affinity=nearest&from=paris", "affinity"),
        ("affinity=local&from=nowhere", "from"),
        ("affinity=local&from=No", "from"),
        ("from=paris", "from"),
    ] {
        for uri in ["/v1/global-services", "/v1/global-services/shop/cart"] {
            let answer = fixture.get(&format!("{uri}?{query}")).await;
            assert_eq!((answer.status.as_u16(), parameter(&answer)), (400, expected.to_owned()), "{uri}?{query}");
        }
    }
    assert_eq!(fixture.get("/v1/global-services/shop/nothing").await.status.as_u16(), 404);
    // the data of clusters without a task has an unknown age
    assert_eq!(fixture.get("/v1/global-services/shop/cart?maxAge=3600").await.status.as_u16(), 503);
}

/// The parameter that a refusal names.
fn parameter(answer: &TestResponse) -> String {
    answer.json()["detail"].as_str().unwrap().split([' ', ':']).next().unwrap().to_owned()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

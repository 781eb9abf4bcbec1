//! Impact of a missing cluster or namespace: effects on services for each affinity, identities and
//! CIDRs, pages.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, put};
use crate::api::tests::lists::global_services::export;
use crate::model::*;
use crate::view::View;

/// Returns a service with one backend for each address.
fn service(name: &str, ips: &[&str]) -> Service {
    let port = Port { name: String::new(), protocol: "TCP".to_owned(), port: 80 };
    let backend = |ip: &&str| Backend { ip: ip.parse().unwrap(), ports: [port.clone()].into(), hostname: String::new(), zone: None };
    Service {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        backends: ips.iter().map(backend).collect(),
        shared: true,
        include_external: true,
        ..Service::default()
    }
}

fn cidr(prefix: &str) -> Object {
    Object::Ip(IpEntry::new(ObjectPrefix { net: prefix.parse().unwrap(), host: false }, 2))
}

/// A mesh of paris, tokyo and oslo. `only` has backends only in paris, `both` in paris and tokyo,
/// `all` in all clusters, and `elsewhere` none in paris. `sink` is in paris without backends.
fn mesh() -> View {
    let mut view = View::starting_at(Sequence(0));
    let mut puts = vec![
        put(key(Kind::Identity, "paris", "65793"), identity(65_793, "cart"), 1),
        put(key(Kind::Identity, "paris", "300"), identity(300, "cart"), 2),
        put(key(Kind::Identity, "tokyo", "300"), identity(300, "cart"), 3),
        put(key(Kind::Ip, "paris", "10.1.0.0/16"), cidr("10.1.0.0/16"), 4),
        put(key(Kind::Ip, "paris", "10.9.0.0/16"), cidr("10.9.0.0/16"), 5),
        put(key(Kind::Ip, "tokyo", "10.9.0.0/16"), cidr("10.9.0.0/16"), 6),
        put(key(Kind::ServiceExport, "paris", "shop/cart"), export(20, "ClusterSetIP"), 7),
    ];
    for (cluster, name, ips) in [
        ("paris", "only", &["10.1.0.1", "10.1.0.2"][..]),
        ("tokyo", "only", &[]),
        ("paris", "both", &["10.1.0.1"]),
        ("tokyo", "both", &["10.2.0.1"]),
        ("paris", "all", &["10.1.0.1"]),
        ("tokyo", "all", &["10.2.0.1"]),
        ("oslo", "all", &["10.3.0.1"]),
        ("tokyo", "elsewhere", &["10.2.0.1"]),
        ("paris", "sink", &[]),
        ("oslo", "sink", &["10.3.0.1"]),
        ("paris", "lonely", &["10.1.0.9"]),
    ] {
        puts.push(put(key(Kind::Service, cluster, &format!("shop/{name}")), Object::Service(service(name, ips)), 9));
    }
    for change in puts {
        let Change::Put { key, .. } = &change else { continue };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        view.apply(Command::Apply { scope, changes: vec![change], cursor: None }, SystemTime::now());
    }
    for (name, kind) in ["paris", "tokyo", "oslo"].into_iter().flat_map(|name| Kind::ALL.map(|kind| (name, kind))) {
        view.apply(Command::Confirm(Scope { cluster: cluster(name), kind }), SystemTime::now());
    }
    view
}

/// Returns each item as `name effect (none local remote) lost/remaining [fallback clusters]`.
fn described(list: &Value) -> Vec<String> {
    let describe = |item: &Value| match item["kind"].as_str().unwrap() {
        "service" => {
            let effects = ["none", "local", "remote"].map(|affinity| item["affinities"][affinity].as_str().unwrap_or_default());
            let fallback = item["fallbackClusters"].as_array().into_iter().flatten().map(|name| name.as_str().unwrap()).collect::<Vec<_>>();
            format!(
                "{} {} ({}) {}/{} {fallback:?}",
                item["name"].as_str().unwrap(),
                item["effect"].as_str().unwrap(),
                effects.join(" "),
                item["lostBackends"],
                item["remainingBackends"]
            )
        }
        "identity" => format!("identity {} {}", item["identity"], item["effect"].as_str().unwrap()),
        _ => format!("cidr {} {}", item["prefix"].as_str().unwrap(), item["effect"].as_str().unwrap()),
    };
    list["items"].as_array().unwrap_or_else(|| panic!("{list}")).iter().map(describe).collect()
}

#[tokio::test]
async fn a_cluster_that_leaves_affects_services_by_affinity() {
    let fixture = ApiFixture::with_view(mesh());
    let expected = [
        "all losesSome (losesSome unnoticed losesSome) 1/2 []",
        "both fallsBack (losesSome unnoticed fallsBack) 1/1 [\"tokyo\"]",
        "cart unnoticed (unnoticed unnoticed unnoticed) 0/0 []",
        "lonely losesAll (losesAll losesAll losesAll) 1/0 []",
        "only losesAll (losesAll losesAll losesAll) 2/0 []",
        "sink unnoticed (unnoticed unnoticed unnoticed) 0/1 []",
        "identity 65793 onlyHere",
        "cidr 10.1.0.0/16 onlyHere",
    ];
    let found = fixture.json("/v1/impact?cluster=paris").await;
    assert_eq!(described(&found), expected);
    assert_eq!(found["items"][6]["labels"]["k8s:app"], json!("cart"), "{found}");
    // in pages, each of them begins where the one before ended
    let (mut items, mut token) = (Vec::new(), String::new());
    loop {
        let page = fixture.json(&format!("/v1/impact?cluster=paris&limit=1{token}")).await;
        items.extend(described(&page));
        let Some(next) = page["nextPageToken"].as_str() else { break };
        token = format!("&pageToken={next}");
    }
    assert_eq!(items, expected);
    let lines = fixture.json("/v1/impact?cluster=oslo&fields=name,effect").await;
    assert_eq!(lines["items"], json!([{"name": "all", "effect": "losesSome"}, {"name": "sink", "effect": "losesAll"}]));
}

#[tokio::test]
async fn without_a_namespace_each_cluster_keeps_its_own_backends() {
    let fixture = ApiFixture::with_view(mesh());
    let expected = [
        "all fallsBack (losesSome unnoticed fallsBack) 3/0 [\"oslo\", \"paris\", \"tokyo\"]",
        "both fallsBack (losesSome unnoticed fallsBack) 2/0 [\"paris\", \"tokyo\"]",
        "cart unnoticed (unnoticed unnoticed unnoticed) 0/0 []",
        "elsewhere losesAll (losesAll losesAll losesAll) 1/0 []",
        "lonely losesAll (losesAll losesAll losesAll) 1/0 []",
        "only losesAll (losesAll losesAll losesAll) 2/0 []",
        "sink losesAll (losesAll losesAll losesAll) 1/0 []",
        "identity 65793 onlyHere",
    ];
    assert_eq!(described(&fixture.json("/v1/impact?namespace=shop").await), expected);
    for other in ["mail", "shop,app%3Dcart", "no%20name"] {
        assert_eq!(fixture.json(&format!("/v1/impact?namespace={other}")).await["items"], json!([]), "{other}");
    }
}

#[tokio::test]
async fn exactly_one_part_of_the_mesh_must_be_named() {
    let fixture = ApiFixture::with_view(mesh());
    for (query, detail) in [
        ("", "cluster: give either cluster=, or namespace="),
        ("?cluster=paris&namespace=shop", "cluster: give either cluster=, or namespace="),
        ("?cluster=lyon", "cluster: there is no cluster lyon: /v1/clusters lists all clusters"),
        ("?namespace=sh*", "namespace: "),
    ] {
        let answer = fixture.get(&format!("/v1/impact{query}")).await;
        let found = answer.json();
        assert!(answer.status == 400 && found["detail"].as_str().unwrap().starts_with(detail), "{query}: {found}");
    }
}

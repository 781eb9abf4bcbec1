//! Explanations of addresses, and hints for addresses that no cluster announces.

use super::problems::{cidr, mesh, service, view};
use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, cluster, identity, key, node, pod, put};
use crate::model::{Change, Command, Kind, Phase, Scope};

#[tokio::test]
async fn an_explanation_has_every_entry_and_the_reason_for_its_choice() {
    let fixture = mesh(vec![
        put(key(Kind::Node, "paris", "worker"), node("worker", "172.18.1.2", "a"), 1),
        put(key(Kind::Node, "tokyo", "worker"), node("worker", "172.18.2.2", "a"), 1),
        put(key(Kind::Identity, "paris", "68352"), identity(68_352, "cart"), 1),
        put(key(Kind::Service, "paris", "shop/cart"), service("10.1.2.40"), 1),
        put(key(Kind::Ip, "tokyo", "10.1.2.40"), pod("10.1.2.40", 131_073, "172.18.2.2"), 1),
        put(key(Kind::Ip, "paris", "10.1.2.40/32"), cidr("10.1.2.40/32", 2, "172.18.1.2"), 1),
        put(key(Kind::Ip, "paris", "10.1.2.0/24"), cidr("10.1.2.0/24", 2, "172.18.1.9"), 1),
        put(key(Kind::Ip, "paris", "10.9.0.0/16"), cidr("10.9.0.0/16", 2, "172.18.1.2"), 1),
    ]);
    // paris is the first cluster in the order of names, but its entry is the newest
    fixture.change(put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", 68_352, "172.18.1.2"), 2)).await;
    let story = fixture.json("/v1/explain/10.1.2.40").await;
    let entries: Vec<Value> = story["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| json!([entry["prefix"], entry["host"], entry["cluster"], entry["verdict"], entry["reason"]]))
        .collect();
    assert_eq!(
        Value::from(entries),
        json!([
            ["10.1.2.40/32", true, "paris", "wins", "the newest entry for its prefix: tokyo wrote its entry earlier"],
            ["10.1.2.40/32", true, "tokyo", "outranked", "paris wrote the same prefix later"],
            ["10.1.2.40/32", false, "paris", "shadowed", "a host entry for the address takes precedence over a CIDR of full length"],
            ["10.1.2.0/24", false, "paris", "lessSpecific", "10.1.2.40/32 is more specific"],
            // the entries derived from the nodes' pod CIDRs, the newest first
            [
                "10.1.2.0/24",
                false,
                "tokyo",
                "outranked",
                "an entry that a cluster announces takes precedence over one that is derived from a node"
            ],
            [
                "10.1.2.0/24",
                false,
                "paris",
                "outranked",
                "an entry that a cluster announces takes precedence over one that is derived from a node"
            ],
        ])
    );
    assert_eq!((&story["match"]["identity"], &story["match"]["labels"]["k8s:app"]), (&json!(68_352), &json!("cart")));
    assert_eq!(
        (&story["match"]["nodeName"], &story["node"]["name"], &story["node"]["cluster"]),
        (&json!("worker"), &json!("worker"), &json!("paris"))
    );
    assert_eq!(story["services"], json!([{ "kind": "service", "cluster": "paris", "namespace": "shop", "name": "cart" }]));
    let problems: Vec<&str> = story["problems"].as_array().unwrap().iter().map(|finding| finding["id"].as_str().unwrap()).collect();
    assert_eq!(
        problems,
        ["danglingHostIP/paris/172.18.1.9", "danglingIdentity/tokyo/131073", "duplicateAddress/host/10.1.2.40", "overlappingPodCIDR/paris"]
    );
    let lookup = fixture.json("/v1/ipcache/lookup?ip=10.1.2.40").await;
    assert_eq!(lookup["match"], story["match"], "a lookup returns the winning entry");

    let nothing = fixture.json("/v1/explain/192.0.2.1").await;
    assert_eq!((&nothing["match"], &nothing["entries"], &nothing["problems"]), (&Value::Null, &json!([]), &json!([])));
    assert_eq!(fixture.get("/v1/explain/nowhere").await.status.as_u16(), 400);
}

/// An explained CIDR has the entries that cover all of it. Entries inside it are only counted.
#[tokio::test]
async fn a_cidr_is_explained_by_the_entries_that_cover_it() {
    let fixture = mesh(vec![
        put(key(Kind::Node, "paris", "worker"), node("worker", "172.18.1.2", "a"), 1),
        put(key(Kind::Ip, "paris", "10.9.0.0/16"), cidr("10.9.0.0/16", 2, "172.18.1.2"), 1),
        put(key(Kind::Ip, "tokyo", "10.9.1.0/24"), cidr("10.9.1.0/24", 2, "172.18.2.2"), 1),
        put(key(Kind::Ip, "paris", "10.9.1.7"), pod("10.9.1.7", 68_352, "172.18.1.2"), 1),
        put(key(Kind::Ip, "tokyo", "10.9.1.8"), pod("10.9.1.8", 131_073, "172.18.2.2"), 1),
    ]);
    let story = fixture.json("/v1/explain/10.9.1.0/24").await;
    let entries: Vec<Value> = story["entries"].as_array().unwrap().iter().map(|entry| json!([entry["prefix"], entry["verdict"]])).collect();
    assert_eq!(entries, [json!(["10.9.1.0/24", "wins"]), json!(["10.9.0.0/16", "lessSpecific"])]);
    assert_eq!((&story["ip"], &story["match"]["cluster"], &story["services"]), (&json!("10.9.1.0/24"), &json!("tokyo"), &json!([])));
    let detail = "2 entries inside 10.9.1.0/24, such as 10.9.1.7 of paris, are more specific and win for their addresses: /v1/ipcache?cidr=10.9.1.0/24 lists them";
    let inside = json!([{ "kind": "inside", "detail": detail, "clusters": ["paris", "tokyo"], "prefix": "10.9.1.0/24" }]);
    assert_eq!(story["hints"], inside);
    // host bits are cleared, and the slash may be encoded
    assert_eq!(fixture.json("/v1/explain/10.9.1.7%2F24").await["entries"], story["entries"]);
    // no entry for exactly this CIDR, and one inside it
    let part = fixture.json("/v1/explain/10.9.1.8/31").await;
    assert_eq!((&part["match"]["prefix"], &part["hints"][0]["kind"]), (&json!("10.9.1.0/24"), &json!("inside")));
    assert!(part["hints"][0]["detail"].as_str().unwrap().starts_with("1 entry inside 10.9.1.8/31, 10.9.1.8 of tokyo, is more specific"));
    // a CIDR of full length is the address
    assert_eq!(fixture.json("/v1/explain/10.9.1.7/32").await["ip"], "10.9.1.7");
    let nothing = fixture.json("/v1/explain/192.0.2.0/24").await;
    assert_eq!((&nothing["match"], &nothing["entries"]), (&Value::Null, &json!([])));
    let hints: Vec<&Value> = nothing["hints"].as_array().unwrap().iter().map(|hint| &hint["kind"]).collect();
    assert_eq!(hints, [&json!("restored")]);
    assert_eq!(fixture.get("/v1/explain/10.9.1.0/33").await.status.as_u16(), 400);
}

/// Returns the entries that cover an address with their verdicts, the cluster of the lookup's
/// match, and the cluster of the exact entry.
async fn verdicts(fixture: &ApiFixture) -> (Value, [Value; 2]) {
    let story = fixture.json("/v1/explain/10.1.2.40").await;
    let entries = story["entries"].as_array().unwrap().iter().map(|entry| json!([entry["cluster"], entry["verdict"], entry["reason"]]));
    let lookup = fixture.json("/v1/ipcache/lookup?ip=10.1.2.40").await;
    let exact = fixture.json("/v1/ipcache/10.1.2.40").await;
    (entries.collect(), [lookup["match"]["cluster"].clone(), exact["cluster"].clone()])
}

/// Agents get entries of their own cluster from Kubernetes or its kvstore. Entries of other
/// clusters do not overwrite them.
#[tokio::test]
async fn the_own_cluster_takes_precedence() {
    let own = put(key(Kind::Ip, "tokyo", "10.1.2.40"), pod("10.1.2.40", 131_073, "172.18.2.2"), 1);
    let later = put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", 68_352, "172.18.1.2"), 2);
    let won = json!([
        "tokyo",
        "wins",
        "it belongs to the own cluster: agents keep their own cluster's entries, and paris does not overwrite them"
    ]);
    let lost = json!([
        "paris",
        "outranked",
        "tokyo is the own cluster: agents keep their own cluster's entries, and no other cluster overwrites them"
    ]);
    let fixture = ApiFixture::with_own_cluster(view(std::slice::from_ref(&own)), Some(cluster("tokyo")));
    fixture.change(later.clone()).await;
    assert_eq!(verdicts(&fixture).await, (json!([won, lost]), [json!("tokyo"), json!("tokyo")]));
    // this also applies if only a node of the own cluster has the address
    let range = json!(["tokyo", "lessSpecific", "10.1.2.40/32 is more specific"]);
    let node = put(key(Kind::Node, "tokyo", "worker"), node("worker", "10.1.2.40", "a"), 1);
    let fixture = ApiFixture::with_own_cluster(view(&[node]), Some(cluster("tokyo")));
    fixture.change(later.clone()).await;
    assert_eq!(verdicts(&fixture).await, (json!([won, lost, range]), [json!("tokyo"), json!("tokyo")]));
    // of two other clusters, the later entry wins
    let fixture = ApiFixture::with_own_cluster(view(&[own]), Some(cluster("lyon")));
    fixture.change(later).await;
    assert_eq!(verdicts(&fixture).await.1, [json!("paris"), json!("paris")]);
}

/// A rejected value replaces nothing: an agent ignores it, or no longer has its key since its list
/// (docs/develop/protocol.md, trap 5).
#[tokio::test]
async fn a_rejected_value_does_not_win_an_address() {
    let pod_of = |name: &str, host: &str, revision| put(key(Kind::Ip, name, "10.1.2.40"), pod("10.1.2.40", 2, host), revision);
    let fixture = mesh(vec![pod_of("paris", "172.18.1.2", 1), pod_of("tokyo", "172.18.2.2", 1)]);
    assert_eq!(verdicts(&fixture).await.1, [json!("tokyo"), json!("tokyo")]);
    let Change::Put { key, source, .. } = pod_of("paris", "172.18.1.2", 2) else { panic!("a put is a put") };
    let refused = Change::Put { key, source, value: b"{".as_slice().into(), decoded: Err("not JSON".into()) };
    fixture.change(refused).await;
    let why = "its newest value was rejected, and tokyo has the same prefix: see /v1/rejected";
    let merit = "paris has the same prefix, but its newest value was rejected: see /v1/rejected";
    let expected = json!([["tokyo", "wins", merit], ["paris", "outranked", why]]);
    assert_eq!(verdicts(&fixture).await, (expected, [json!("tokyo"), json!("tokyo")]));
    fixture.change(pod_of("paris", "172.18.1.2", 3)).await;
    assert_eq!(verdicts(&fixture).await.1, [json!("paris"), json!("paris")]);
}

/// The texts of an explanation's hints of one kind.
fn hint_details<'a>(story: &'a Value, kind: &str) -> Vec<&'a str> {
    let hints = story["hints"].as_array().into_iter().flatten().filter(|hint| hint["kind"] == kind);
    hints.map(|hint| hint["detail"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn an_explanation_has_the_reason_of_a_rejection() {
    let rejected = |kind, cluster_name: &str, name: &str| {
        let Change::Put { source, .. } = put(key(kind, cluster_name, name), pod("10.0.0.1", 2, "172.18.1.2"), 2) else { panic!("a put") };
        Change::Put {
            key: key(kind, cluster_name, name),
            source,
            value: b"{".as_slice().into(),
            decoded: Err("ID 7 is out of range".into()),
        }
    };
    let fixture = mesh(vec![
        put(key(Kind::Node, "paris", "worker"), node("worker", "172.18.1.2", "a"), 1),
        put(key(Kind::Ip, "paris", "10.1.2.41"), pod("10.1.2.41", 2, "172.18.1.2"), 1),
        rejected(Kind::Ip, "paris", "10.1.2.40"),
        rejected(Kind::Ip, "tokyo", "10.7.0.0/16"),
        rejected(Kind::Ip, "paris", "fd00::1"),
    ]);
    // the node's pod CIDR contains it
    let story = fixture.json("/v1/explain/10.1.2.40").await;
    let why = "paris announces it, but the value was rejected, it is not used: ID 7 is out of range";
    assert_eq!((&story["match"]["prefix"], hint_details(&story, "rejected")), (&json!("10.1.2.0/24"), vec![why]));
    assert_eq!(hint_details(&story, "podCIDR"), ["in pod CIDR 10.1.2.0/24 of node paris/worker: a pod of that node could have it"]);
    assert_eq!(story["hints"][0]["key"], "cilium/cache/ip/v1/paris/10.1.2.40");
    // no cluster announces another address of the range
    let other = fixture.json("/v1/explain/10.1.2.42").await;
    assert!(
        hint_details(&other, "rejected").is_empty() && hint_details(&other, "podCIDR")[0].contains("no cluster announces it"),
        "{other}"
    );
    // no entry that covers it is valid
    let range = fixture.json("/v1/explain/10.7.9.9").await;
    let why = "tokyo announces the range 10.7.0.0/16, which contains it, but the value was rejected, it is not used: ID 7 is out of range";
    assert_eq!((&range["match"], hint_details(&range, "rejected")), (&Value::Null, vec![why]));
    assert_eq!(hint_details(&fixture.json("/v1/explain/fd00::1").await, "rejected").len(), 1);
    // if the key had a good value, this value stays in use, and the hint says so
    fixture.change(rejected(Kind::Ip, "paris", "10.1.2.41")).await;
    let old = fixture.json("/v1/explain/10.1.2.41").await;
    let why = "paris announces it, but the value was rejected, the last good value stays in use: ID 7 is out of range";
    assert_eq!((&old["match"]["prefix"], hint_details(&old, "rejected")), (&json!("10.1.2.41/32"), vec![why]));
    // an address may belong to a node whose value was rejected
    fixture.change(rejected(Kind::Node, "tokyo", "worker-9")).await;
    let story = fixture.json("/v1/explain/203.0.113.9").await;
    let why = "node tokyo/worker-9 was rejected, so its addresses and pod CIDRs are not known: ID 7 is out of range";
    assert_eq!(hint_details(&story, "rejected"), [why]);
}

/// Returns kind, clusters, prefix, node and key of each hint of an explanation.
fn hints(story: &Value) -> Vec<Value> {
    let hints = story["hints"].as_array().cloned().unwrap_or_default();
    hints.iter().map(|hint| json!([hint["kind"], hint["clusters"], hint["prefix"], hint["node"], hint["key"]])).collect()
}

#[tokio::test]
async fn an_explanation_of_a_miss_has_hints() {
    let fixture = mesh(vec![
        put(key(Kind::Node, "paris", "worker"), node("worker", "172.18.1.2", "a"), 1),
        put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", 68_352, "172.18.1.2"), 1),
        put(key(Kind::Ip, "tokyo", "10.9.0.7"), pod("10.9.0.7", 68_352, "172.18.1.2"), 1),
        put(key(Kind::Ip, "tokyo", "10.9.0.9"), pod("10.9.0.9", 68_352, "172.18.1.2"), 1),
    ]);
    assert_eq!(hints(&fixture.json("/v1/explain/10.1.2.40").await), Vec::<Value>::new(), "it has an entry");
    for name in ["paris", "tokyo"] {
        for kind in [Kind::Node, Kind::Ip] {
            fixture.command(Command::Confirm(Scope { cluster: cluster(name), kind })).await;
        }
    }
    fixture.change(Change::Delete { key: key(Kind::Ip, "paris", "10.1.2.40") }).await;
    let story = fixture.json("/v1/explain/10.1.2.40").await;
    assert_eq!(story["match"]["prefix"], "10.1.2.0/24");
    assert_eq!(story["entries"][0]["reason"], "the only entry that covers the address");
    let key_of = "cilium/cache/ip/v1/paris/10.1.2.40";
    let expected = [json!(["podCIDR", ["paris"], "10.1.2.0/24", "worker", null]), json!(["deleted", ["paris"], null, null, key_of])];
    assert_eq!(hints(&story), expected);
    let (gone, time) = (&story["hints"][1]["detail"], story["hints"][1]["time"].as_str().unwrap());
    assert_eq!(gone, &json!(format!("paris had an entry for it until {time}, when it was deleted")));
    // no entry covers the address: the hints are the nearest entry, and a cluster that was never
    // read
    fixture.command(Command::Phase { cluster: cluster("oslo"), phase: Phase::Connecting, cause: 0 }).await;
    fixture.change(Change::Delete { key: key(Kind::Ip, "tokyo", "10.9.0.9") }).await;
    let expected = [json!(["neverRead", ["oslo"], null, null, null]), {
        json!(["nearest", ["tokyo"], "10.9.0.7/32", null, "cilium/cache/ip/v1/tokyo/10.9.0.7"])
    }];
    assert_eq!(hints(&fixture.json("/v1/explain/10.9.0.3").await), expected);
    // a node's address that was deleted
    fixture.change(Change::Delete { key: key(Kind::Node, "paris", "worker") }).await;
    let was = hints(&fixture.json("/v1/explain/172.18.1.2").await);
    assert_eq!(was[0], json!(["deleted", ["paris"], null, "worker", "cilium/cache/nodes/v1/paris/worker#172.18.1.2"]));
}

//! Paging reaches every item once, and returns a position to continue from.

use std::time::SystemTime;

use serde_json::{Value, json};

use crate::api::tests::fixture::{ApiFixture, key, node, put};
use crate::model::{Change, Command, Epoch, Kind, Scope, Sequence};
use crate::view::View;

fn names(page: &Value, member: &str) -> Vec<String> {
    page["items"].as_array().unwrap().iter().map(|item| item[member].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn pages_have_each_item_once_and_the_position_of_the_first_page() {
    let mut view = View::starting_at(Sequence(0));
    let expected: Vec<String> = (0..25).map(|number| format!("worker-{number:02}")).collect();
    // each with three entries derived from it
    let changes: Vec<Change> = expected.iter().map(|name| put(key(Kind::Node, "paris", name), node(name, "10.0.0.1", "a"), 7)).collect();
    let scope = Scope { cluster: crate::api::tests::fixture::cluster("paris"), kind: Kind::Node };
    view.apply(Command::Apply { scope, changes, cursor: None }, SystemTime::now());
    let fixture = ApiFixture::with_view(view);

    let first = fixture.json("/v1/nodes?limit=10").await;
    fixture.change(put(key(Kind::Node, "paris", "worker-00"), node("worker-00", "10.0.0.2", "a"), 8)).await;
    let mut found = names(&first, "name");
    let mut page = first.clone();
    while let Some(token) = page["nextPageToken"].as_str().map(str::to_owned) {
        page = fixture.json(&format!("/v1/nodes?limit=10&pageToken={token}")).await;
        // the position of the first page, with the newest sequence that was seen since
        assert_eq!(page["meta"]["position"], json!("v1.000000000000feed0000000000000069.100"));
        found.extend(names(&page, "name"));
    }
    assert_eq!(found, expected);
    assert_eq!(first["meta"]["position"], json!("v1.000000000000feed.100"));
}

#[tokio::test]
async fn a_token_of_another_list_is_refused() {
    let fixture = ApiFixture::new();
    let page = fixture.json("/v1/ipcache?limit=1").await;
    let token = page["nextPageToken"].as_str().unwrap();
    assert_eq!(fixture.get(&format!("/v1/ipcache?limit=2&pageToken={token}")).await.status.as_u16(), 200);
    for uri in ["/v1/identities?", "/v1/ipcache?cluster=paris&", "/v1/identities/68352/ips?"] {
        let answer = fixture.get(&format!("{uri}pageToken={token}")).await;
        assert_eq!((answer.status.as_u16(), answer.json()["code"].clone()), (400, json!("badParameter")), "{uri}");
    }
}

#[tokio::test]
async fn a_token_of_another_start_is_refused() {
    let (before, after) = (ApiFixture::of_start(Epoch(1)), ApiFixture::of_start(Epoch(2)));
    let page = before.json("/v1/ipcache?limit=1").await;
    let uri = format!("/v1/ipcache?limit=1&pageToken={}", page["nextPageToken"].as_str().unwrap());
    assert_eq!(before.get(&uri).await.status.as_u16(), 200);
    let answer = after.get(&uri).await;
    assert_eq!((answer.status.as_u16(), answer.json()["code"].clone()), (400, json!("badParameter")));
}

/// A remote cluster may write keys of 4 KiB. Tokens must stay short, because later requests contain
/// them.
#[tokio::test]
async fn tokens_of_long_keys_have_at_most_512_characters() {
    let mut view = View::starting_at(Sequence(0));
    let names_of = |count: usize| (0..count).map(|number| format!("{}{number:02}", "k".repeat(4_000)));
    let changes: Vec<Change> = names_of(20).map(|name| put(key(Kind::Node, "paris", &name), node(&name, "10.0.0.1", "a"), 7)).collect();
    let scope = Scope { cluster: crate::api::tests::fixture::cluster("paris"), kind: Kind::Node };
    view.apply(Command::Apply { scope, changes, cursor: None }, SystemTime::now());
    let fixture = ApiFixture::with_view(view);
    let (mut found, mut uri) = (Vec::new(), "/v1/nodes?limit=3".to_owned());
    loop {
        let page = fixture.json(&uri).await;
        found.extend(names(&page, "name"));
        let Some(token) = page["nextPageToken"].as_str() else { break };
        assert!(token.len() <= 512, "{}", token.len());
        uri = format!("/v1/nodes?limit=3&pageToken={token}");
    }
    assert_eq!(found, names_of(20).collect::<Vec<_>>());

    let (mut count, mut uri) = (0, "/v1/changes?snapshot=true&kind=node&limit=3".to_owned());
    loop {
        let answer = fixture.json(&uri).await;
        count += answer["events"].as_array().unwrap().iter().filter(|event| event["type"] == "upsert").count();
        let next = answer["nextPosition"].as_str().unwrap();
        assert!(next.len() <= 512, "{}", next.len());
        if answer["more"] != true {
            break;
        }
        uri = format!("/v1/changes?kind=node&limit=3&after={next}");
    }
    assert_eq!(count, 20);
}

#[tokio::test]
async fn every_list_can_be_paged() {
    let fixture = ApiFixture::new();
    for (list, member) in [
        ("/v1/clusters", "name"),
        ("/v1/nodes", "name"),
        ("/v1/services", "name"),
        ("/v1/global-services", "name"),
        ("/v1/identities", "cluster"),
        ("/v1/identities/68352/ips", "cluster"),
        ("/v1/ipcache", "prefix"),
        ("/v1/entries", "key"),
        ("/v1/rejected", "key"),
    ] {
        let whole = names(&fixture.json(list).await, member);
        let mut found = Vec::new();
        let mut uri = format!("{list}?limit=1");
        loop {
            let page = fixture.json(&uri).await;
            found.extend(names(&page, member));
            let Some(token) = page["nextPageToken"].as_str() else { break };
            uri = format!("{list}?limit=1&pageToken={token}");
        }
        assert_eq!(found, whole, "{list}");
        assert!(!whole.is_empty(), "{list}");
    }
}

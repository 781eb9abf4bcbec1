//! Reads nodes, services, lookups, an error, an unchanged list, the stream and all changes with the
//! client generated from the OpenAPI document. Usage: `read-all BASE_URL`.
//!
//! Prints everything as one JSON object, like the other generated clients.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use futures::StreamExt;
use serde_json::json;

progenitor::generate_api!("../../../openapi/openapi-3.0.json");

use types::{EventType, IpcacheEntry, LookupRequest, Node, StreamedKind, StreamedObject, WatchEvent};

/// Number of nodes per page.
const NODES: Option<NonZeroU64> = NonZeroU64::new(3);

/// Number of changes per answer.
const CHANGES: Option<NonZeroU64> = NonZeroU64::new(7);

fn entry(matching: Option<&IpcacheEntry>) -> String {
    matching.map(|entry| format!("{}/{}", entry.cluster, entry.prefix)).unwrap_or_default()
}

async fn nodes(client: &Client) -> Vec<Node> {
    let (mut nodes, mut token) = (Vec::new(), None);
    loop {
        let page = client.list_nodes(None, None, None, None, None, NODES, None, None, None, None, token.as_ref(), None, None).await;
        let page = page.unwrap().into_inner();
        nodes.extend(page.items);
        let Some(next) = page.next_page_token else { return nodes };
        token = Some(next.try_into().unwrap());
    }
}

/// Describes an event by its object, decoded according to its kind.
fn describe(event: &WatchEvent) -> String {
    match event.object.as_ref().unwrap() {
        StreamedObject::Node(node) => format!("node {}/{}", node.cluster, node.name),
        StreamedObject::Service(service) => format!("service {}/{}/{}", service.cluster, service.namespace, service.name),
        StreamedObject::IpcacheEntry(entry) => format!("ipcache {}", entry.prefix),
        StreamedObject::Finding(finding) => format!("problem {}", finding.id),
        _ => event.kind.as_ref().unwrap().to_string(),
    }
}

async fn changes(client: &Client) -> BTreeMap<String, String> {
    let mut objects = BTreeMap::new();
    let mut after = None;
    loop {
        let answer = client
            .list_changes(
                after.as_ref(),
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                CHANGES,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                None,
                Some(true),
                None,
            )
            .await;
        let answer = answer.unwrap().into_inner();
        for event in answer.events {
            match event.type_ {
                EventType::Reset => objects.clear(),
                EventType::Upsert => _ = objects.insert(event.key.clone().unwrap(), describe(&event)),
                EventType::Delete => _ = objects.remove(&event.key.unwrap()),
                _ => {}
            }
        }
        if !answer.more {
            return objects;
        }
        after = Some(answer.next_position.try_into().unwrap());
    }
}

/// Follows the stream until it has caught up, after a position if there is one.
async fn synced(client: &Client, position: Option<&str>) -> WatchEvent {
    let kinds = vec![StreamedKind("node".to_owned())];
    let position = position.map(|text| text.parse().unwrap());
    let stream = client
        .watch_events(
            None,
            None,
            None,
            None,
            None,
            Some(&kinds),
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            None,
            Some(true),
            position.as_ref(),
        )
        .await;
    let (mut stream, mut text) = (stream.unwrap().into_inner().into_inner(), Vec::new());
    while let Some(bytes) = stream.next().await {
        text.extend_from_slice(&bytes.unwrap());
        let events = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line.strip_prefix(b"data:")?).ok());
        if let Some(event) = events.into_iter().find(|event: &WatchEvent| event.type_ == EventType::Synced) {
            return event;
        }
    }
    panic!("the stream ended");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::new(&std::env::args().nth(1).expect("the base URL of a meshkeep"));
    let nodes = nodes(&client).await;
    let ips: Vec<String> = nodes.iter().map(|node| node.addresses[0].ip.clone()).collect();
    let list_services = async |tag| client.list_services(None, None, None, None, None, None, None, None, None, None, None, None, None, tag).await;
    let services = list_services(None).await.unwrap();
    let tag = services.headers()["ETag"].to_str().unwrap().to_owned();
    let services = services.into_inner();
    let Err(Error::UnexpectedResponse(unchanged)) = list_services(Some(&tag)).await else { panic!("the list changed") };
    let lookup = client.lookup_ip(None, &ips[0].parse().unwrap(), None, None, None, None).await.unwrap().into_inner();
    let batch = client.lookup_ips(None, None, None, None, &LookupRequest { ips }).await.unwrap().into_inner();
    let refused = client.get_node(&"nowhere".parse().unwrap(), &"nobody".parse().unwrap(), None, None, None, None, None).await.unwrap_err();
    let Error::ErrorResponse(problem) = refused else { panic!("no problem document: {refused}") };
    let snapshot = synced(&client, None).await;
    let replay = synced(&client, snapshot.position.as_deref()).await;
    let read = json!({
        "nodes": nodes.iter().map(|node| format!("{}/{}", node.cluster, node.name)).collect::<Vec<_>>(),
        "services": services.items.iter().map(|one| format!("{}/{}/{}", one.cluster, one.namespace, one.name)).collect::<Vec<_>>(),
        "lookup": entry(lookup.match_.as_ref()),
        "batch": batch.items.iter().map(|item| entry(item.match_.as_ref())).collect::<Vec<_>>(),
        "problem": problem.code,
        "unchanged": unchanged.status().as_u16(),
        "stream": [snapshot.mode, replay.mode],
        "changes": changes(&client).await,
    });
    println!("{read}");
}

//! Reads nodes, services, lookups, an error and all changes with the client generated from the
//! OpenAPI document. Usage: `read-all BASE_URL`.
//!
//! Prints everything as one JSON object, like the other generated clients.

use std::collections::BTreeMap;

use serde_json::json;

progenitor::generate_api!(spec = "../../../openapi/openapi-3.0.json", interface = Builder);

use types::{EventType, IpcacheEntry, LookupRequest, Node, StreamedObject, WatchEvent};

const PAGE_LIMIT: u64 = 3;

fn entry(matching: Option<&IpcacheEntry>) -> String {
    matching.map(|entry| format!("{}/{}", entry.cluster, entry.prefix)).unwrap_or_default()
}

async fn nodes(client: &Client) -> Vec<Node> {
    let (mut nodes, mut token) = (Vec::new(), None);
    loop {
        let mut request = client.list_nodes().limit(PAGE_LIMIT);
        if let Some(token) = token {
            request = request.page_token::<String>(token);
        }
        let page = request.send().await.unwrap().into_inner();
        nodes.extend(page.items);
        token = page.next_page_token;
        if token.is_none() {
            return nodes;
        }
    }
}

/// Describes an event by its object, decoded according to its kind.
fn describe(event: &WatchEvent) -> String {
    match event.object.as_ref().unwrap() {
        StreamedObject::Node(node) => format!("node {}/{}", node.cluster, node.name),
        StreamedObject::Service(service) => format!("service {}/{}/{}", service.cluster, service.namespace, service.name),
        StreamedObject::IpcacheEntry(entry) => format!("ipcache {}", entry.prefix),
        StreamedObject::Finding(finding) => format!("problem {}", finding.id),
        _ => event.kind.unwrap().to_string(),
    }
}

async fn changes(client: &Client) -> BTreeMap<String, String> {
    let mut objects = BTreeMap::new();
    let mut after: Option<String> = None;
    loop {
        let request = client.list_changes().limit(7);
        let request = match after {
            None => request.snapshot(true),
            Some(after) => request.after(after),
        };
        let answer = request.send().await.unwrap().into_inner();
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
        after = Some(answer.next_position);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::new(&std::env::args().nth(1).expect("the base URL of a meshkeep"));
    let nodes = nodes(&client).await;
    let ips: Vec<String> = nodes.iter().map(|node| node.addresses[0].ip.clone()).collect();
    let services = client.list_services().send().await.unwrap().into_inner();
    let lookup = client.lookup_ip().ip(ips[0].clone()).send().await.unwrap().into_inner();
    let batch = client.lookup_ips().body(LookupRequest { ips }).send().await.unwrap().into_inner();
    let refused = client.get_node().cluster("nowhere").name("nobody").send().await.unwrap_err();
    let progenitor_client::Error::ErrorResponse(problem) = refused else { panic!("no problem document: {refused}") };
    let read = json!({
        "nodes": nodes.iter().map(|node| format!("{}/{}", node.cluster, node.name)).collect::<Vec<_>>(),
        "services": services.items.iter().map(|one| format!("{}/{}/{}", one.cluster, one.namespace, one.name)).collect::<Vec<_>>(),
        "lookup": entry(lookup.match_.as_ref()),
        "batch": batch.items.iter().map(|item| entry(item.match_.as_ref())).collect::<Vec<_>>(),
        "problem": problem.code,
        "changes": changes(&client).await,
    });
    println!("{read}");
}

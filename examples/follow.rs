//! Keeps a copy of the ipcache of all clusters, with the client that progenitor generates from openapi-3.0.json: follow http://127.0.0.1:9870

use std::{collections::BTreeMap, time::Duration};

progenitor::generate_api!(spec = "../../../openapi/openapi-3.0.json", interface = Builder, timeout = 60);

use types::{EventType, StreamedKind};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let client = Client::new(&std::env::args().nth(1).expect("the URL of a meshkeep"));
    let (mut entries, mut position) = (BTreeMap::new(), None::<String>);
    loop {
        let mut request = client.list_changes().kind(vec![StreamedKind("ipcache".into())]).snapshot(true).wait_seconds(30_u64);
        if let Some(position) = &position {
            request = request.after(position.as_str());
        }
        match request.send().await {
            Ok(answer) => {
                let answer = answer.into_inner();
                for event in answer.events {
                    match (event.type_, event.key.unwrap_or_default()) {
                        (EventType::Reset, _) => entries.clear(), // the position is no longer valid: everything is sent again
                        (EventType::Upsert, key) => _ = entries.insert(key, event.object),
                        (EventType::Delete, key) => _ = entries.remove(&key),
                        _ => {}
                    }
                }
                position = Some(answer.next_position); // with more to follow, the copy is incomplete
                if !answer.more {
                    println!("{}", serde_json::json!({ "position": position, "entries": entries }));
                }
            }
            Err(error) => {
                eprintln!("{error} - trying again");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

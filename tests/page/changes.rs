//! The recent changes of the Changes part: in several answers, too many of them, and unknown ones.

use serde_json::{Value, json};

use super::SimulatedMesh;
use super::browser::Page;
use crate::harness::meshkeep::Home;

/// Position in the last answer.
const POSITION: &str = "v1.e8c13768b68d8dc4.7";

/// Returns an answer of `/v1/changes` with a change of each address.
fn answer(ips: &[&str], more: bool) -> Value {
    let event = |ip: &&str| {
        let object = json!({"prefix": format!("{ip}/32"), "host": true, "cluster": "paris", "identity": 70_001, "changedAt": "2026-01-01T00:00:00Z"});
        json!({"type": "upsert", "kind": "ipcache", "key": format!("cilium/cache/ip/v1/paris/{ip}"), "meta": {"cluster": "paris"}, "object": object})
    };
    json!({"events": ips.iter().map(event).collect::<Vec<_>>(), "nextPosition": if more { "inside" } else { POSITION }, "more": more})
}

/// Returns a script that answers requests for a path, one after the other, and records all
/// requests. A number is a status.
pub(super) fn answer_requests(path: &str, answers: &[Value]) -> String {
    format!(
        "const real = window.realFetch ??= window.fetch.bind(window), answers = {}; window.requested = []; \
         window.fetch = (path, options) => {{ window.requested.push(path); if (!path.startsWith('{path}')) return real(path, options); \
         const answer = answers.shift(); \
         return Promise.resolve(typeof answer === 'number' ? new Response('{{}}', {{ status: answer }}) : new Response(JSON.stringify(answer))); }};",
        json!(answers)
    )
}

#[tokio::test]
async fn the_changes_part_says_which_recent_changes_it_shows() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 20, 0, "");
    let page = Page::open(&simulated.url).await;
    page.wait_for_text(&["following"]).await;
    let (known, left_out) = ("in the last ten minutes and since then", "Further changes of the last ten minutes are left out");
    let reset = json!({"events": [{"type": "reset", "reason": "expired"}], "nextPosition": POSITION, "more": false, "reset": "expired"});
    let unknown = "The changes of the last ten minutes are not known";
    for (name, answers, words, lines, continues) in [
        ("two answers", vec![answer(&["10.1.0.1"], true), answer(&["10.1.0.2"], false)], known, 2, true),
        ("none", vec![answer(&[], false)], "No changes in the last ten minutes", 0, true),
        ("too many", vec![answer(&["10.1.0.1"], true); 11], left_out, 11, false),
        ("a failure later", vec![answer(&["10.1.0.1"], true), json!(503)], left_out, 2, false),
        ("a failure", vec![json!(503)], unknown, 0, false),
        ("a reset", vec![reset], unknown, 0, false),
    ] {
        page.go_to("#/mesh").await;
        page.wait_for("the mesh", "return document.querySelector('.mesh')").await;
        page.chromium.run(&answer_requests("/v1/changes", &answers)).await;
        page.go_to("#/changes?kind=ipcache").await;
        page.wait_for_text(&[words]).await;
        assert_eq!(page.chromium.run("return document.querySelectorAll('.change').length").await, json!(lines), "{name}");
        let stream = "return window.requested.filter((path) => path.startsWith('/v1/events?kind=ipcache')).map((path) => new URLSearchParams(path.split('?')[1]).get('after'))";
        assert_eq!(page.chromium.run(stream).await, json!([continues.then_some(POSITION)]), "{name}");
    }
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

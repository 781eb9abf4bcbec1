//! Several windows of the page over HTTP/1.1, where a browser opens six connections to one server.

use serde_json::json;

use super::SimulatedMesh;
use super::browser::Page;
use crate::harness::meshkeep::Home;

/// Sets whether the window claims to be hidden.
async fn set_hidden(page: &Page, is_hidden: bool) {
    let script = format!(
        "Object.defineProperty(document, 'hidden', {{ get: () => {is_hidden}, configurable: true }}); document.dispatchEvent(new Event('visibilitychange'))"
    );
    page.chromium.run(&script).await;
}

#[tokio::test]
async fn a_surplus_window_says_why_it_waits() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 8, 0, "calm");
    let page = Page::open(&simulated.url).await;
    let address = json!({"url": format!("{}/#/explain/10.2.1.9", simulated.url)});
    page.chromium.ask("url", &address).await;
    page.wait_for_text(&["following", "wins"]).await;
    for _ in 0..2 {
        let window = page.chromium.ask("window/new", &json!({"type": "window"})).await;
        page.chromium.ask("window", &json!({"handle": window["handle"]})).await;
        page.chromium.ask("url", &address).await;
        page.wait_for_text(&["wins"]).await;
    }
    page.wait_for_text(&["This window waits for a stream", "2 older windows of this page use 4", "polling"]).await;
    page.save_screenshot("surplus").await;
}

#[tokio::test]
async fn a_hidden_window_is_paused_and_not_lost() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 8, 0, "calm");
    let page = Page::open(&simulated.url).await;
    page.wait_for_text(&["8/8 live", "following"]).await;
    set_hidden(&page, true).await;
    page.wait_for_text(&["paused while this window is hidden"]).await;
    let shown = page.chromium.run("return [document.title, document.querySelector('link[rel=icon]').href.split('/').pop()]").await;
    assert_eq!(shown, json!(["paused · Mesh · meshkeep", "icon-gone.svg"]));
    set_hidden(&page, false).await;
    page.wait_for_text(&["8/8 live", "following"]).await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

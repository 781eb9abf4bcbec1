//! Explanations of an address at an earlier time: its timeline with a gap, the time picker, an
//! uncertain time, and a page without a history.

use serde_json::json;

use super::SimulatedMesh;
use super::browser::{Page, THEMES, WIDTHS};
use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::SMALL;
use crate::harness::meshkeep::Home;
use crate::harness::next_second;
use crate::harness::scene::Scene;

/// Seconds for which the cluster of a test cannot be reached.
const OUTAGE_SECONDS: usize = 4;

/// Returns a script that returns the text of the timeline's current version, unless it is `newest`.
const CURRENT: &str = "return document.querySelector('.times .timeline [aria-current]')?.closest('li').innerText ?? ''";

/// Checks the explanation in both themes and widths.
async fn assert_everywhere(page: &Page, name: &str) {
    for theme in THEMES {
        for width in WIDTHS {
            page.set_appearance(theme, width).await;
            let what = format!("{name}-{theme}-{width}");
            page.assert_readable(&what).await;
            page.assert_accessible(&what).await;
            page.save_screenshot(&what).await;
        }
    }
    page.set_appearance("light", WIDTHS[0]).await;
}

/// Enters a time in the picker and submits it.
async fn pick(page: &Page, time: &str) {
    let script = format!(
        "const input = document.querySelector('.picker input'); input.value = {}; \
         input.dispatchEvent(new Event('input', {{ bubbles: true }})); return input.value",
        json!(time)
    );
    page.chromium.run(&script).await;
    page.wait_for("the entered time", &format!("return document.querySelector('.picker input').value === {}", json!(time))).await;
    page.chromium.run("document.querySelector('.picker [type=submit]').click()").await;
}

#[tokio::test]
async fn an_address_that_moves_has_a_timeline_with_its_gap() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, SMALL).await;
    scene.wait_until_settled("the first list").await;
    let key = scene.remotes[0].clusters[0].keys_of("ip").into_iter().find(|key| !key.contains(':')).unwrap();
    let address = key.rsplit('/').next().unwrap().to_owned();
    let newest = format!("#/explain/{address}");
    next_second().await;
    next_second().await;
    scene.remotes[0].change_pod(&key, Some("second")).await;
    scene.wait_until_settled("a change").await;
    next_second().await;

    // the timeline follows the changes
    let page = Page::open_at(scene.meshkeep().url(), &newest).await;
    page.wait_for_text(&["newest", "→ moved/second", "the first known version", "The history begins at"]).await;
    scene.remotes[0].change_pod(&key, Some("third")).await;
    page.wait_for_text(&["pod moved/second → moved/third"]).await;
    assert!(!page.text().await.contains("As of"));

    // a version is chosen with the keyboard alone, and the address bar keeps its time
    let is_second = "const row = document.activeElement.closest('.version'); return row?.innerText.includes('→ moved/second') ?? false";
    for _ in 0..20 {
        if page.chromium.run(is_second).await == json!(true) {
            break;
        }
        page.press(&["j"]).await;
    }
    page.press(&["Enter"]).await;
    let is_shown = "return document.querySelector('.answer .pod')?.innerText === 'moved/second'";
    for round in ["chosen", "reloaded"] {
        page.wait_for(round, is_shown).await;
        page.wait_for_text(&["As of", "This is not the newest data.", "back to now"]).await;
        page.wait_for("the current version", &format!("{CURRENT}.includes('→ moved/second')")).await;
        let hash = page.chromium.run("return location.hash").await;
        assert!(hash.as_str().unwrap().starts_with(&format!("{newest}?at=20")), "{hash}");
        assert!(!page.text().await.contains("The answer is not certain"));
        page.reload().await;
    }
    page.wait_for("the link", "return document.querySelector('.as-of a')").await;
    page.chromium.run("document.querySelector('.as-of a').focus()").await;
    page.press(&["Enter"]).await;
    page.wait_for("the newest pod", &is_shown.replace("second", "third")).await;
    assert_eq!(page.chromium.run("return [location.hash, document.activeElement.id]").await, json!([newest, "main"]));

    // a change during an outage has no exact time
    scene.remotes[0].proxy.cut().await;
    page.wait_for_text(&["0/1 live"]).await;
    for _ in 0..OUTAGE_SECONDS {
        next_second().await;
    }
    scene.remotes[0].change_pod(&key, Some("fourth")).await;
    scene.remotes[0].proxy.restore().await;
    scene.wait_until_settled("an outage").await;
    page.wait_for_text(&["Gap", "meshkeep did not observe c01", "pod moved/third → moved/fourth", "between 20"]).await;
    let history = scene.meshkeep().get(&format!("/v1/history?ip={address}")).await;
    let end: jiff::Timestamp = history["gaps"][0]["to"].as_str().unwrap().parse().unwrap();
    let inside = jiff::Timestamp::from_second(end.as_second() - 2).unwrap();
    pick(&page, inside.to_string().trim_end_matches('Z')).await;
    page.wait_for_text(&["The answer is not certain", "possible versions", "The answer is about the first one"]).await;
    page.wait_for("both candidates", "const text = document.querySelector('.candidates').innerText; return text.includes('moved/third') && text.includes('moved/fourth')")
        .await;
    assert_everywhere(&page, "timeline-gap").await;

    // the history of this mesh is younger than ten minutes
    page.chromium.run("[...document.querySelectorAll('.picker button')].find((one) => one.innerText === '10m ago').click()").await;
    page.wait_for_text(&["the history begins at", "choose a later time", "back to now"]).await;
    assert_eq!(page.console_errors(&["400"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_explanation_says_that_there_is_no_history_or_no_version() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let page = Page::open_at(meshkeep.url(), "#/explain/10.1.2.3").await;
    page.wait_for_text(&["No version of an entry for this address is known", "newest", "10m ago"]).await;
    assert_everywhere(&page, "timeline-empty").await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());

    let mut home = Home::new().with_flags(&["--history=off"]);
    let meshkeep = home.start().await;
    let page = Page::open_at(meshkeep.url(), "#/explain/10.1.2.3").await;
    page.wait_for_text(&["meshkeep keeps no history", "--history off", "no entry"]).await;
    assert_eq!(page.chromium.run("return document.querySelector('.picker')").await, json!(null));
    assert_everywhere(&page, "timeline-off").await;
    // a link from a meshkeep with a history
    page.go_to("#/explain/10.1.2.3?at=10m").await;
    page.wait_for_text(&["meshkeep keeps no history", "back to now"]).await;
    page.wait_for("no answer", "return document.querySelector('.answer') === null").await;
    assert_eq!(page.console_errors(&["404"]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_timeline_has_pages_and_names_each_change() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 16, 0, "calm");
    let page = Page::open_at(&simulated.url, "#/explain/10.2.1.9").await;
    page.wait_for_text(&[
        "pod shop/cart-2 → shop/cart-3; node 172.18.2.2 → 172.18.2.1; identity 131330 → 131331",
        "cluster osaka → tokyo; pod shop/cart-1 → shop/cart-2",
        "meshkeep did not observe tokyo (addresses, nodes)",
        "meshkeep lost the changes",
        "3 versions, and there may be older ones",
    ])
    .await;
    page.chromium.run("[...document.querySelectorAll('.times button')].at(-1).click()").await;
    page.wait_for_text(&["announced again", "pod shop/cart-0 → shop/cart-1", "the first known version", "4 versions."]).await;
    // a duration is the time of the answer
    page.go_to("#/explain/10.2.1.9?at=115m").await;
    page.wait_for_text(&["As of", "2 h ago", "possible versions"]).await;
    page.wait_for("the current version", &format!("{CURRENT}.includes('cart-1')")).await;
    let commands = "return [...document.querySelectorAll('.commands button')].map((one) => one.title)";
    let url = &simulated.url;
    let expected = [format!("curl -s '{url}/v1/explain/10.2.1.9?at=115m'"), format!("meshkeep explain 10.2.1.9 --at=115m --server {url}")];
    assert_eq!(page.chromium.run(commands).await, json!(expected));
    assert_everywhere(&page, "timeline-candidates").await;
    page.chromium.run("document.querySelectorAll('.candidates a')[1].click()").await;
    page.wait_for("the second candidate", "return document.querySelector('.answer .pod')?.innerText === 'shop/cart-2'").await;
    assert!(!page.text().await.contains("possible versions"));
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

//! Colours of the states: one state has one colour in the rows, the squares, the legend, the bar,
//! the badge, the title and the icon, at each width and in both themes.

use serde_json::json;

use super::browser::{ALL_WIDTHS, Page, THEMES};
use super::{SimulatedMesh, start_with_token};
use crate::harness::meshkeep::{Home, http};

/// Script that returns each colour of a state on the page: `[[place, state, [red, green, blue]]]`.
const COLOURS: &str = "
    const numbers = (colour) => colour.match(/\\d+/g).slice(0, 3).map(Number);
    const state = (element) => [...element.closest('[class*=is-]').classList].find((one) => /^is-/.test(one)).slice(3);
    const all = (place, selector, property) => [...document.querySelectorAll(selector)].map((one) => [place, state(one), numbers(getComputedStyle(one)[property])]);
    return [
        ...all('row', '.mesh tr .phase .dot', 'borderTopColor'), ...all('strip', '.strip .square', 'borderTopColor'),
        ...all('legend', '.legend .square', 'borderTopColor'), ...all('header', '.facts .dot', 'borderTopColor'),
        ...all('badge', '.badge', 'backgroundColor'), ...all('logo', '.logo', 'backgroundColor')];";

/// Script that returns up to five elements with a green or teal colour.
const GREEN: &str = "
    const isGreen = (colour) => { const [r, g, b, a] = colour.match(/[\\d.]+/g)?.map(Number) ?? [0, 0, 0]; return a !== 0 && g > r + 25 && g > b; };
    return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility()).flatMap((one) =>
        ['color', 'backgroundColor', 'borderTopColor', 'fill', 'stroke'].filter((name) => isGreen(getComputedStyle(one)[name])).map((name) => `${one.outerHTML.slice(0, 80)} ${name}`)).slice(0, 5);";

/// Checks that each state has one colour, of the right hue. Returns `place state` of everything
/// that has a colour.
async fn assert_colours(page: &Page, what: &str) -> Vec<String> {
    let found = page.chromium.run(COLOURS).await;
    let mut colour_by_state = std::collections::BTreeMap::new();
    let mut places = Vec::new();
    for one in found.as_array().unwrap() {
        let (place, state) = (one[0].as_str().unwrap(), one[1].as_str().unwrap());
        let colour: [i64; 3] = serde_json::from_value(one[2].clone()).unwrap();
        let first = *colour_by_state.entry(state).or_insert(colour);
        assert_eq!(first, colour, "{what}: {state} in {place}");
        places.push(format!("{place} {state}"));
        let [red, green, blue] = colour;
        let is_expected = match state {
            "good" => green > red + 25 && green > blue,
            "bad" => red > green + 80 && red > blue + 80,
            "warn" => red > green && green > blue + 60,
            "busy" => blue > red + 25,
            _ => red.abs_diff(green) < 40 && red.abs_diff(blue) < 60,
        };
        assert!(is_expected, "{what}: {state} in {place} is {colour:?}");
    }
    places.sort();
    places.dedup();
    places
}

/// Checks the state in the title and in the icon of the window.
async fn assert_window(page: &Page, icon: &str, title: &str) {
    let script = "return [document.querySelector('link[rel=icon]').href.split('/').pop(), document.title]";
    let shown = page.chromium.run(script).await;
    assert_eq!(shown, json!([icon, title]));
}

/// Checks the colours and the accessibility of the mesh at each width and in both themes.
async fn assert_everywhere(page: &Page, name: &str, expected: &[&str]) {
    for theme in THEMES {
        for width in ALL_WIDTHS {
            page.set_appearance(theme, width).await;
            let what = format!("{name}-{theme}-{width}");
            let places = assert_colours(page, &what).await;
            assert!(expected.iter().all(|place| places.iter().any(|one| one == place)), "{what}: {places:?}");
            page.assert_readable(&what).await;
            page.assert_accessible(&what).await;
            page.save_screenshot(&what).await;
        }
    }
}

#[tokio::test]
async fn a_state_has_one_colour_everywhere() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start_with(meshkeep.url(), 16, 0, "");
    let page = Page::open(&simulated.url).await;
    page.wait_for("the badge", "return document.querySelector('.badge')").await;
    let expected = [
        "badge bad",
        "header bad",
        "legend bad",
        "legend busy",
        "legend good",
        "legend warn",
        "logo bad",
        "row bad",
        "row busy",
        "row good",
        "row warn",
        "strip bad",
        "strip busy",
        "strip good",
        "strip warn",
    ];
    assert_everywhere(&page, "degraded", &expected).await;
    assert_window(&page, "icon-bad.svg", "11/16 live, 4 problems · Mesh · meshkeep").await;
    // the other views, on a phone and on a desktop
    for (theme, width) in [("light", 1_440), ("dark", 390)] {
        page.set_appearance(theme, width).await;
        for (name, hash, words) in [
            ("row", "#/mesh/osaka", "etcd cluster"),
            ("explain", "#/explain/10.2.1.9", "wins"),
            ("services", "#/services/shop/cart?from=paris&affinity=local", "shop/cart-21"),
            ("problems", "#/problems", "critical"),
            ("changes", "#/changes", "No changes"),
            ("find", "#/find/10.2.0.0%2F16", "inside 10.2.0.0/16"),
        ] {
            page.go_to(hash).await;
            page.wait_for_text(&[words]).await;
            page.assert_accessible(&format!("{name}, {theme}, {width}")).await;
        }
    }
    // without meshkeep, nothing is green, and the states of the clusters are unknown
    page.go_to("#/mesh").await;
    drop(simulated);
    page.wait_for_text(&["meshkeep does not answer", "was live"]).await;
    assert_everywhere(&page, "gone", &["badge gone", "header gone", "legend gone", "logo bad", "row gone", "strip gone"]).await;
    for hash in ["#/mesh", "#/problems", "#/explain", "#/changes"] {
        page.go_to(hash).await;
        assert_eq!(page.chromium.run(GREEN).await, json!([]), "{hash}");
    }
    page.wait_for("the title", "return document.title.startsWith('meshkeep does not answer · ')").await;
}

#[tokio::test]
async fn warnings_are_amber_and_a_healthy_mesh_is_green() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let warned = SimulatedMesh::start_with(meshkeep.url(), 8, 0, "warned");
    let page = Page::open(&warned.url).await;
    page.wait_for("the badge", "return document.querySelector('.badge')").await;
    let places = assert_colours(&page, "warned").await;
    for place in ["badge warn", "logo warn", "header good", "row good"] {
        assert!(places.iter().any(|one| one == place), "{place}: {places:?}");
    }
    assert_window(&page, "icon-warn.svg", "3 problems · Mesh · meshkeep").await;
    let calm = SimulatedMesh::start_with(meshkeep.url(), 8, 0, "calm");
    let page = Page::open(&calm.url).await;
    page.wait_for_text(&["8/8 live"]).await;
    assert_everywhere(&page, "healthy", &["header good", "legend good", "logo good", "row good", "strip good"]).await;
    assert_window(&page, "icon.svg", "Mesh · meshkeep").await;
    let dump = SimulatedMesh::start_with(meshkeep.url(), 4, 0, "dump");
    let page = Page::open(&dump.url).await;
    page.wait_for_text(&["This is a dump of", "dump of 4 clusters", "dump 4"]).await;
    assert_everywhere(&page, "dump", &["header gone", "legend gone", "logo gone", "row gone", "strip gone"]).await;
    assert_window(&page, "icon-gone.svg", "dump · Mesh · meshkeep").await;
    let is_misread = "return /live|was |in progress|lost|restored/.test(document.querySelector('main').innerText)";
    assert_eq!(page.chromium.run(is_misread).await, json!(false));
    let empty = SimulatedMesh::start_with(meshkeep.url(), 0, 0, "");
    let page = Page::open(&empty.url).await;
    page.wait_for_text(&["No cluster yet"]).await;
    assert_everywhere(&page, "empty", &["logo good"]).await;
}

/// The pages about the API and about problems have the style of the page, and need no token.
#[tokio::test]
async fn docs_and_problem_pages_can_be_read_in_a_browser_with_a_token() {
    let (_home, meshkeep) = start_with_token().await;
    let page = Page::open(meshkeep.url()).await;
    let ground = "return getComputedStyle(document.body).backgroundColor";
    let expected = page.chromium.run(ground).await;
    for (path, words) in [("docs", "Machine-readable"), ("problems", "unauthorized"), ("problems/unauthorized", "HTTP status 401")] {
        page.chromium.ask("url", &json!({"url": format!("{}/{path}", meshkeep.url())})).await;
        page.wait_for_text(&["meshkeep", "Problem types", words]).await;
        assert_eq!(page.chromium.run(ground).await, expected, "{path}");
        for (theme, width) in [("light", 1_440), ("dark", 390)] {
            page.set_appearance(theme, width).await;
            page.assert_accessible(&format!("{path}, {theme}, {width}")).await;
            page.save_screenshot(&format!("{}-{theme}-{width}", path.replace('/', "-"))).await;
        }
        page.set_appearance("light", 1_440).await;
    }
    // a request from /docs needs the token
    page.chromium.ask("url", &json!({"url": format!("{}/docs", meshkeep.url())})).await;
    let send =
        "const form = document.querySelector('form[data-path=\"/v1/status\"]'); form.closest('details').open = true; form.requestSubmit();";
    let answer = "return document.querySelector('form[data-path=\"/v1/status\"] pre').textContent";
    page.chromium.run(send).await;
    page.wait_for("the refusal", &format!("{answer}.startsWith('401')")).await;
    page.chromium.run("document.getElementById('token').value = 'sesame'").await;
    page.chromium.run(send).await;
    page.wait_for("the answer", &format!("{answer}.startsWith('200')")).await;
}

/// A link for a display on a wall has a token for reading in the fragment of its address.
#[tokio::test]
async fn a_link_with_the_view_token_survives_a_reload_and_leaves_no_trace() {
    let home = Home::new();
    let file = |name: &str, token: &str| {
        let path = home.config_directory().with_file_name(name);
        std::fs::write(&path, token).unwrap();
        path
    };
    let (token, view_token) = (file("token", "sesame"), file("view-token", "wall/1+2"));
    let flags = [format!("--token-file={}", token.display()), format!("--view-token-file={}", view_token.display())];
    let mut home = home.with_flags(&[&flags[0], &flags[1]]);
    let meshkeep = home.start().await;
    let page = Page::open_at(meshkeep.url(), "docs").await;
    let steps = page.chromium.run("return history.length").await.as_u64().unwrap();
    let link = format!("{}/#/problems?view-token=wall%2F1%2B2&severity=critical", meshkeep.url());
    page.chromium.ask("url", &json!({"url": link})).await;
    page.wait_for_text(&["following"]).await;
    // the token's address was replaced: there is no step back to it
    let traces = "return [location.href.includes('wall'), location.hash, document.referrer, history.length]";
    assert_eq!(page.chromium.run(traces).await, json!([false, "#/problems?severity=critical", "", steps + 1]));
    page.reload().await;
    page.wait_for_text(&["following"]).await;
    assert!(!meshkeep.log().contains("wall"), "{}", meshkeep.log());
    // a link in a tab that has the page already
    page.go_to("#/mesh?view-token=wrong%").await;
    page.wait_for_text(&["meshkeep requires a token", "meshkeep does not accept that token"]).await;
    assert_eq!(page.chromium.run("return [location.hash, sessionStorage.length]").await, json!(["#/mesh", 0]));
    page.go_to("#/mesh?view-token=wall/1%2B2").await;
    page.wait_for_text(&["following"]).await;
    assert_eq!(page.chromium.run("return location.hash").await, json!("#/mesh"));
    assert_eq!(page.console_errors(&["401"]).await, Vec::<String>::new());
    let status = async |request: reqwest::RequestBuilder| request.bearer_auth("wall/1+2").send().await.unwrap().status().as_u16();
    let url = meshkeep.url();
    assert_eq!(status(http().get(format!("{url}/v1/nodes"))).await, 200);
    assert_eq!(status(http().post(format!("{url}/v1/nodes"))).await, 403, "only for reading");
}

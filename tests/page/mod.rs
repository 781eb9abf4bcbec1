//! Tests of the page at `/` in a real Chromium: each part with and without data, while clusters
//! fail and meshkeep is killed, with a token, and with 255 clusters that change all the time.
//! Screenshots of each part are saved in `target/page`.

mod browser;
mod hostile;
mod names;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use self::browser::{Page, THEMES, WIDTHS};
use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::EVERY_KIND;
use crate::harness::meshkeep::Home;
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;
use crate::stream_clients::client::end_group;

/// Console messages of the browser while meshkeep does not listen or still reads its store.
const NOBODY_LISTENS: [&str; 4] =
    ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE"];

/// Maximum number of clusters in a mesh of the default size.
const CLUSTERS: usize = 255;

/// Changes per second in a mesh of that size (docs/develop/measurements.md).
const CHANGES_PER_SECOND: usize = 325;

async fn scene() -> Scene {
    let scene = Scene::start(&etcd_binaries()[0], 2, 0, EVERY_KIND).await;
    scene.settles("the first loading").await;
    scene
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap()
}

/// Returns an IPv4 address of a pod of the first cluster.
fn address(scene: &Scene) -> String {
    let key = scene.remotes[0].clusters[0].keys_of("ip/v1").into_iter().find(|key| !key[key.rfind('/').unwrap()..].contains(':')).unwrap();
    key.rsplit('/').next().unwrap().to_owned()
}

/// Returns namespace and name of a service of the first cluster.
fn service(scene: &Scene) -> String {
    let key = scene.remotes[0].clusters[0].keys_of("services/v1").remove(0);
    key.split('/').skip(5).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn each_part_shows_what_the_mesh_has_in_both_themes_and_on_a_phone() {
    let mut scene = scene().await;
    let (ip, service) = (address(&scene), service(&scene));
    let page = Page::open(scene.meshkeep().url()).await;
    let parts = [
        ("mesh", "#/mesh".to_owned(), vec!["c01", "c02", "2/2 live", "following"]),
        ("row", "#/mesh/c02".to_owned(), vec!["etcd cluster", "complete and watched"]),
        ("explain", format!("#/explain/{ip}"), vec![&*ip, "c01", "wins", "k8s:"]),
        ("miss", "#/explain/203.0.113.9".to_owned(), vec!["no entry", "world"]),
        ("services", format!("#/services/{service}?from=c02&affinity=local"), vec!["seen from", "would be used", "c01"]),
        ("problems", "#/problems".to_owned(), vec!["critical"]),
        ("find", "#/find/c01%2Fc01-worker-1".to_owned(), vec!["node c01-worker-1", "addresses that c01-worker-1 hosts"]),
    ];
    for theme in THEMES {
        for width in WIDTHS {
            page.looks(theme, width).await;
            for (name, hash, words) in &parts {
                page.go(hash).await;
                page.says(words).await;
                page.is_readable(&format!("{name}, {theme}, {width}")).await;
                page.picture(&format!("{name}-{theme}-{width}")).await;
            }
        }
    }
    page.looks("light", WIDTHS[0]).await;

    // a change appears at once, and its line links to the changed object
    page.go("#/changes?kind=ipcache").await;
    page.says(&["No changes since the page was opened"]).await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(3)).await;
    page.becomes("three lines", "return document.querySelectorAll('.change').length === 3").await;
    for theme in THEMES {
        for width in WIDTHS {
            page.looks(theme, width).await;
            page.is_readable("changes").await;
            page.picture(&format!("changes-{theme}-{width}")).await;
        }
    }
    // while paused it keeps counting, and shows the new changes when it continues
    page.press(&["p"]).await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(2)).await;
    page.says(&["paused: 2 since"]).await;
    assert_eq!(page.chromium.run("return document.querySelectorAll('.change').length").await, json!(3));
    page.press(&["p"]).await;
    page.becomes("five lines", "return document.querySelectorAll('.change').length === 5").await;
    page.asked_nobody_else().await;
    assert_eq!(page.complaints(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn it_is_walked_through_with_the_keyboard_alone() {
    let scene = scene().await;
    let ip = address(&scene);
    let page = Page::open(scene.meshkeep().url()).await;
    page.says(&["c01", "2/2 live"]).await;
    page.press(&["/"]).await;
    page.types(&ip).await;
    page.says(&["explain", "identity"]).await;
    page.press(&["ArrowDown", "Enter"]).await;
    page.says(&["wins", "labels"]).await;
    assert_eq!(page.chromium.run("return location.hash").await, json!(format!("#/explain/{ip}")));
    page.press(&["g", "m"]).await;
    page.becomes("the mesh", "return document.querySelector('.mesh')").await;
    page.press(&["j", "j", "Enter"]).await;
    page.says(&["etcd cluster"]).await;
    assert_eq!(page.chromium.run("return location.hash").await, json!("#/mesh/c02"));
    page.press(&["Escape"]).await;
    page.becomes("the row closed", "return !document.querySelector('.detail')").await;
    page.press(&["?"]).await;
    page.says(&["Keys", "next and previous row"]).await;
    page.is_readable("help").await;
    page.press(&["Escape"]).await;
    for (key, words) in [("e", "Who is this address?"), ("s", "filter"), ("p", "critical"), ("c", "pause")] {
        page.press(&["g", key]).await;
        page.becomes(words, &format!("return document.querySelector('main').outerHTML.includes({})", json!(words))).await;
    }
    // needs of screen readers: one `main`, one `banner`, a name for each control, a region for
    // announcements
    let nameless = "return [...document.querySelectorAll('button, a, input, select')].filter((one) => \
        !one.textContent.trim() && !one.getAttribute('aria-label') && !one.title && !one.labels?.length).length";
    assert_eq!(page.chromium.run(nameless).await, json!(0));
    let landmarks =
        "return ['main', 'header', 'nav', 'search', '[aria-live=polite]', 'h1'].map((one) => document.querySelectorAll(one).length)";
    assert_eq!(page.chromium.run(landmarks).await, json!([1, 1, 1, 1, 1, 1]));
    assert_eq!(page.complaints(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn without_any_cluster_each_part_says_so() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let page = Page::open(meshkeep.url()).await;
    for (name, words) in [
        ("mesh", "No cluster is configured"),
        ("explain", "Who is this address?"),
        ("services", "No cluster shares a service"),
        ("changes", "No changes since the page was opened"),
        ("explain/10.1.2.3", "no entry"),
        ("services/shop/cart", "No cluster shares or exports a service of this name"),
        ("find/nobody", "No pod, shared service, node or cluster of this mesh has this name"),
        ("mesh/nobody", "No cluster is configured"),
        ("problems", "No cluster is configured"),
    ] {
        page.go(&format!("#/{name}")).await;
        page.says(&[words]).await;
        page.is_readable(name).await;
        page.picture(&format!("empty-{}", name.replace('/', "-"))).await;
    }
    page.go("#/mesh").await;
    let directory = home.config_directory().display().to_string();
    page.says(&[directory.as_str(), "no remote cluster", "has no client file of a cluster"]).await;
    page.becomes("a red reason", "return document.querySelectorAll('.none-at-all .red').length === 2").await;
    page.go("#/problems").await;
    page.becomes("nothing green", "return document.querySelector('.sentence.fine') === null").await;
    assert_eq!(page.complaints(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_mesh_that_may_have_no_cluster_yet_is_not_red() {
    let mut home = Home::new().with_flags(&["--allow-no-clusters"]);
    let meshkeep = home.start().await;
    let page = Page::open(meshkeep.url()).await;
    for part in ["mesh", "problems"] {
        page.go(&format!("#/{part}")).await;
        page.says(&["No cluster yet", "following"]).await;
        page.becomes("nothing red", "return document.querySelector('.none-at-all') === null").await;
    }
    assert_eq!(page.complaints(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_cluster_that_dies_goes_to_the_top_and_comes_back() {
    let mut scene = scene().await;
    let page = Page::open(scene.meshkeep().url()).await;
    page.says(&["2/2 live"]).await;
    let first = "return document.querySelector('tbody tr')?.dataset.cluster";
    assert_eq!(page.chromium.run(first).await, json!("c01"));
    scene.remotes[1].proxy.cut().await;
    page.says(&["1/2 live", "c02"]).await;
    page.becomes("the dead one first", "return document.querySelector('tbody tr')?.dataset.cluster === 'c02'").await;
    page.becomes("why", "return document.querySelector('tbody tr .note').textContent").await;
    page.go("#/problems").await;
    page.picture("cluster-lost").await;
    scene.remotes[1].proxy.restore().await;
    page.says(&["2/2 live"]).await;
    page.go("#/mesh").await;
    page.becomes("the order of names again", "return document.querySelector('tbody tr')?.dataset.cluster === 'c01'").await;
    page.becomes("no mark", "return !document.querySelector('tbody .mark')").await;
    assert_eq!(page.complaints(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn when_meshkeep_is_killed_the_page_keeps_what_it_had_and_goes_on_by_replay() {
    let mut scene = scene().await;
    let mut wire = Proxy::to(port_of(scene.meshkeep().url())).await;
    let page = Page::open(&format!("http://127.0.0.1:{}", wire.port())).await;
    page.says(&["2/2 live"]).await;
    page.go("#/changes").await;
    page.says(&["No changes since"]).await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    page.becomes("a line", "return document.querySelectorAll('.change').length > 0").await;
    let before = page.chromium.run("return document.querySelectorAll('.change').length").await;

    wire.cut().await;
    scene.kill_meshkeep();
    page.says(&["meshkeep does not answer", "lost at", "The page shows the state of"]).await;
    page.becomes("grey", "return document.querySelector('.is-lost')").await;
    assert_eq!(page.chromium.run("return document.querySelectorAll('.change').length").await, before);
    page.says(&["The connection to meshkeep is lost"]).await;
    for theme in THEMES {
        page.looks(theme, WIDTHS[0]).await;
        page.picture(&format!("lost-{theme}")).await;
    }
    scene.remotes[0].change(|cluster| cluster.add_endpoints(2)).await;
    scene.start_meshkeep().await;
    wire.retarget(port_of(scene.meshkeep().url()));
    wire.restore().await;
    page.says(&["following", "meshkeep is back", "2/2 live"]).await;
    page.becomes("what changed meanwhile", &format!("return document.querySelectorAll('.change').length >= {before} + 2")).await;
    let replayed = "return performance.getEntriesByType('resource').some((entry) => entry.name.includes('/v1/events') && entry.name.includes('after='))";
    assert_eq!(page.chromium.run(replayed).await, json!(true));
    assert_eq!(page.complaints(&NOBODY_LISTENS).await, Vec::<String>::new());
}

/// Behind a proxy a connection may stay open without any data. Bookmarks would reveal that after 35
/// s; the page's own timer does sooner.
#[tokio::test]
async fn a_connection_that_falls_silent_is_found_out() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let wire = Proxy::to(port_of(meshkeep.url())).await;
    let page = Page::open(&format!("http://127.0.0.1:{}", wire.port())).await;
    page.says(&["No cluster is configured", "following"]).await;
    let started = Instant::now();
    wire.allow_bytes(0);
    page.says(&["meshkeep does not answer"]).await;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    wire.allow_bytes(u64::MAX);
    page.says(&["following", "meshkeep is back"]).await;
    assert_eq!(page.complaints(&NOBODY_LISTENS).await, Vec::<String>::new());
}

#[tokio::test]
async fn it_asks_for_the_token_and_keeps_it_in_memory_alone() {
    let mut home = Home::new();
    let token = home.config_directory().with_file_name("token");
    std::fs::write(&token, "sesame").unwrap();
    home = home.with_flags(&[&format!("--token-file={}", token.display())]);
    let meshkeep = home.start().await;
    let page = Page::open(meshkeep.url()).await;
    page.says(&["meshkeep requires a token"]).await;
    page.is_readable("sign-in").await;
    page.picture("sign-in").await;
    page.becomes("the cursor in the box", "return document.activeElement?.name === 'token'").await;
    page.types("open").await;
    page.press(&["Enter"]).await;
    page.says(&["meshkeep requires a token", "meshkeep does not accept that token"]).await;
    let waits = "const box = document.activeElement; return box?.name === 'token' && box.value === ''";
    page.becomes("an empty box again, with the cursor in it", waits).await;
    page.types("sesame").await;
    page.press(&["Enter"]).await;
    page.says(&["No cluster is configured", "following"]).await;
    // the parts that open their own streams and lists show it too
    page.go("#/changes").await;
    page.says(&["No changes since the page was opened"]).await;
    let kept = "return JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.body.outerHTML]).includes('sesame')";
    assert_eq!(page.chromium.run(kept).await, json!(false));
    page.reload().await;
    page.says(&["meshkeep requires a token"]).await;
    assert_eq!(page.complaints(&["401"]).await, Vec::<String>::new());
}

/// A simulated mesh (`tests/page/fake.mjs`) with the page of a real meshkeep.
struct MadeUp {
    child: Child,
    url: String,
}

impl MadeUp {
    fn before(upstream: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/fake.mjs");
        let mut command = Command::new("node");
        command.arg(script).args([&CLUSTERS.to_string(), &CHANGES_PER_SECOND.to_string(), "0", upstream]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for MadeUp {
    fn drop(&mut self) {
        end_group(&mut self.child);
    }
}

#[tokio::test]
async fn two_hundred_and_fifty_five_clusters_that_change_all_the_time_stay_readable_and_quick() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let made_up = MadeUp::before(meshkeep.url());
    let page = Page::open(&made_up.url).await;
    page.becomes("all rows", &format!("return document.querySelectorAll('tbody tr').length === {CLUSTERS}")).await;
    page.becomes("all squares", &format!("return document.querySelectorAll('.square').length === {CLUSTERS}")).await;
    // sorted by severity: never read, lost, connecting, live
    let ages = page.chromium.run("return [...document.querySelectorAll('tbody .age')].map((cell) => cell.textContent)").await;
    assert_eq!((&ages[0], &ages[6]), (&json!("never read"), &json!("never read")));
    let height = page.chromium.run("return document.querySelectorAll('tbody tr')[100].getBoundingClientRect().height").await;
    assert_eq!(height, json!(20), "20 pixels a row");
    for theme in THEMES {
        for width in WIDTHS {
            page.looks(theme, width).await;
            for (name, hash) in [("mesh", "#/mesh"), ("row", "#/mesh/osaka"), ("explain", "#/explain/10.2.1.9"), ("problems", "#/problems")]
            {
                page.go(hash).await;
                page.becomes(name, "return document.querySelector('main table, main .ladder, main .problems')").await;
                page.is_readable(&format!("{name} of {CLUSTERS}, {theme}, {width}")).await;
                page.picture(&format!("many-{name}-{theme}-{width}")).await;
            }
        }
    }
    page.looks("light", WIDTHS[0]).await;
    // at most ten updates a second at any rate of changes, and a readable number of lines
    page.go("#/changes").await;
    page.becomes("lines", "return document.querySelectorAll('.change').length === 100").await;
    let busy = "const before = window.meshkeepPage.drawn, started = performance.now(); \
        const done = arguments[arguments.length - 1]; \
        setTimeout(() => done([(window.meshkeepPage.drawn - before) / (performance.now() - started) * 1000]), 2000)";
    let drawn = page.chromium.ask("execute/async", &json!({"script": busy, "args": []})).await;
    let drawn = drawn[0].as_f64().unwrap();
    assert!((0.5..=10.5).contains(&drawn), "{drawn} times a second");
    page.picture("many-changes").await;
    assert_eq!(page.complaints(&[]).await, Vec::<String>::new());
}

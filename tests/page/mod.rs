//! Tests of the page at `/` in a real Chromium: each view with and without data, while clusters
//! fail and meshkeep is killed, with a token, and with 255 clusters that change all the time.
//! Screenshots of each view are saved in `target/page`.

mod browser;
mod changes;
mod hostile;
mod names;
mod rows;
mod states;
mod timeline;
mod windows;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use self::browser::{Page, THEMES, WIDTHS};
use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::EVERY_KIND;
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::proxy::Proxy;
use crate::harness::scene::Scene;
use crate::stream_clients::client::kill_process_group;

/// Console messages of the browser while meshkeep does not listen or is still reading its store.
const CONNECTION_ERRORS: [&str; 4] =
    ["ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE"];

/// Maximum number of clusters in a mesh of the default size.
const CLUSTERS: usize = 255;

/// Changes per second in a mesh of that size (docs/develop/measurements.md).
const CHANGES_PER_SECOND: usize = 325;

async fn scene() -> Scene {
    let scene = Scene::start(&etcd_binaries()[0], 2, 0, EVERY_KIND).await;
    scene.wait_until_settled("the first loading").await;
    scene
}

fn port_of(url: &str) -> u16 {
    url.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap()
}

/// Returns an IPv4 address of a pod of the first cluster.
fn pod_address(scene: &Scene) -> String {
    let key = scene.remotes[0].clusters[0].keys_of("ip/v1").into_iter().find(|key| !key[key.rfind('/').unwrap()..].contains(':')).unwrap();
    key.rsplit('/').next().unwrap().to_owned()
}

/// Returns the namespace and name of a service of the first cluster.
fn service_name(scene: &Scene) -> String {
    let key = scene.remotes[0].clusters[0].keys_of("services/v1").remove(0);
    key.split('/').skip(5).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn each_view_shows_the_mesh_in_both_themes_and_widths() {
    let mut scene = scene().await;
    let (ip, service_name) = (pod_address(&scene), service_name(&scene));
    let page = Page::open(scene.meshkeep().url()).await;
    let views = [
        ("mesh", "#/mesh".to_owned(), vec!["c01", "c02", "2/2 live", "following"]),
        ("row", "#/mesh/c02".to_owned(), vec!["etcd cluster", "complete and watched"]),
        ("explain", format!("#/explain/{ip}"), vec![&*ip, "c01", "wins", "k8s:"]),
        ("miss", "#/explain/203.0.113.9".to_owned(), vec!["no entry", "world"]),
        ("services", format!("#/services/{service_name}?from=c02&affinity=local"), vec!["seen from", "would be used", "c01"]),
        ("problems", "#/problems".to_owned(), vec!["critical"]),
        ("find", "#/find/c01%2Fc01-worker-1".to_owned(), vec!["node c01-worker-1", "addresses that c01-worker-1 hosts"]),
    ];
    for theme in THEMES {
        for width in WIDTHS {
            page.set_appearance(theme, width).await;
            for (name, hash, words) in &views {
                page.go_to(hash).await;
                page.wait_for_text(words).await;
                page.assert_readable(&format!("{name}, {theme}, {width}")).await;
                page.save_screenshot(&format!("{name}-{theme}-{width}")).await;
            }
        }
    }
    page.set_appearance("light", WIDTHS[0]).await;

    // a change appears at once, and its line links to the changed object
    page.go_to("#/changes?kind=ipcache").await;
    page.wait_for_text(&["The changes of the last ten minutes are not known"]).await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(3)).await;
    page.wait_for("three lines", "return document.querySelectorAll('.change').length === 3").await;
    for theme in THEMES {
        for width in WIDTHS {
            page.set_appearance(theme, width).await;
            page.assert_readable("changes").await;
            page.save_screenshot(&format!("changes-{theme}-{width}")).await;
        }
    }
    // while paused it keeps counting, and shows the new changes when it continues
    page.press(&["p"]).await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(2)).await;
    page.wait_for_text(&["paused: 2 since"]).await;
    assert_eq!(page.chromium.run("return document.querySelectorAll('.change').length").await, json!(3));
    page.press(&["p"]).await;
    page.wait_for("five lines", "return document.querySelectorAll('.change').length === 5").await;
    page.assert_same_origin().await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_page_can_be_used_with_the_keyboard_alone() {
    let scene = scene().await;
    let ip = pod_address(&scene);
    let page = Page::open(scene.meshkeep().url()).await;
    page.wait_for_text(&["c01", "2/2 live"]).await;
    page.press(&["/"]).await;
    page.type_text(&ip).await;
    page.wait_for_text(&["explain", "identity"]).await;
    page.press(&["ArrowDown", "Enter"]).await;
    page.wait_for_text(&["wins", "labels"]).await;
    assert_eq!(page.chromium.run("return location.hash").await, json!(format!("#/explain/{ip}")));
    page.press(&["g", "m"]).await;
    page.wait_for("the mesh", "return document.querySelector('.mesh')").await;
    page.press(&["j", "j", "Enter"]).await;
    page.wait_for_text(&["etcd cluster"]).await;
    assert_eq!(page.chromium.run("return location.hash").await, json!("#/mesh/c02"));
    page.press(&["Escape"]).await;
    page.wait_for("the row closed", "return !document.querySelector('.detail')").await;
    page.press(&["?"]).await;
    page.wait_for_text(&["Keys", "next and previous row"]).await;
    page.assert_readable("help").await;
    page.press(&["Escape"]).await;
    for (key, words) in [("e", "Who is this address?"), ("s", "filter"), ("p", "critical"), ("c", "pause")] {
        page.press(&["g", key]).await;
        page.wait_for(words, &format!("return document.querySelector('main').outerHTML.includes({})", json!(words))).await;
    }
    // screen readers need one `main`, one `banner`, a name for each control, and a region for
    // announcements
    let nameless = "return [...document.querySelectorAll('button, a, input, select')].filter((one) => \
        !one.textContent.trim() && !one.getAttribute('aria-label') && !one.title && !one.labels?.length).length";
    assert_eq!(page.chromium.run(nameless).await, json!(0));
    let landmarks =
        "return ['main', 'header', 'nav', 'search', '[aria-live=polite]', 'h1'].map((one) => document.querySelectorAll(one).length)";
    assert_eq!(page.chromium.run(landmarks).await, json!([1, 1, 1, 1, 1, 1]));
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn each_view_reports_that_there_is_no_cluster() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let page = Page::open(meshkeep.url()).await;
    for (name, words) in [
        ("mesh", "No cluster is configured"),
        ("explain", "Who is this address?"),
        ("services", "No cluster shares a service"),
        ("changes", "The changes of the last ten minutes are not known"),
        ("explain/10.1.2.3", "no entry"),
        ("services/shop/cart", "No cluster shares or exports a service of this name"),
        ("find/nobody", "No pod, shared service, node, cluster, label or address of this mesh has this text"),
        ("mesh/nobody", "No cluster is configured"),
        ("problems", "No cluster is configured"),
    ] {
        page.go_to(&format!("#/{name}")).await;
        page.wait_for_text(&[words]).await;
        page.assert_readable(name).await;
        page.save_screenshot(&format!("empty-{}", name.replace('/', "-"))).await;
    }
    page.go_to("#/mesh").await;
    let directory = home.config_directory().display().to_string();
    page.wait_for_text(&[directory.as_str(), "no remote cluster", "has no client file of a cluster"]).await;
    page.wait_for("a red reason", "return document.querySelectorAll('.none-at-all .red').length === 2").await;
    page.go_to("#/problems").await;
    page.wait_for("nothing green", "return document.querySelector('.sentence.fine') === null").await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_allowed_empty_mesh_is_not_shown_in_red() {
    let mut home = Home::new().with_flags(&["--allow-no-clusters"]);
    let meshkeep = home.start().await;
    let page = Page::open(meshkeep.url()).await;
    for view in ["mesh", "problems"] {
        page.go_to(&format!("#/{view}")).await;
        page.wait_for_text(&["No cluster yet", "following"]).await;
        page.wait_for("nothing red", "return document.querySelector('.none-at-all') === null").await;
    }
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_failed_cluster_moves_to_the_top_until_it_recovers() {
    let mut scene = scene().await;
    let page = Page::open(scene.meshkeep().url()).await;
    page.wait_for_text(&["2/2 live"]).await;
    let first_row = "return document.querySelector('tbody tr')?.dataset.cluster";
    assert_eq!(page.chromium.run(first_row).await, json!("c01"));
    scene.remotes[1].proxy.cut().await;
    page.wait_for_text(&["1/2 live", "c02"]).await;
    page.wait_for("the failed cluster first", "return document.querySelector('tbody tr')?.dataset.cluster === 'c02'").await;
    page.wait_for("the reason", "return document.querySelector('tbody tr .note').textContent").await;
    page.go_to("#/problems").await;
    page.save_screenshot("cluster-lost").await;
    scene.remotes[1].proxy.restore().await;
    page.wait_for_text(&["2/2 live"]).await;
    page.go_to("#/mesh").await;
    page.wait_for("the order of names again", "return document.querySelector('tbody tr')?.dataset.cluster === 'c01'").await;
    page.wait_for("no mark", "return !document.querySelector('tbody .mark')").await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

#[tokio::test]
async fn the_page_keeps_its_state_over_a_kill_and_resumes_by_replay() {
    let mut scene = scene().await;
    let mut proxy = Proxy::to(port_of(scene.meshkeep().url())).await;
    let page = Page::open(&format!("http://127.0.0.1:{}", proxy.port())).await;
    page.wait_for_text(&["2/2 live"]).await;
    page.go_to("#/changes").await;
    page.wait_for_text(&["The changes of the last ten minutes are not known"]).await;
    scene.remotes[0].change(|cluster| cluster.add_endpoints(1)).await;
    page.wait_for("a line", "return document.querySelectorAll('.change').length > 0").await;
    let before = page.chromium.run("return document.querySelectorAll('.change').length").await;

    proxy.cut().await;
    scene.kill_meshkeep();
    page.wait_for_text(&["meshkeep does not answer", "lost at", "The page shows the state of"]).await;
    page.wait_for("the grey page", "return document.querySelector('.is-lost')").await;
    assert_eq!(page.chromium.run("return document.querySelectorAll('.change').length").await, before);
    page.wait_for_text(&["The connection to meshkeep is lost"]).await;
    for theme in THEMES {
        page.set_appearance(theme, WIDTHS[0]).await;
        page.save_screenshot(&format!("lost-{theme}")).await;
    }
    scene.remotes[0].change(|cluster| cluster.add_endpoints(2)).await;
    scene.start_meshkeep().await;
    proxy.retarget(port_of(scene.meshkeep().url()));
    proxy.restore().await;
    page.wait_for_text(&["following", "meshkeep is back", "2/2 live"]).await;
    page.wait_for("the changes during the interruption", &format!("return document.querySelectorAll('.change').length >= {before} + 2"))
        .await;
    let replayed = "return performance.getEntriesByType('resource').some((entry) => entry.name.includes('/v1/events') && entry.name.includes('after='))";
    assert_eq!(page.chromium.run(replayed).await, json!(true));
    assert_eq!(page.console_errors(&CONNECTION_ERRORS).await, Vec::<String>::new());
}

/// Behind a proxy, a connection may stay open without any data. Missing bookmarks would reveal this
/// after 35 s; the page's own timer reveals it sooner.
#[tokio::test]
async fn the_page_detects_a_silent_connection() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let proxy = Proxy::to(port_of(meshkeep.url())).await;
    let page = Page::open(&format!("http://127.0.0.1:{}", proxy.port())).await;
    page.wait_for_text(&["No cluster is configured", "following"]).await;
    let started = Instant::now();
    proxy.allow_bytes(0);
    page.wait_for_text(&["meshkeep does not answer"]).await;
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    proxy.allow_bytes(u64::MAX);
    page.wait_for_text(&["following", "meshkeep is back"]).await;
    assert_eq!(page.console_errors(&CONNECTION_ERRORS).await, Vec::<String>::new());
}

/// Starts a meshkeep that requires the token `sesame`.
async fn start_with_token() -> (Home, Meshkeep) {
    let home = Home::new();
    let token = home.config_directory().with_file_name("token");
    std::fs::write(&token, "sesame").unwrap();
    let mut home = home.with_flags(&[&format!("--token-file={}", token.display())]);
    let meshkeep = home.start().await;
    (home, meshkeep)
}

#[tokio::test]
async fn the_page_asks_for_the_token_and_keeps_it_only_in_memory() {
    let (_home, meshkeep) = start_with_token().await;
    let page = Page::open(meshkeep.url()).await;
    page.wait_for_text(&["meshkeep requires a token"]).await;
    page.assert_readable("sign-in").await;
    page.save_screenshot("sign-in").await;
    page.wait_for("the cursor in the box", "return document.activeElement?.name === 'token'").await;
    page.type_text("open").await;
    page.press(&["Enter"]).await;
    page.wait_for_text(&["meshkeep requires a token", "meshkeep does not accept that token"]).await;
    let is_empty_and_focused = "const box = document.activeElement; return box?.name === 'token' && box.value === ''";
    page.wait_for("an empty box again, with the cursor in it", is_empty_and_focused).await;
    page.type_text("sesame").await;
    page.press(&["Enter"]).await;
    page.wait_for_text(&["No cluster is configured", "following"]).await;
    // the views that open their own streams and lists send the token too
    page.go_to("#/changes").await;
    page.wait_for_text(&["The changes of the last ten minutes are not known"]).await;
    let is_stored = "return JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, document.body.outerHTML]).includes('sesame')";
    assert_eq!(page.chromium.run(is_stored).await, json!(false));
    page.reload().await;
    page.wait_for_text(&["meshkeep requires a token"]).await;
    assert_eq!(page.console_errors(&["401"]).await, Vec::<String>::new());
}

/// A simulated mesh (`tests/page/fake.mjs`) with the page of a real meshkeep.
struct SimulatedMesh {
    child: Child,
    url: String,
}

impl SimulatedMesh {
    /// Starts a mesh in which clusters have each state.
    fn start(upstream: &str) -> Self {
        Self::start_with(upstream, CLUSTERS, CHANGES_PER_SECOND, "")
    }

    /// Starts a mesh: `calm` without findings, `warned` with warnings only, `dump` from a dump,
    /// otherwise with each state.
    fn start_with(upstream: &str, clusters: usize, changes_per_second: usize, mesh: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/fake.mjs");
        let mut command = Command::new("node");
        command.arg(script).args([&clusters.to_string(), &changes_per_second.to_string(), "0", upstream, mesh]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self { child, url: url.trim().to_owned() }
    }
}

impl Drop for SimulatedMesh {
    fn drop(&mut self) {
        kill_process_group(&mut self.child);
    }
}

#[tokio::test]
async fn a_page_with_255_busy_clusters_stays_readable_and_fast() {
    let mut home = Home::new();
    let meshkeep = home.start().await;
    let simulated = SimulatedMesh::start(meshkeep.url());
    let page = Page::open(&simulated.url).await;
    page.wait_for("all squares", &format!("return document.querySelectorAll('.strip .square').length === {CLUSTERS}")).await;
    // the healthy clusters are one row, until they are unfolded
    page.wait_for("35 rows and the fold", "return document.querySelectorAll('tbody tr').length === 36").await;
    page.save_screenshot("folded").await;
    page.wait_for_text(&["show 220 healthy clusters"]).await;
    page.chromium.run("document.querySelector('.fold').click()").await;
    page.wait_for("all rows", &format!("return document.querySelectorAll('tbody tr').length === {CLUSTERS}")).await;
    // sorted by severity: never read, lost, connecting, live
    let ages = page.chromium.run("return [...document.querySelectorAll('tbody .age')].map((cell) => cell.textContent)").await;
    assert_eq!((&ages[0], &ages[6]), (&json!("never read"), &json!("never read")));
    let height = page.chromium.run("return document.querySelectorAll('tbody tr')[100].getBoundingClientRect().height").await;
    assert_eq!(height, json!(24), "24 pixels a row");
    for theme in THEMES {
        for width in WIDTHS {
            page.set_appearance(theme, width).await;
            for (name, hash) in [("mesh", "#/mesh"), ("row", "#/mesh/osaka"), ("explain", "#/explain/10.2.1.9"), ("problems", "#/problems")]
            {
                page.go_to(hash).await;
                page.wait_for(name, "return document.querySelector('main table, main .ladder, main .problems')").await;
                page.assert_readable(&format!("{name} of {CLUSTERS}, {theme}, {width}")).await;
                page.save_screenshot(&format!("many-{name}-{theme}-{width}")).await;
            }
        }
    }
    page.set_appearance("light", WIDTHS[0]).await;
    // at most ten redraws a second at any rate of changes, and a readable number of lines
    page.go_to("#/changes").await;
    page.wait_for("lines", "return document.querySelectorAll('.change').length === 100").await;
    let count_redraws = "const before = window.meshkeepPage.drawn, started = performance.now(); \
        const done = arguments[arguments.length - 1]; \
        setTimeout(() => done([(window.meshkeepPage.drawn - before) / (performance.now() - started) * 1000]), 2000)";
    let redraws_per_second = page.chromium.ask("execute/async", &json!({"script": count_redraws, "args": []})).await;
    let redraws_per_second = redraws_per_second[0].as_f64().unwrap();
    assert!((0.5..=10.5).contains(&redraws_per_second), "{redraws_per_second} redraws a second");
    page.save_screenshot("many-changes").await;
    assert_eq!(page.console_errors(&[]).await, Vec::<String>::new());
}

//! Measures the page at `/` of a large mesh in a real Chromium: the time from a restart until it is
//! usable, the bytes that it fetches, and the CPU that an open page costs the sidecar while the
//! mesh changes. The reference is the same without the page.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::source::{fill, put};
use super::{TIME_MAX, data};
use crate::processes::{Outcome, RunningProcess, add_cluster, start_etcd, start_meshkeep, until};

/// Rate of changes in Cilium's own scale test.
const CHANGES_PER_SECOND: u32 = 325;

/// Returns the duration of the CPU measurement.
fn measure_time() -> Duration {
    Duration::from_secs(data::sized(60, 3))
}

/// Returns how often the page is opened after a restart.
fn restarts() -> u32 {
    data::sized(5, 1)
}

/// Returns the time after which the memory of a start should be released and the initial lists
/// complete.
fn settled_after() -> Duration {
    Duration::from_secs(data::sized(10, 1))
}

/// Flags of Chromium: no display, no graphics card, no background traffic. The sandbox may not work
/// for root, and the browser only loads meshkeep's page.
const FLAGS: [&str; 6] =
    ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"];

/// Script that returns the transferred bytes including HTTP heads: those of the page and its files,
/// and those of the API without the stream.
const TRANSFERRED: &str = "const all = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]; \
    const sum = (of) => all.filter((one) => of(new URL(one.name).pathname)).reduce((bytes, one) => bytes + one.transferSize, 0); \
    return [sum((path) => !path.startsWith('/v1/')), sum((path) => path.startsWith('/v1/') && path !== '/v1/events')]";

pub(crate) async fn page(keys: u32) -> Outcome<()> {
    // the HTTP client needs a crypto provider even for plain HTTP; this fails only if the process
    // already has one
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    let (count, _) = fill(&client, keys).await?;
    for number in 1..=data::clusters() {
        add_cluster(home.path(), data::cluster(number).as_str(), &url)?;
    }
    println!("page: {count} keys of {} clusters", data::clusters());
    let browser = Browser::start(home.path()).await?;
    let (mut meshkeep, address) = start_meshkeep(home.path())?;
    until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    tokio::time::sleep(settled_after()).await;
    let mut times = Vec::new();
    for _ in 0..restarts() {
        browser.go_to("about:blank").await?;
        meshkeep.terminate()?;
        let began = Instant::now();
        let (started, address) = start_meshkeep(home.path())?;
        meshkeep = started;
        let listening = began.elapsed();
        browser.go_to(&format!("http://{address}/")).await?;
        browser.has_all_squares().await?;
        times.push((began.elapsed(), listening));
        until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    }
    times.sort_unstable();
    let shown: Vec<String> = times.iter().map(|(usable, _)| format!("{:.0}", usable.as_secs_f64() * 1e3)).collect();
    let (usable, listening) = times[times.len() / 2];
    println!("  usable {} ms after exec (it listens after {listening:.0?}); all: {} ms", usable.as_millis(), shown.join(" "));
    let bytes = browser.run_script(TRANSFERRED).await?;
    println!("  transferred: {} bytes of the page and its files, {} of answers", bytes[0], bytes[1]);
    tokio::time::sleep(settled_after()).await;
    let (open, changes) = measure_cpu(&client, &meshkeep, 0).await?;
    browser.go_to("about:blank").await?;
    tokio::time::sleep(settled_after()).await;
    let (closed, _) = measure_cpu(&client, &meshkeep, changes).await?;
    println!(
        "  at {CHANGES_PER_SECOND} changes/s: {open:.2} % of a core while it is open, {closed:.2} % without: it costs {:.2} %",
        open - closed
    );
    meshkeep.terminate()
}

/// Measures the CPU of the sidecar while the mesh changes, in percent of a core, and the number of
/// changes. `after` is the number of earlier changes.
async fn measure_cpu(client: &etcd_client::Client, meshkeep: &RunningProcess, after: u64) -> Outcome<(f64, u64)> {
    let (busy, began) = (meshkeep.busy()?, Instant::now());
    let (changes, _) = put(client, CHANGES_PER_SECOND, after, measure_time(), || Ok(())).await?;
    Ok(((meshkeep.busy()? - busy).as_secs_f64() * 100.0 / began.elapsed().as_secs_f64(), changes))
}

/// A browser with one page, ended on drop.
struct Browser {
    driver: Child,
    session: String,
}

impl Browser {
    async fn start(home: &Path) -> Outcome<Self> {
        let log = home.join("driver.log");
        let output = fs::File::create(&log)?;
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").env("TMPDIR", home).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // the driver starts the browser in its own group, and the browser outlives the driver
        command.process_group(0);
        let mut browser = Self { driver: command.spawn()?, session: String::new() };
        let deadline = Instant::now() + Duration::from_secs(20);
        let port = loop {
            let text = fs::read_to_string(&log)?;
            let port = text.split_once("started successfully on port ").and_then(|(_, rest)| rest.split_once('.'));
            if let Some((port, _)) = port {
                break port.to_owned();
            }
            if Instant::now() > deadline {
                return Err(format!("chromedriver does not start: {text}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let profile = format!("--user-data-dir={}", home.join("profile").display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([profile.as_str()]).collect();
        let options = json!({"binary": "/usr/bin/chromium", "args": flags});
        let capabilities = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}});
        let server = format!("http://127.0.0.1:{port}/session");
        let session = ask(&server, &capabilities).await?;
        browser.session = format!("{server}/{}", session["sessionId"].as_str().ok_or("no session")?);
        Ok(browser)
    }

    async fn go_to(&self, url: &str) -> Outcome<()> {
        ask(&format!("{}/url", self.session), &json!({"url": url})).await.map(drop)
    }

    async fn run_script(&self, script: &str) -> Outcome<Value> {
        ask(&format!("{}/execute/sync", self.session), &json!({"script": script, "args": []})).await
    }

    /// Waits until each cluster has its square: the rows of healthy clusters are folded.
    async fn has_all_squares(&self) -> Outcome<()> {
        let began = Instant::now();
        loop {
            let squares = self.run_script("return document.querySelectorAll('.strip .square').length").await?;
            if squares.as_u64() == Some(u64::from(data::clusters())) {
                return Ok(());
            }
            if began.elapsed() > TIME_MAX {
                return Err(format!("the page has {squares} squares").into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(Command::new("kill").args(["-KILL", "--", &format!("-{}", self.driver.id())]).status());
        drop(self.driver.wait());
    }
}

async fn ask(url: &str, body: &Value) -> Outcome<Value> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut answer: Value = client.post(url).json(body).send().await?.json().await?;
    match answer["value"].take() {
        value if value["error"].is_string() => Err(format!("{url}: {value}").into()),
        value => Ok(value),
    }
}

//! Headless Chromium, controlled with WebDriver over HTTP.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::{StreamFollower, install_tools, kill_process_group};
use crate::harness::eventually;
use crate::harness::meshkeep::http;

/// Flags: no display, no graphics card, no background requests, and no sandbox, which does not work
/// as root and is not needed for our own page.
const FLAGS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// A browser with one open page, killed when it is dropped.
pub(crate) struct Chromium {
    driver: Child,
    directory: TempDir,
    session: String,
}

impl Chromium {
    /// Starts the browser and opens a page.
    pub(crate) async fn open(page: &str) -> Self {
        install_tools();
        let directory = tempfile::Builder::new().prefix("meshkeep-chromium-").tempdir().unwrap();
        let driver = start_driver(directory.path());
        let mut chromium = Self { driver, directory, session: String::new() };
        let port = eventually("chromedriver to listen", || std::future::ready(chromium.port_of_driver())).await;
        let profile = format!("--user-data-dir={}", chromium.directory.path().join("profile").display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([profile.as_str()]).collect();
        let options = json!({"binary": "/usr/bin/chromium", "args": flags});
        let capabilities =
            json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}});
        let session = post(&format!("http://127.0.0.1:{port}/session"), &capabilities).await;
        chromium.session = format!("http://127.0.0.1:{port}/session/{}", session["sessionId"].as_str().unwrap());
        post(&format!("{}/url", chromium.session), &json!({"url": page})).await;
        chromium
    }

    /// Runs a script in the page and returns its result.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.ask("execute/sync", &json!({"script": script, "args": []})).await
    }

    /// Sends a WebDriver command to the session.
    pub(crate) async fn ask(&self, command: &str, body: &Value) -> Value {
        post(&format!("{}/{command}", self.session), body).await
    }

    /// Sends a command of the DevTools protocol.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.ask("goog/cdp/execute", &json!({"cmd": command, "params": parameters})).await
    }

    /// Returns the port of the driver once it listens. Starts another driver if it has ended: it
    /// takes a port that is free for IPv6, and ends if IPv4 uses it.
    fn port_of_driver(&mut self) -> Option<u16> {
        if self.driver.try_wait().unwrap().is_some() {
            self.driver = start_driver(self.directory.path());
        }
        let log = fs::read_to_string(self.directory.path().join("driver.log")).unwrap();
        let (_, port_and_rest) = log.split_once("started successfully on port ")?;
        port_and_rest.split_once('.')?.0.parse().ok()
    }
}

/// Starts chromedriver at any free port. Its output goes to a new file in the directory.
fn start_driver(directory: &Path) -> Child {
    let output = fs::File::create(directory.join("driver.log")).unwrap();
    let mut command = Command::new("chromedriver");
    command.arg("--port=0").env("TMPDIR", directory);
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).process_group(0);
    command.spawn().unwrap_or_else(|e| panic!("chromedriver (see scripts/stream-clients-setup): {e}"))
}

impl StreamFollower for Chromium {
    async fn latest(&self) -> Option<Value> {
        let latest = self.run("return window.latest").await;
        latest.as_str().map(|text| serde_json::from_str(text).unwrap())
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        kill_process_group(&mut self.driver);
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.directory.path().join("driver.log")).unwrap_or_default());
        }
    }
}

async fn post(url: &str, body: &Value) -> Value {
    let response = http().post(url).json(body).send().await.unwrap();
    let status = response.status();
    let mut answer: Value = response.json().await.unwrap();
    assert_eq!(status, 200, "{url} {body}: {answer}");
    answer["value"].take()
}

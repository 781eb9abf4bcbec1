//! The page in a browser: visible text, key presses, console messages and screenshots.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::harness::eventually;
use crate::stream_clients::chromium::Chromium;
use crate::stream_clients::client::install_tools;

/// Tested widths in pixels: a desktop's and a phone's.
pub(super) const WIDTHS: [u32; 2] = [1_440, 390];

/// Widths in pixels of a phone, a tablet, a desktop and a wide screen.
pub(super) const ALL_WIDTHS: [u32; 4] = [390, 1_024, 1_440, 2_560];

/// Tested colour schemes, as the system announces them.
pub(super) const THEMES: [&str; 2] = ["light", "dark"];

/// Script that returns all visible texts with less contrast than WCAG 2.2 requires (1.4.3).
const CONTRAST: &str = include_str!("contrast.js");

pub(super) struct Page {
    pub(super) chromium: Chromium,
    url: String,
}

impl Page {
    /// Opens the page of the meshkeep at this URL.
    pub(super) async fn open(url: &str) -> Self {
        Self::open_at(url, "").await
    }

    /// Opens the page with a fragment in its address.
    pub(super) async fn open_at(url: &str, hash: &str) -> Self {
        let page = Self { chromium: Chromium::open(&format!("{url}/{hash}")).await, url: url.to_owned() };
        page.set_appearance("light", WIDTHS[0]).await;
        page
    }

    /// Opens a view, for instance `#/mesh`.
    pub(super) async fn go_to(&self, hash: &str) {
        self.chromium.run(&format!("location.hash = {}", json!(hash))).await;
    }

    pub(super) async fn reload(&self) {
        self.chromium.ask("refresh", &json!({})).await;
    }

    /// Sets the colour scheme and the width.
    pub(super) async fn set_appearance(&self, theme: &str, width: u32) {
        let features =
            json!({"features": [{"name": "prefers-color-scheme", "value": theme}, {"name": "prefers-reduced-motion", "value": "reduce"}]});
        self.chromium.devtools("Emulation.setEmulatedMedia", features).await;
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.chromium.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Returns all visible text.
    pub(super) async fn text(&self) -> String {
        self.chromium.run("return document.body.innerText").await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until all of these texts are visible.
    pub(super) async fn wait_for_text(&self, words: &[&str]) {
        let mut last = String::new();
        let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
        loop {
            let text = self.text().await;
            if words.iter().all(|word| text.contains(word)) {
                return;
            }
            if text != last {
                last = text;
            }
            assert!(std::time::Instant::now() < deadline, "the page does not say {words:?}:\n{last}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Waits until a script returns a true value, and returns it.
    pub(super) async fn wait_for(&self, what: &str, script: &str) -> Value {
        eventually(what, || async {
            let value = self.chromium.run(script).await;
            let is_truthy = !matches!(value, Value::Null | Value::Bool(false)) && value != json!(0) && value != json!("");
            is_truthy.then_some(value)
        })
        .await
    }

    /// Presses and releases keys one after the other.
    pub(super) async fn press(&self, keys: &[&str]) {
        let each = keys.iter().flat_map(|key| {
            let value = match *key {
                "Enter" => "\u{e007}",
                "Escape" => "\u{e00c}",
                "ArrowDown" => "\u{e015}",
                key => key,
            };
            [json!({"type": "keyDown", "value": value}), json!({"type": "keyUp", "value": value})]
        });
        self.chromium.ask("actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": each.collect::<Vec<_>>()}]})).await;
    }

    /// Types a text into the focused element.
    pub(super) async fn type_text(&self, text: &str) {
        let keys: Vec<String> = text.chars().map(String::from).collect();
        self.press(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }

    /// Checks that nothing extends beyond the right edge, and that every text has enough contrast.
    pub(super) async fn assert_readable(&self, what: &str) {
        let beyond = self.chromium.run("return document.documentElement.scrollWidth - innerWidth").await;
        assert!(beyond.as_i64().is_some_and(|pixels| pixels <= 0), "{what}: {beyond} pixels beyond the edge");
        let pale = self.chromium.run(CONTRAST).await;
        assert_eq!(pale, json!([]), "{what}: these texts have too little contrast");
    }

    /// Checks that axe reports nothing serious or critical.
    pub(super) async fn assert_accessible(&self, what: &str) {
        let axe = fs::read_to_string(install_tools().join("node_modules/axe-core/axe.min.js")).unwrap();
        self.chromium.run(&format!("{axe};")).await;
        let script = "const done = arguments[arguments.length - 1];
            const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
            axe.run(document, { runOnly: tags, resultTypes: ['violations'] }).then(({ violations }) => done(violations
                .filter(({ impact }) => ['serious', 'critical'].includes(impact))
                .map(({ id, nodes }) => [id, nodes.length, nodes[0].html])), (error) => done(String(error)));";
        let findings = self.chromium.ask("execute/async", &json!({"script": script, "args": []})).await;
        assert_eq!(findings, json!([]), "{what}");
    }

    /// Saves a screenshot in `target/page`.
    pub(super) async fn save_screenshot(&self, name: &str) {
        let directory = screenshot_directory();
        let answer = self.chromium.devtools("Page.captureScreenshot", json!({"format": "png"})).await;
        let bytes = STANDARD.decode(answer["data"].as_str().unwrap()).unwrap();
        fs::write(directory.join(format!("{name}.png")), bytes).unwrap();
    }

    /// Returns the errors and warnings of the console since the last call, without messages that
    /// contain one of the `known` texts.
    pub(super) async fn console_errors(&self, known: &[&str]) -> Vec<String> {
        let log = self.chromium.ask("se/log", &json!({"type": "browser"})).await;
        let lines = log.as_array().into_iter().flatten();
        let bad = lines.filter(|line| matches!(line["level"].as_str(), Some("SEVERE" | "WARNING")));
        let texts = bad.map(|line| line["message"].as_str().unwrap_or_default().to_owned());
        texts.filter(|text| !known.iter().any(|part| text.contains(part))).collect()
    }

    /// Checks that every request went to the page's own server.
    pub(super) async fn assert_same_origin(&self) {
        let names = self.chromium.run("return performance.getEntriesByType('resource').map((entry) => entry.name)").await;
        for name in names.as_array().unwrap() {
            assert!(name.as_str().unwrap().starts_with(&self.url), "{name}");
        }
    }
}

fn screenshot_directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/page");
    fs::create_dir_all(&directory).unwrap();
    directory
}

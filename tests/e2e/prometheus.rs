//! `/v1/prometheus/sd`, read by a real Prometheus.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::samples::in_state_form;
use crate::harness::etcd::{etcd_binaries, unused_port};
use crate::harness::eventually;
use crate::harness::meshkeep::http;

/// A Prometheus with one job that finds its targets at a URL.
struct Prometheus {
    url: String,
    _process: Child,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    /// Starts the binary that `PROMETHEUS_BIN` names (default: Debian's). It makes the labels
    /// `cluster` and `pod` from those of meshkeep.
    async fn start(discovery_url: &str) -> Self {
        let (directory, port) = (tempfile::tempdir().unwrap(), unused_port());
        let config = directory.path().join("prometheus.yml");
        let relabel = |name: &str| json!({"source_labels": [format!("__meta_meshkeep_{name}")], "target_label": name});
        let discovery = json!({"url": discovery_url, "refresh_interval": "1s"});
        let job = json!({"job_name": "sample", "http_sd_configs": [discovery], "relabel_configs": [relabel("cluster"), relabel("pod")]});
        // JSON is YAML
        std::fs::write(&config, json!({"scrape_configs": [job]}).to_string()).unwrap();
        let binary = std::env::var_os("PROMETHEUS_BIN").unwrap_or_else(|| "prometheus".into());
        let mut command = Command::new(&binary);
        command.arg(format!("--config.file={}", config.display())).arg(format!("--storage.tsdb.path={}", directory.path().display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let spawned = command.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true).spawn();
        let process = spawned.unwrap_or_else(|error| panic!("cannot start {binary:?} (Debian: prometheus): {error}"));
        Self { url: format!("http://127.0.0.1:{port}"), _process: process, _directory: directory }
    }

    async fn get(&self, path: &str) -> Option<String> {
        http().get(format!("{}{path}", self.url)).send().await.ok()?.text().await.ok()
    }

    /// Waits until a request for targets has failed.
    async fn wait_for_failure(&self) {
        let has_failed = |metrics: &str| {
            let mut values = metrics.lines().filter_map(|line| line.strip_prefix("prometheus_sd_http_failures_total"));
            values.any(|value| !value.ends_with(" 0"))
        };
        eventually("a failed request for targets", || async { self.get("/metrics").await.filter(|metrics| has_failed(metrics)) }).await;
    }

    /// Returns the active targets. `None` while Prometheus does not answer.
    async fn targets(&self) -> Option<Vec<Value>> {
        let answer: Value = serde_json::from_str(&self.get("/api/v1/targets?state=active").await?).ok()?;
        answer["data"]["activeTargets"].as_array().cloned()
    }

    /// Waits until the targets have these URLs, and returns them in order.
    async fn wait_for_targets(&self, expected: &[&str]) -> Vec<Value> {
        let expected: BTreeSet<String> = expected.iter().map(|target| format!("http://{target}/metrics")).collect();
        let url = |target: &Value| target["scrapeUrl"].as_str().unwrap().to_owned();
        eventually(&format!("the targets {expected:?}"), || async {
            let mut found = self.targets().await?;
            found.sort_by_key(url);
            (found.iter().map(url).collect::<BTreeSet<String>>() == expected).then_some(found)
        })
        .await
    }
}

#[tokio::test]
async fn a_prometheus_finds_the_backends_of_a_global_service() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let prometheus = Prometheus::start(&format!("{}/v1/prometheus/sd?service=shop/cart&port=http", running.url())).await;
    let targets = prometheus.wait_for_targets(&["10.1.1.21:8080", "10.1.2.21:8080", "10.2.1.21:8080", "10.2.2.21:8080"]).await;
    let first = &targets[0];
    let labels = json!({"cluster": "paris", "instance": "10.1.1.21:8080", "job": "sample", "pod": "cart-6c7d9-abcde"});
    assert_eq!(first["labels"], labels, "{first}");
    for (name, value) in
        [("service", "cart"), ("namespace", "shop"), ("node", "paris-worker-1"), ("port_name", "http"), ("label_app", "cart")]
    {
        assert_eq!(first["discoveredLabels"][format!("__meta_meshkeep_{name}")], json!(value), "{first}");
    }
}

#[tokio::test]
async fn a_prometheus_keeps_its_targets_while_requests_fail() {
    let (etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let prometheus = Prometheus::start(&format!("{}/v1/prometheus/sd?labelSelector=app%3Ddb&maxAge=60", running.url())).await;
    let expected = ["10.1.2.40:5432"];
    prometheus.wait_for_targets(&expected).await;
    drop(etcds);
    running.kill();
    prometheus.wait_for_failure().await;
    prometheus.wait_for_targets(&expected).await;
}

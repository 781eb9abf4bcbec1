//! `--on-problem` with a real receiver that is fast or silent, refuses posts, or is restarted, and
//! with a real Alertmanager.

use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::harness::etcd::unused_port;
use crate::harness::eventually;
use crate::harness::meshkeep::{Home, Meshkeep, http};

/// Stands for a receiver that does not answer at all.
const SILENT: u16 = 0;

/// Status of an answer whose `retry-after` header is [`RETRY_AFTER`] (RFC 9110, 10.2.3).
const TOO_MANY: u16 = 429;

/// Longer than meshkeep waits by itself after a first failure (1 s).
const RETRY_AFTER: Duration = Duration::from_secs(3);

/// Client file of a cluster whose etcd does not answer.
const NOWHERE: &str = "endpoints:
- http://127.0.0.1:1
";

/// Requests so far: the status of the answer, the head, the body and the time of arrival.
type RecordedPosts = Arc<Mutex<Vec<(u16, String, Value, Instant)>>>;

/// An HTTP receiver that answers every request with the current status.
pub(super) struct Receiver {
    port: u16,
    status: Arc<AtomicU16>,
    posts: RecordedPosts,
    accepting: JoinSet<()>,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let (status, posts) = (Arc::new(AtomicU16::new(204)), Arc::default());
        let (port, accepting) = accept(0, &status, &posts).await;
        Self { port, status, posts, accepting }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    fn set_status(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    /// Closes the listener and all connections.
    async fn stop(&mut self) {
        self.accepting.shutdown().await;
    }

    async fn start_again(&mut self) {
        (_, self.accepting) = accept(self.port, &self.status, &self.posts).await;
    }

    /// Returns the requests so far: the status, and the event with the id of its finding.
    pub(super) fn received(&self) -> Vec<(u16, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let posts = self.posts.lock().unwrap();
        posts.iter().map(|(status, _, body, _)| (*status, format!("{} {}", text(&body["event"]), text(&body["finding"]["id"])))).collect()
    }

    /// Waits for a request that got a status.
    async fn wait_until_received(&self, status: u16, what: &str) {
        let expected = (status, what.to_owned());
        eventually(&format!("{what} to be posted, for {status}: {:?}", self.received()), || async {
            self.received().contains(&expected).then_some(())
        })
        .await;
    }
}

async fn accept(port: u16, status: &Arc<AtomicU16>, posts: &RecordedPosts) -> (u16, JoinSet<()>) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (status, posts) = (Arc::clone(status), Arc::clone(posts));
    let mut accepting = JoinSet::new();
    accepting.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            connections.spawn(answer(socket, Arc::clone(&status), Arc::clone(&posts)));
        }
    });
    (port, accepting)
}

/// Reads one request, records it, and answers.
async fn answer(mut socket: TcpStream, status: Arc<AtomicU16>, posts: RecordedPosts) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let (head, body) = loop {
        let length = socket.read(&mut buffer).await.unwrap_or(0);
        if length == 0 {
            return;
        }
        request.extend_from_slice(&buffer[..length]);
        let text = String::from_utf8(request.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
        if body.len() == length {
            break (head.to_owned(), serde_json::from_str(body).unwrap());
        }
    };
    let status = status.load(Ordering::Relaxed);
    posts.lock().unwrap().push((status, head, body, Instant::now()));
    if status == SILENT {
        return std::future::pending().await;
    }
    let wait = if status == TOO_MANY { format!("retry-after: {}\r\n", RETRY_AFTER.as_secs()) } else { String::new() };
    let answer = format!("HTTP/1.1 {status} x\r\nlocation: http://127.0.0.1:1/\r\n{wait}content-length: 0\r\n\r\n");
    let _ = socket.write_all(answer.as_bytes()).await;
}

/// An Alertmanager without receivers, whose API has the alerts that it got.
struct Alertmanager {
    url: String,
    _process: Child,
    _directory: tempfile::TempDir,
}

impl Alertmanager {
    /// Starts the binary that `ALERTMANAGER_BIN` names (default: Debian's).
    async fn start() -> Self {
        let (directory, port) = (tempfile::tempdir().unwrap(), unused_port());
        let config = directory.path().join("alertmanager.yml");
        std::fs::write(&config, "route: {receiver: none}\nreceivers: [{name: none}]\n").unwrap();
        let binary = std::env::var_os("ALERTMANAGER_BIN").unwrap_or_else(|| "prometheus-alertmanager".into());
        let mut command = Command::new(&binary);
        command.arg(format!("--config.file={}", config.display())).arg(format!("--storage.path={}", directory.path().display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}")).arg("--cluster.listen-address=");
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let spawned = command.stdout(log.try_clone().unwrap()).stderr(log).kill_on_drop(true).spawn();
        let process = spawned.unwrap_or_else(|error| panic!("cannot start {binary:?} (Debian: prometheus-alertmanager): {error}"));
        let manager = Self { url: format!("http://127.0.0.1:{port}/api/v2/alerts"), _process: process, _directory: directory };
        eventually("the Alertmanager to answer", || async { manager.active().await.map(drop) }).await;
        manager
    }

    /// Returns the alerts that have not ended; `None` while it does not answer.
    async fn active(&self) -> Option<Vec<Value>> {
        let answer = http().get(&self.url).send().await.ok()?;
        serde_json::from_slice(&answer.bytes().await.ok()?).ok()
    }
}

async fn posting_to(receiver: &Receiver) -> (Home, Meshkeep) {
    let mut home = Home::new().with_flags(&[&format!("--on-problem=http://127.0.0.1:{}/hook", receiver.port())]);
    let meshkeep = home.start().await;
    (home, meshkeep)
}

#[tokio::test]
async fn each_new_or_resolved_finding_is_posted_once() {
    let receiver = Receiver::start().await;
    let (home, meshkeep) = posting_to(&receiver).await;
    home.write_cluster("paris", NOWHERE);
    receiver.wait_until_received(204, "appeared clusterUnreachable/paris").await;
    let listed = meshkeep.get("/v1/problems").await;
    let (head, body) = {
        let posts = receiver.posts.lock().unwrap();
        (posts[0].1.clone(), posts[0].2.clone())
    };
    assert!(head.starts_with("POST /hook HTTP/1.1") && head.contains("content-type: application/json"), "{head}");
    assert_eq!((&body["finding"]["since"], &body["finding"]["severity"]), (&listed["items"][0]["since"], &listed["items"][0]["severity"]));
    assert_eq!(body["meshkeep"]["version"], json!(env!("CARGO_PKG_VERSION")));
    home.remove_cluster("paris");
    receiver.wait_until_received(204, "gone clusterUnreachable/paris").await;
    let about_paris = |(status, what): &(u16, String)| *status == 204 && what.contains("clusterUnreachable/paris");
    assert_eq!(receiver.received().into_iter().filter(about_paris).count(), 2, "{:?}", receiver.received());
    assert!(meshkeep.text("/metrics").await.contains("meshkeep_problem_posts_total{outcome=\"accepted\"}"));
    let config = meshkeep.get("/v1/config").await;
    let shown = config["items"].as_array().unwrap().iter().find(|item| item["name"] == "on-problem").unwrap();
    assert_eq!(shown["values"], json!([format!("http://127.0.0.1:{}/REDACTED", receiver.port())]));
}

/// A finding that is resolved before it was delivered is omitted. All others are delivered as soon
/// as the receiver works.
#[tokio::test]
async fn failed_posts_are_retried_and_refused_posts_are_not() {
    let receiver = Receiver::start().await;
    receiver.set_status(503);
    let (home, meshkeep) = posting_to(&receiver).await;
    home.write_cluster("paris", NOWHERE);
    receiver.wait_until_received(503, "appeared clusterUnreachable/paris").await;
    home.remove_cluster("paris");
    home.write_cluster("tokyo", NOWHERE);
    receiver.wait_until_received(503, "appeared clusterUnreachable/tokyo").await;
    receiver.set_status(204);
    receiver.wait_until_received(204, "appeared clusterUnreachable/tokyo").await;
    assert!(!receiver.received().contains(&(204, "appeared clusterUnreachable/paris".to_owned())), "{:?}", receiver.received());
    // a redirect is not followed, because it would send a finding elsewhere
    for (status, cluster) in [(400, "oslo"), (307, "rome")] {
        receiver.set_status(status);
        home.write_cluster(cluster, NOWHERE);
        receiver.wait_until_received(status, &format!("appeared clusterUnreachable/{cluster}")).await;
    }
    receiver.set_status(204);
    home.write_cluster("lima", NOWHERE);
    receiver.wait_until_received(204, "appeared clusterUnreachable/lima").await;
    for cluster in ["oslo", "rome"] {
        let count = receiver.received().iter().filter(|(_, what)| what.ends_with(cluster)).count();
        assert_eq!(count, 1, "{:?}", receiver.received());
    }
    assert_eq!(meshkeep.log_lines_with(&["refused a finding", "it answers 400"]), 1, "{}", meshkeep.log());
}

#[tokio::test]
async fn no_post_is_sent_before_retry_after_has_passed() {
    let receiver = Receiver::start().await;
    receiver.set_status(TOO_MANY);
    let (home, _meshkeep) = posting_to(&receiver).await;
    home.write_cluster("paris", NOWHERE);
    let times: Vec<Instant> = eventually("a second post", || async {
        let posts = receiver.posts.lock().unwrap();
        (posts.len() >= 2).then(|| posts.iter().map(|(.., time)| *time).collect())
    })
    .await;
    let wait = times[1] - times[0];
    assert!(wait >= RETRY_AFTER, "{wait:?}");
}

/// Nothing waits for a receiver: neither requests, nor the mirror, nor the shutdown.
#[tokio::test]
async fn a_silent_or_restarted_receiver_blocks_nothing() {
    let mut receiver = Receiver::start().await;
    receiver.set_status(SILENT);
    let (home, meshkeep) = posting_to(&receiver).await;
    home.write_cluster("paris", NOWHERE);
    receiver.wait_until_received(SILENT, "appeared clusterUnreachable/paris").await;
    home.write_cluster("tokyo", NOWHERE);
    let problems = || async { meshkeep.get("/v1/problems?kind=clusterUnreachable").await["items"].as_array().unwrap().len() };
    eventually("both to be listed while the receiver sleeps", || async { (problems().await == 2).then_some(()) }).await;
    let started = Instant::now();
    meshkeep.get("/v1/status").await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());

    receiver.stop().await;
    receiver.set_status(204);
    eventually("a post to fail", || async {
        let metrics = meshkeep.text("/metrics").await;
        (!metrics.contains("meshkeep_problem_posts_total{outcome=\"failed\"} 0")).then_some(())
    })
    .await;
    receiver.start_again().await;
    for cluster in ["paris", "tokyo"] {
        receiver.wait_until_received(204, &format!("appeared clusterUnreachable/{cluster}")).await;
    }
    receiver.set_status(SILENT);
    home.remove_cluster("paris");
    receiver.wait_until_received(SILENT, "gone clusterUnreachable/paris").await;
    let ended = meshkeep.stop().await;
    assert!(ended.status.success() && ended.elapsed < Duration::from_secs(5), "{:?}", ended.elapsed);
}

#[tokio::test]
async fn an_alertmanager_has_an_alert_for_as_long_as_the_finding_lasts() {
    let manager = Alertmanager::start().await;
    let mut home = Home::new().with_flags(&[&format!("--on-problem={}", manager.url), "--on-problem-format=alertmanager"]);
    let meshkeep = home.start().await;
    home.write_cluster("paris", NOWHERE);
    let about_paris = |alert: &Value| alert["labels"]["target_cluster"] == "paris";
    let alert = eventually("an alert", || async { manager.active().await?.into_iter().find(about_paris) }).await;
    let finding = meshkeep.get("/v1/problems?cluster=paris").await["items"][0].clone();
    let labels = json!({
        "alertname": "MeshkeepProblem", "finding": "clusterUnreachable/paris", "kind": "clusterUnreachable",
        "severity": "critical", "target_cluster": "paris",
    });
    assert_eq!(alert["labels"], labels);
    assert_eq!(alert["annotations"], json!({"summary": finding["detail"], "description": finding["advice"]}));
    // the alertmanager writes `.830Z` where meshkeep writes `.83Z`
    let time = |time: &Value| time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!((time(&alert["startsAt"]), &alert["status"]["state"]), (time(&finding["since"]), &json!("active")));
    home.remove_cluster("paris");
    eventually("the alert to end", || async { (!manager.active().await?.iter().any(about_paris)).then_some(()) }).await;
    assert!(meshkeep.text("/metrics").await.contains("meshkeep_problem_posts_total{outcome=\"refused\"} 0"));
}

#[tokio::test]
async fn cloud_events_have_the_required_attributes_and_their_media_type() {
    let receiver = Receiver::start().await;
    let on_problem = format!("--on-problem=http://127.0.0.1:{}/", receiver.port());
    let mut home = Home::new().with_flags(&[&on_problem, "--on-problem-format=cloudevents"]);
    let _meshkeep = home.start().await;
    home.write_cluster("paris", NOWHERE);
    let (head, event) = eventually("a post", || async {
        let posts = receiver.posts.lock().unwrap();
        posts
            .iter()
            .find(|(_, _, body, _)| body["subject"] == "clusterUnreachable/paris")
            .map(|(_, head, body, _)| (head.clone(), body.clone()))
    })
    .await;
    assert!(head.contains("content-type: application/cloudevents+json\r\n"), "{head}");
    assert_eq!([&event["specversion"], &event["type"], &event["source"]], ["1.0", "meshkeep.problem.appeared", "meshkeep"]);
    assert_eq!((&event["data"]["event"], &event["data"]["finding"]["kind"]), (&json!("appeared"), &json!("clusterUnreachable")));
    assert!(event["id"].as_str().unwrap().starts_with("clusterUnreachable/paris/appeared/"), "{event}");
}

#[tokio::test]
async fn an_invalid_url_is_refused_without_being_logged() {
    for url in ["hunter2", "ftp://hunter2@a", "http://[/hunter2", "https://bob:hunter2@/x"] {
        let ended = Home::new().with_flags(&[&format!("--on-problem={url}")]).run_to_the_end().await;
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{url}: {}", ended.log);
        assert!(ended.log.contains("--on-problem") && !ended.log.contains("hunter2"), "{url}: {}", ended.log);
    }
}

//! Secrets in every place that can contain one: none may appear in an answer or in the log at its
//! finest level, or be readable by other users.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::bundle::{bundle, files_of};
use super::on_problem::Receiver;
use crate::harness::certificates::Authority;
use crate::harness::etcd::{Etcd, unused_port};
use crate::harness::eventually;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster, publish};
use crate::harness::meshkeep::{Home, Meshkeep, http};

/// Text that every secret of these tests contains, and no other text.
const SECRET: &str = "hunter2";

/// Bearer token in the token file.
const TOKEN: &str = "hunter2-bearer";

/// [`SECRET`] as `{:?}` prints its bytes.
const SECRET_BYTES: &str = "104, 117, 110, 116, 101, 114, 50";

/// [`SECRET`] in base64, at each of the three offsets in a group of three bytes.
const SECRET_BASE64: [&str; 3] = ["aHVudGVyM", "h1bnRlcj", "odW50ZXIy"];

fn assert_clean(what: &str, text: &str) {
    for secret in [SECRET, SECRET_BYTES].iter().chain(&SECRET_BASE64) {
        if let Some(position) = text.find(secret) {
            let from = text.floor_char_boundary(position.saturating_sub(300));
            panic!("{what} holds a secret: …{}", &text[from..text.ceil_char_boundary(position + 100)]);
        }
    }
}

/// Returns client files, each with a secret in another place, and the phase that each cluster
/// reaches.
fn cluster_files(etcd: &Etcd, authority: &Authority) -> Vec<(&'static str, String, &'static str)> {
    let closed = "endpoints:\n- http://127.0.0.1:1\n";
    let pair = authority.client("meshkeep");
    let key = pair.key.with_file_name("one-line.key");
    fs::write(&key, format!("-----BEGIN PRIVATE KEY-----{SECRET}-----END PRIVATE KEY-----\n")).unwrap();
    let with_key =
        |key: &Path| format!("endpoints:\n- https://127.0.0.1:1\ncert-file: {}\nkey-file: {}\n", pair.certificate.display(), key.display());
    vec![
        ("c01", etcd.client_file_yaml(), "live"),
        ("wrong-password", etcd.client_file_yaml().replace("hunter2-password", "hunter2-other"), "backingOff"),
        ("userinfo", format!("endpoints:\n- http://hunter2-bob:hunter2-pw@127.0.0.1:{}\n", etcd.port()), "backingOff"),
        ("userinfo-alone", "endpoints:\n- hunter2-bob:hunter2-pw@127.0.0.1:1\n".into(), "backingOff"),
        ("userinfo-slash", "endpoints:\n- https://bob:p/hunter2@127.0.0.1:1\n".into(), "backingOff"),
        ("no-host", "endpoints:\n- https://bob:hunter2\n".into(), "backingOff"),
        ("query", "endpoints:\n- http://127.0.0.1:1?token=hunter2\n".into(), "backingOff"),
        ("fragment", "endpoints:\n- http://127.0.0.1:1/#hunter2\n".into(), "backingOff"),
        ("token", format!("{closed}token: hunter2-token\n"), "backingOff"),
        ("broken", "endpoints:\n- https://a:1\npassword: hunter2: [\n".into(), "backingOff"),
        ("twice", format!("{closed}hunter2-pw: 1\nhunter2-pw: 2\n"), "backingOff"),
        ("wrong-type", format!("{closed}username: u\npassword: [hunter2]\n"), "backingOff"),
        ("key", with_key(&pair.key), "backingOff"),
        ("key-in-one-line", with_key(&key), "backingOff"),
    ]
}

/// HTTP client of a sidecar. [`CheckedClient::read`] checks each answer for secrets.
struct CheckedClient {
    url: String,
    client: reqwest::Client,
}

impl CheckedClient {
    fn new(meshkeep: &Meshkeep) -> Self {
        // installs the TLS provider
        http();
        let builder = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).danger_accept_invalid_certs(true);
        Self { url: meshkeep.url().to_owned(), client: builder.build().unwrap() }
    }

    async fn send(&self, path: &str, token: &str) -> reqwest::Response {
        self.client.get(format!("{}{path}", self.url)).bearer_auth(token).send().await.unwrap()
    }

    /// Reads an answer and checks it and its headers for secrets.
    async fn read(&self, path: &str, token: &str) -> String {
        let response = self.send(path, token).await;
        let head = format!("{:?}", response.headers());
        let body = response.text().await.unwrap();
        assert_clean(path, &format!("{head}\n{body}"));
        body
    }

    async fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.read(path, TOKEN).await).unwrap()
    }

    /// Reads a stream until a text was received.
    async fn read_stream_until(&self, path: &str, text: &str) {
        let mut chunks = self.send(path, TOKEN).await.bytes_stream();
        let mut read = String::new();
        while !read.contains(text) {
            read += &String::from_utf8_lossy(&chunks.next().await.expect("must go on").unwrap());
            assert_clean(path, &read);
        }
    }

    /// Returns every path of the OpenAPI document, once per cluster for paths with a cluster.
    async fn every_path(&self, clusters: &[&str]) -> Vec<String> {
        let document = self.json("/openapi.json").await;
        let mut paths = vec!["/".to_owned(), "/openapi-3.0.json".to_owned(), "/nowhere".to_owned()];
        for path in document["paths"].as_object().unwrap().keys().filter(|path| *path != "/v1/events") {
            let example = path.replace("{ip}", "10.1.0.1").replace("{id}", "2").replace("{prefix}", "10.1.0.1");
            let example = example.replace("{namespace}", "a").replace("{name}", "b").replace("{key}", "c");
            match example.contains("{cluster}") {
                true => paths.extend(clusters.iter().map(|cluster| example.replace("{cluster}", cluster))),
                false => paths.push(example),
            }
        }
        paths.extend(["/readyz?verbose&synced", "/v1/ipcache/lookup?ip=10.1.0.1"].map(str::to_owned));
        paths
    }
}

/// Returns the paths in a directory that other users may access, with their modes.
fn shared_with_others(directory: &Path) -> Vec<String> {
    let inside = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = inside.flat_map(|path| if path.is_dir() { shared_with_others(&path) } else { shared(&path) });
    shared(directory).into_iter().chain(below).collect()
}

fn shared(path: &Path) -> Vec<String> {
    let mode = fs::symlink_metadata(path).unwrap().mode();
    if mode & 0o077 == 0 { Vec::new() } else { vec![format!("{} {mode:o}", path.display())] }
}

#[tokio::test]
async fn no_answer_and_no_line_of_the_log_contains_a_secret() {
    let mut etcd = Etcd::builder().start().await;
    publish(&etcd, Form::State, &[MeshCluster::generate(1, EVERY_KIND)], "2026-01-12T09:31:07Z").await;
    etcd.enable_auth("hunter2-user", "hunter2-password").await;
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).display().to_string();
    fs::write(file("token"), TOKEN).unwrap();
    fs::write(file("config.yaml"), "# hunter2\nstore-lock-wait: 1s\n").unwrap();
    let authority = Authority::new(&directory.path().join("authority"), "authority");
    let ours = authority.server("ours", &["127.0.0.1"]);
    let files = cluster_files(&etcd, &authority);
    let (token, config) = (format!("--token-file={}", file("token")), format!("--config={}", file("config.yaml")));
    let receiver = Receiver::start().await;
    let on_problem = format!("--on-problem=http://hunter2-bob:hunter2-pw@127.0.0.1:{}/hunter2?key=hunter2#hunter2", receiver.port());
    let (certificate, key) = (format!("--tls-cert={}", ours.certificate.display()), format!("--tls-key={}", ours.key.display()));
    let mut home = Home::new()
        .with_flags(&[&token, &config, &certificate, &key, &on_problem, "--log-level=trace"])
        .after_shell_commands("umask 000; export RUST_LOG=trace ETCD_PASSWORD=hunter2-environment MESHKEEP_NO_OPTION=hunter2-option");
    for (name, text, _) in &files {
        home.write_cluster(name, text);
    }
    let meshkeep = home.start().await;
    let client = CheckedClient::new(&meshkeep);
    let names: Vec<&str> = files.iter().map(|(name, ..)| *name).collect();
    for (name, _, phase) in &files {
        eventually(&format!("{name} in phase {phase}"), || async {
            let state = client.json(&format!("/v1/clusters/{name}")).await;
            let reported = *phase == "live" || !state["lastError"].is_null();
            (state["phase"] == json!(phase) && reported).then_some(())
        })
        .await;
    }
    for path in client.every_path(&names).await {
        client.read(&path, TOKEN).await;
        client.read(&path, "hunter2-wrong").await;
        let separator = if path.contains('?') { '&' } else { '?' };
        client.read(&format!("{path}{separator}token=hunter2-query"), TOKEN).await;
    }
    for path in ["/v1/events?snapshot=true", "/v1/events?snapshot=true&token=hunter2-query"] {
        let text = if path.contains("token") { "badParameter" } else { "event: synced" };
        client.read_stream_until(path, text).await;
    }
    let output = bundle(
        meshkeep.url(),
        directory.path(),
        &["--output=-", "--token-file", &file("token"), "--ca-file", authority.certificate().to_str().unwrap()],
    );
    assert_clean("the bundle's log", &String::from_utf8_lossy(&output.stderr));
    let unpacked = files_of(&output.stdout);
    assert!(unpacked.len() >= 10 && unpacked["meshkeep-bundle/config.json"].contains("REDACTED"), "{:?}", unpacked.keys());
    for (name, text) in unpacked {
        assert_clean(&name, &text);
    }
    // otherwise the log contains nothing about posts
    eventually("a finding to be posted", async || receiver.received().iter().any(|(status, _)| *status == 204).then_some(())).await;
    let ended = meshkeep.stop().await;
    assert!(ended.log.contains("TRACE"), "the log must have its finest level");
    assert_clean("the log", &ended.log);
    // a line of the private key that is in use
    let private_key = fs::read_to_string(&ours.key).unwrap();
    let line = private_key.lines().nth(1).unwrap();
    assert!(!ended.log.contains(line), "the TLS key is in the log");

    assert_eq!(shared_with_others(&home.data_directory()), Vec::<String>::new());
}

#[tokio::test]
async fn unusable_files_are_reported_without_their_content() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let pair = Authority::new(directory.path(), "authority").server("ours", &["127.0.0.1"]);
    let one_line = write("one-line.key", &format!("-----BEGIN PRIVATE KEY-----{SECRET}-----END PRIVATE KEY-----\n"));
    let certificate = format!("--tls-cert={}", pair.certificate.display());
    let cases: [(&[&str], &str); 5] = [
        (&[&format!("--config={}", write("broken", "token-file: hunter2: [\n"))], "line 1"),
        (&[&format!("--config={}", write("text", "hunter2\n"))], "line 1"),
        (&[&certificate, &format!("--tls-key={one_line}")], "one-line.key"),
        (&[&format!("--tls-cert={one_line}"), &format!("--tls-key={}", pair.key.display())], "one-line.key"),
        (&[&format!("--token-file={}", write("token", "\n"))], "it contains no token"),
    ];
    for (flags, named) in cases {
        let ended = Home::new().with_flags(flags).run_to_the_end().await;
        assert!(matches!(ended.status.code(), Some(1 | 2)), "{flags:?}: {}", ended.log);
        assert!(ended.log.contains(named), "{flags:?}: {}", ended.log);
        assert_clean(&format!("{flags:?}"), &ended.log);
    }
}

/// A start restricts a data directory that an earlier version, or another umask, left open to all
/// users.
#[tokio::test]
async fn a_data_directory_open_to_other_users_is_restricted() {
    let mut home = Home::new().after_shell_commands("umask 000");
    home.start().await.stop().await;
    let data = home.data_directory();
    let loose = ["", "lock", "reserve", "store", "store/db", "store/format"].map(|name| data.join(name));
    for path in &loose {
        fs::set_permissions(path, fs::Permissions::from_mode(if path.is_dir() { 0o777 } else { 0o666 })).unwrap();
    }
    let elsewhere = data.with_file_name("elsewhere");
    fs::write(&elsewhere, "").unwrap();
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o644)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, data.join("link")).unwrap();
    let meshkeep = home.start().await;
    fs::remove_file(data.join("link")).unwrap();
    assert_eq!(shared_with_others(&data), Vec::<String>::new());
    assert_eq!(fs::metadata(&elsewhere).unwrap().mode() & 0o777, 0o644, "the target of a link is not changed");
    drop(meshkeep);
}

/// Every command that sends requests to a server, with arguments that make it do so.
const QUERY_COMMANDS: [(&str, &[&str]); 19] = [
    ("bundle", &["--output", "-"]),
    ("config", &[]),
    ("diff", &["--agent", "tests/data/agent/1.18-ip.json"]),
    ("entries", &[]),
    ("explain", &["10.1.0.1"]),
    ("find", &["cart"]),
    ("get", &["nodes"]),
    ("healthcheck", &[]),
    ("history", &["10.1.0.1"]),
    ("impact", &["paris"]),
    ("log", &[]),
    ("lookup", &["10.1.0.1"]),
    // ends with standard input
    ("mcp", &[]),
    ("problems", &[]),
    ("rejected", &[]),
    ("status", &["--wait", "--timeout", "1s"]),
    ("verify", &[]),
    ("version", &[]),
    ("watch", &[]),
];

fn help(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(arguments).arg("--help").env_clear().output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn secrets_in_the_url_of_a_server_are_not_printed() {
    // `QUERY_COMMANDS` is complete
    let commands = help(&[]);
    let names = commands.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap().lines();
    let names = names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|name| !name.is_empty() && *name != "help");
    let with_server: Vec<&str> = names.filter(|name| help(&[name]).contains("--server <URL>")).collect();
    let mut known = QUERY_COMMANDS.map(|(name, _)| name).to_vec();
    let mut listed = with_server.clone();
    known.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, known);

    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "hunter2-bearer").unwrap();
    let mut home = Home::new().with_flags(&[&format!("--token-file={}", token.display())]);
    let guarded = home.start().await;
    let mut open = Home::new();
    let open = open.start().await;
    let address_of = |meshkeep: &Meshkeep| meshkeep.url().trim_start_matches("http://").to_owned();
    let credentials = "hunter2-bob:hunter2-pw";
    let urls = [
        // a port without a server, a server that requires a token, a server that answers
        format!("http://{credentials}@127.0.0.1:{}/hunter2?key=hunter2#hunter2", unused_port()),
        format!("http://{credentials}@{}", address_of(&guarded)),
        format!("http://{credentials}@{}/hunter2?key=hunter2", address_of(&open)),
        // an unknown host, a server without TLS, and invalid URLs
        format!("http://{credentials}@nowhere.invalid:1"),
        format!("https://{credentials}@{}", address_of(&open)),
        format!("http://{credentials}@127.0.0.1:hunter2"),
        format!("ftp://{credentials}@127.0.0.1:1/"),
        format!("{credentials}@127.0.0.1:1"),
        format!("http://{credentials}@"),
        "http://hunter2-bob:hunter2/pw@127.0.0.1:1".to_owned(),
    ];
    let ask = |url: String, by_environment: bool, name: &'static str, arguments: &'static [&'static str]| async move {
        let mut command = tokio::process::Command::new("timeout");
        // a watch does not end by itself, whether it is answered or not
        let seconds = if name == "watch" { "2" } else { "20" };
        command.args([seconds, env!("CARGO_BIN_EXE_meshkeep"), name]).args(arguments).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null());
        if by_environment {
            command.env("MESHKEEP_SERVER", &url)
        } else {
            command.args(["--server", &url])
        };
        let output = command.output().await.unwrap();
        for part in [&output.stdout, &output.stderr] {
            assert_clean(&format!("{name} of {url}"), &String::from_utf8_lossy(part));
        }
    };
    for (number, url) in urls.iter().enumerate() {
        for by_environment in [false, true].into_iter().filter(|by_environment| !by_environment || number == 0) {
            let asked = QUERY_COMMANDS.map(|(name, arguments)| ask(url.clone(), by_environment, name, arguments));
            futures_util::future::join_all(asked).await;
        }
    }
}

//! `meshkeep doctor` with real etcds and real TLS: the working case, and each failure.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::certificates::{Authority, Pair};
use crate::harness::etcd::{Etcd, Tls, etcd_binaries};
use crate::harness::meshkeep::Home;

/// Puts the keys that every etcd has before its entries (cluster config, canaries, heartbeat), and
/// one node.
async fn put_prerequisites(etcd: &Etcd, cluster: &str) {
    let config = r#"{"id":1,"capabilities":{"syncedCanaries":true,"maxConnectedClusters":255}}"#;
    let mut entries = vec![(format!("cilium/cluster-config/{cluster}"), config.to_owned())];
    for resource in ["nodes", "services", "identities", "ip"] {
        entries.push((format!("cilium/synced/{cluster}/cilium/state/{resource}/v1"), "2026-01-12T09:31:07Z".to_owned()));
    }
    entries.push(("cilium/.heartbeat".to_owned(), ago(10)));
    entries.push(("cilium/state/nodes/v1/paris/worker-1".to_owned(), "{}".to_owned()));
    etcd.put_many(entries).await;
}

/// Returns the time `seconds` ago, as Go writes it.
fn ago(seconds: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    jiff::Timestamp::from_second(i64::try_from(now.as_secs()).unwrap() - seconds).unwrap().to_string()
}

/// Directory of the config files.
struct DoctorSetup(TempDir);

impl DoctorSetup {
    fn new() -> Self {
        let setup = Self(TempDir::new().unwrap());
        fs::create_dir_all(setup.0.path().join("clustermesh")).unwrap();
        fs::create_dir_all(setup.0.path().join("data")).unwrap();
        setup
    }

    fn write(&self, cluster: &str, text: &str) {
        fs::write(self.0.path().join("clustermesh").join(cluster), text).unwrap();
    }

    fn doctor(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.arg("doctor").arg("--clustermesh-config").arg(self.0.path().join("clustermesh"));
        command.arg("--data-dir").arg(self.0.path().join("data")).args(["--timeout", "5s"]).args(arguments);
        command
    }

    /// Runs the command. Returns the exit code and the report.
    async fn report(&self, arguments: &[&str]) -> (i32, Value) {
        let mut command = tokio::process::Command::from(self.doctor(&[&["-o", "json"], arguments].concat()));
        let output = command.output().await.unwrap();
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code().unwrap(), report)
    }

    /// Returns the exit code and all checks that are not `ok`, as `step: found`: the general ones,
    /// and those of the first cluster and of its first endpoint.
    async fn complaints(&self) -> (i32, Vec<String>) {
        let (code, report) = self.report(&[]).await;
        let cluster = &report["clusters"][0];
        let checks = [&report["checks"], &cluster["checks"], &cluster["endpoints"][0]["checks"]];
        let all = checks.into_iter().filter_map(Value::as_array).flatten();
        let wrong = all.filter(|check| check["outcome"] != "ok").inspect(|check| assert!(check["advice"].is_string(), "{check}"));
        (code, wrong.map(|check| format!("{}: {}", check["step"].as_str().unwrap(), check["found"].as_str().unwrap())).collect())
    }

    /// Returns the advice of a failed check.
    async fn advice(&self, step: &str) -> String {
        let (_, report) = self.report(&[]).await;
        let cluster = &report["clusters"][0];
        let mut checks = [&cluster["checks"], &cluster["endpoints"][0]["checks"]].into_iter().filter_map(Value::as_array).flatten();
        let failed = checks.find(|check| check["outcome"] == "failed" && check["step"] == step);
        failed.unwrap_or_else(|| panic!("{step}: {report:#}"))["advice"].as_str().unwrap().to_owned()
    }

    /// Checks that exactly one check fails, with this text.
    async fn assert_complaint(&self, step: &str, text: &str) {
        let (code, complaints) = self.complaints().await;
        let named = complaints.len() == 1 && complaints[0].starts_with(&format!("{step}: ")) && complaints[0].contains(text);
        assert!(named && code == 1, "exit {code}, expected {step} with {text:?}: {complaints:#?}");
    }
}

fn with_pair(file: &str, old: &Pair, new: &Pair) -> String {
    let text = |path: &Path| path.display().to_string();
    file.replace(&text(&old.certificate), &text(&new.certificate)).replace(&text(&old.key), &text(&new.key))
}

#[tokio::test]
async fn a_working_setup_passes_every_check() {
    let setup = DoctorSetup::new();
    for binary in etcd_binaries() {
        let etcd = Etcd::builder().binary(&binary).tls(Tls::Mutual).start().await;
        put_prerequisites(&etcd, "paris").await;
        setup.write("paris", &etcd.client_file_yaml());
        let (code, report) = setup.report(&["paris"]).await;
        assert_eq!(code, 0, "{report:#}");
        let steps: Vec<(&str, &str)> = report["clusters"][0]["endpoints"][0]["checks"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|check| check["outcome"] == "ok")
            .map(|check| (check["step"].as_str().unwrap(), check["found"].as_str().unwrap()))
            .collect();
        let assert_step = |name: &str, text: &str| {
            assert!(steps.iter().any(|(step, found)| *step == name && found.contains(text)), "{name} {text}: {steps:#?}")
        };
        assert_step("dns", "127.0.0.1");
        assert_step("tcp", &etcd.port().to_string());
        assert_step("tls", "requires a client certificate");
        assert_step("server", "etcd 3.");
        assert_step("history", "not stored yet");
        assert_step("cluster config", "id 1, the cluster's own, mesh of 255");
        assert_step("entries", "1 below cilium/state/nodes/v1/paris/");
        assert_step("heartbeat", "s ago");
        let reported = String::from_utf8(setup.doctor(&[]).output().unwrap().stdout).unwrap();
        assert!(reported.contains("cluster paris (") && reported.trim_end().ends_with("everything works"), "{reported}");
    }
    // a cluster without a file
    let output = setup.doctor(&["tokyo"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && complaint.contains("no file for cluster tokyo; its client files: paris"), "{complaint}");
}

#[tokio::test]
async fn each_connection_fault_is_reported_with_advice() {
    let setup = DoctorSetup::new();
    let binaries = etcd_binaries();
    // the newest release has none of the bugs that cause warnings
    let etcd = Etcd::builder().binary(binaries.last().unwrap()).tls(Tls::Mutual).start().await;
    put_prerequisites(&etcd, "paris").await;
    let good = etcd.client_file_yaml();
    let endpoint = format!("https://127.0.0.1:{}", etcd.port());
    let other_authority = Authority::new(&setup.0.path().join("stranger"), "stranger");

    setup.write("paris", "endpoints: https://somewhere\n");
    setup.assert_complaint("file", "endpoints must be a list").await;
    setup.write("paris", &good.replace(&endpoint, "https://no-such-host.invalid:2379"));
    setup.assert_complaint("dns", "").await;
    assert!(setup.advice("dns").await.contains("check the name in the client file, and that this machine can resolve it"));
    setup.write("paris", &good.replace(&endpoint, "https://paris.mesh.cilium.io:2379"));
    assert!(setup.advice("dns").await.contains("hostAliases that Cilium's chart gives its own"));
    let missing = "/var/lib/cilium/clustermesh/common-etcd-client.key";
    let key = good.lines().find_map(|line| line.strip_prefix("key-file: ")).unwrap();
    setup.write("paris", &good.replace(key, missing));
    assert!(setup.advice("certificates").await.contains("mount tls.key of the Secret clustermesh-apiserver-remote-cert"));
    setup.write("paris", &good.replace(&endpoint, "https://127.0.0.1:1"));
    setup.assert_complaint("tcp", "refused").await;
    setup.write(
        "paris",
        &good.replace(&etcd.authority().certificate().display().to_string(), &other_authority.certificate().display().to_string()),
    );
    let (code, complaints) = setup.complaints().await;
    assert!(
        code == 1 && complaints.iter().any(|complaint| complaint.contains("the server's certificate is not trusted")),
        "{complaints:#?}"
    );
    setup.write("paris", &good.replace("trusted-ca-file", "trusted_ca_file"));
    let (code, complaints) = setup.complaints().await;
    let misspelling = "file: it contains \"trusted_ca_file\" where \"trusted-ca-file\" is meant, which etcd's client ignores";
    assert!(code == 1 && complaints[0] == misspelling && complaints.len() > 1, "{complaints:#?}");
    let expired = etcd.authority().client_until("late", 2020);
    setup.write("paris", &with_pair(&good, etcd.client_pair(), &expired));
    let (code, complaints) = setup.complaints().await;
    assert!(
        code == 1 && complaints.iter().any(|complaint| complaint.contains("CN=late") && complaint.contains("expired 2020-01-01")),
        "{complaints:#?}"
    );
    let foreign = other_authority.client("meshkeep");
    setup.write("paris", &with_pair(&good, etcd.client_pair(), &foreign));
    let (code, complaints) = setup.complaints().await;
    assert!(
        code == 1 && complaints.iter().any(|complaint| complaint.starts_with("server: ") || complaint.starts_with("tls: ")),
        "{complaints:#?}"
    );
    let without_certificate: String = good
        .lines()
        .filter(|line| !line.starts_with("cert-file") && !line.starts_with("key-file"))
        .map(|line| line.to_owned() + "\n")
        .collect();
    setup.write("paris", &without_certificate);
    let (_, report) = setup.report(&[]).await;
    assert!(
        report.to_string().contains("set cert-file and key-file") || report.to_string().contains("(cert-file and key-file)"),
        "{report:#}"
    );
}

/// Messages explain why a certificate is not trusted although its names look right.
#[tokio::test]
async fn doctor_explains_namesakes_and_missing_intermediates() {
    let setup = DoctorSetup::new();
    let etcd = Etcd::builder().binary(etcd_binaries().last().unwrap()).tls(Tls::Mutual).start().await;
    put_prerequisites(&etcd, "paris").await;
    let good = etcd.client_file_yaml();
    let report = async |text: &str| {
        setup.write("paris", text);
        let (code, complaints) = setup.complaints().await;
        assert_eq!(code, 1, "{complaints:#?}");
        complaints
    };
    let says = |complaints: &[String], parts: &[&str]| {
        assert!(complaints.iter().any(|text| parts.iter().all(|part| text.contains(part))), "{parts:?}: {complaints:#?}");
    };
    let namesake = Authority::new(&setup.0.path().join("namesake"), "ca");
    let (ours, theirs) = (etcd.authority().certificate().display().to_string(), namesake.certificate().display().to_string());
    let complaints = report(&good.replace(&ours, &theirs)).await;
    says(
        &complaints,
        &["the server's certificate is not trusted", "by another CN=ca than the one in ", "same name, different key (signed by key "],
    );
    says(&complaints, &["the client's certificate is not trusted by trusted-ca-file", "same name, different key (signed by key "]);

    let complaints = report(&with_pair(&good, etcd.client_pair(), &namesake.client("meshkeep"))).await;
    says(&complaints, &["tls: ", "the client's certificate CN=meshkeep (serial "]);
    let advice = setup.report(&[]).await.1.to_string();
    for part in
        ["an authority of that name signed the client's certificate (key ", "the server's authority has the same name and a different key"]
    {
        assert!(advice.contains(part), "{part}: {advice}");
    }

    let middle = etcd.authority().intermediate("middle");
    let complaints = report(&with_pair(&good, etcd.client_pair(), &middle.client("below"))).await;
    says(&complaints, &["is signed by CN=middle: ", "cert-file does not have it as an intermediate certificate"]);
    let pair = middle.server("below", &["localhost", "127.0.0.1"]);
    fs::copy(&pair.certificate, &etcd.server_pair().certificate).unwrap();
    fs::copy(&pair.key, &etcd.server_pair().key).unwrap();
    let complaints = report(&good).await;
    says(&complaints, &["is signed by CN=middle: ", "the server does not send it as an intermediate certificate"]);
}

/// The store knows the etcd that its data came from, so another etcd is reported. While a sidecar
/// uses the store, the check is skipped.
#[tokio::test]
async fn an_etcd_other_than_the_stored_one_is_reported() {
    let setup = DoctorSetup::new();
    let mut etcd = Etcd::builder().binary(etcd_binaries().last().unwrap()).start().await;
    put_prerequisites(&etcd, "paris").await;
    setup.write("paris", &etcd.client_file_yaml());
    let data = setup.0.path().join("data").display().to_string();
    let mut home = Home::new().with_flags(&[&format!("--data-dir={data}")]);
    home.write_cluster("paris", &etcd.client_file_yaml());
    let meshkeep = home.start().await;
    meshkeep.wait_for_phase("paris", "live").await;
    let in_use = setup.report(&[]).await.1["checks"][1]["found"].to_string();
    assert!(in_use.contains(&format!("is in use by pid {}", meshkeep.id())), "{in_use}");
    meshkeep.stop().await;
    let history = async || {
        let report = setup.report(&[]).await.1;
        let checks = report["clusters"][0]["endpoints"][0]["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["step"] == "history").unwrap()
    };
    assert!(history().await["found"].as_str().unwrap().ends_with("the stored one"), "{}", history().await);
    etcd.wipe();
    etcd.set_cluster_token("another");
    etcd.restart().await;
    put_prerequisites(&etcd, "paris").await;
    let other = history().await;
    assert!(other["outcome"] == "warning" && other["found"].as_str().unwrap().contains("the stored entries came from"), "{other}");
}

/// A full etcd has an old heartbeat, too. The report must name the cause, because only that helps.
#[tokio::test]
async fn a_full_etcd_is_reported_with_advice() {
    let setup = DoctorSetup::new();
    let binaries = etcd_binaries();
    let etcd = Etcd::builder().binary(binaries.last().unwrap()).flag("--quota-backend-bytes=1048576").start().await;
    put_prerequisites(&etcd, "paris").await;
    setup.write("paris", &etcd.client_file_yaml());
    let mut client = etcd.client().await;
    while client.put("cilium/large", vec![b'x'; 256 << 10], None).await.is_ok() {}
    setup.assert_complaint("etcd", "it reports NOSPACE").await;
    assert!(setup.advice("etcd").await.contains("etcdctl alarm disarm"));
}

#[tokio::test]
async fn missing_keys_and_permissions_are_reported() {
    let setup = DoctorSetup::new();
    let binaries = etcd_binaries();
    let mut etcd = Etcd::builder().binary(binaries.last().unwrap()).start().await;
    setup.write("paris", &etcd.client_file_yaml());
    setup.assert_complaint("cluster config", "cilium/cluster-config/paris does not exist").await;
    put_prerequisites(&etcd, "paris").await;
    assert_eq!(setup.complaints().await, (0, Vec::new()));
    etcd.delete("cilium/synced/paris/cilium/state/ip/v1").await;
    setup.assert_complaint("entries", "cilium/synced/paris/cilium/state/ip/v1 is missing").await;
    etcd.put("cilium/synced/paris/cilium/state/ip/v1", "again").await;
    etcd.put("cilium/.heartbeat", ago(600)).await;
    setup.assert_complaint("heartbeat", "written 60").await;
    etcd.put("cilium/.heartbeat", ago(1)).await;
    // a user with another cluster's role
    etcd.enable_auth("reader", "sesame").await;
    setup.write("paris", &etcd.client_file_yaml().replace("sesame", "wrong"));
    setup.assert_complaint("login", "rejects the username or password").await;
    setup.write("paris", &etcd.client_file_yaml());
    etcd.restrict_to_remote("tokyo").await;
    setup.assert_complaint("cluster config", "permission denied").await;
    let (_, report) = setup.report(&[]).await;
    assert!(!report.to_string().contains("sesame"), "{report:#}");
}

/// Configs of other clusters and invalid configs are reported with the text that a sidecar uses.
#[tokio::test]
async fn a_foreign_or_invalid_cluster_config_is_reported() {
    let setup = DoctorSetup::new();
    let etcd = Etcd::builder().binary(etcd_binaries().last().unwrap()).tls(Tls::Mutual).start().await;
    put_prerequisites(&etcd, "paris").await;
    setup.write("rome", &etcd.client_file_yaml());
    setup.assert_complaint("cluster config", "this etcd belongs to cluster paris, not rome").await;
    let config = r#"{"id":3,"capabilities":{"syncedCanaries":true,"cached":true}}"#;
    etcd.put("cilium/cluster-config/oslo", config).await;
    setup.assert_complaint("cluster config", "this etcd has no config of rome, only of oslo, paris").await;
    let (_, report) = setup.report(&["--legacy-clusters", "rome"]).await;
    let checks = report["clusters"][0]["endpoints"][0]["checks"].as_array().unwrap().clone();
    assert_eq!(checks.last().unwrap()["outcome"], "warning", "{report:#}");
    for (config, reason) in [
        (r#"{"id":0}"#, "id is 0, which is reserved: expected 1 to 255"),
        (r#"{"id":256}"#, "id is 256, expected 1 to 255"),
        (r#"{"id":3,"capabilities":{"endpointSlicesExportMode":"services-only"}}"#, "endpointSlicesExportMode is \"services-only\""),
    ] {
        etcd.put("cilium/cluster-config/rome", config).await;
        setup.assert_complaint("cluster config", reason).await;
    }
    etcd.delete("cilium/cluster-config/rome").await;
    etcd.enable_cilium_users("paris").await;
    setup.write("rome", &etcd.client_file_of("remote"));
    setup
        .assert_complaint(
            "cluster config",
            "this etcd belongs to cluster paris, not rome (permission denied on cilium/cluster-config/rome)",
        )
        .await;
}

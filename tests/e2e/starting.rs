//! Messages of a start: the process that uses the data directory, and errors in settings.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::harness::eventually;
use crate::harness::meshkeep::Home;

#[tokio::test]
async fn a_waiting_process_names_the_holder_and_answers_probes() {
    let mut home = Home::new();
    let first = home.start().await;
    let data = home.data_directory().display().to_string();
    let mut elsewhere = Home::new().with_flags(&[&format!("--data-dir={data}")]);
    // it listens although it waits for half a minute
    let second = elsewhere.start().await;
    let holder = format!("pid {}", first.id());
    eventually("a log line that names the holder", || async { (second.log_lines_with(&["is in use", &holder]) == 1).then_some(()) }).await;
    assert_eq!(second.send_get("/livez").await.0, 200);
    let (status, problem) = second.send_get("/v1/nodes").await;
    assert_eq!(
        (status.as_u16(), problem["type"].as_str().map(|name| name.rsplit('/').next().unwrap().to_owned())),
        (503, Some("loading".to_owned())),
        "{problem}"
    );
    first.kill();
    eventually("the second to be ready", || async { (second.send_get("/readyz").await.0 == 200).then_some(()) }).await;
    // and the next one names the current holder
    let third = Home::new().with_flags(&[&format!("--data-dir={data}"), "--store-lock-wait=0s"]).run_to_the_end().await;
    assert!(third.log.contains(&format!("pid {}", second.id())), "{}", third.log);
}

#[tokio::test]
async fn a_symlinked_lock_is_refused_and_odd_log_files_are_not() {
    let mut home = Home::new();
    let data = home.data_directory();
    fs::create_dir_all(data.join("log")).unwrap();
    fs::create_dir(data.join("log/7")).unwrap();
    fs::write(data.join("log/09"), "noise").unwrap();
    assert!(Command::new("mkfifo").arg(data.join("log/900")).status().unwrap().success());
    home.start().await.stop().await;
    let outside = data.with_file_name("outside");
    fs::write(&outside, "of somebody else").unwrap();
    fs::remove_file(data.join("lock")).unwrap();
    std::os::unix::fs::symlink(&outside, data.join("lock")).unwrap();
    let ended = home.run_to_the_end().await;
    assert_eq!(ended.status.code(), Some(1), "{}", ended.log);
    assert!(ended.log.contains("lock is a symbolic link, which meshkeep does not follow or overwrite: remove it"), "{}", ended.log);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "of somebody else");
    fs::remove_file(data.join("lock")).unwrap();
    home.start().await.stop().await;
}

/// Runs `serve --check-config` with these arguments and one environment variable.
fn check(directory: &TempDir, variable: Option<&str>, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
    command.env_clear().args(["serve", "--check-config"]).arg("--clustermesh-config").arg(directory.path().join("clustermesh"));
    command.arg("--data-dir").arg(directory.path().join("data")).args(arguments).envs(variable.map(|name| (name, "x")));
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[test]
fn settings_are_checked_without_a_start() {
    let directory = TempDir::new().unwrap();
    let file = |name: &str, text: &str| fs::write(directory.path().join("clustermesh").join(name), text).unwrap();
    fs::create_dir(directory.path().join("clustermesh")).unwrap();
    fs::create_dir(directory.path().join("data")).unwrap();
    file("paris", "endpoints:\n- https://nobody.invalid:2379\n");
    let (code, output, complaints) = check(&directory, None, &[]);
    assert_eq!((code, complaints.as_str()), (0, ""), "{output}");
    assert!(output.contains("1 endpoint(s), no client certificate") && !output.contains("dns"), "{output}");
    assert!(!directory.path().join("data/store").exists(), "nothing was started");
    let (code, _, complaints) = check(&directory, Some("MESHKEEP_TOKNE_FILE"), &["--listen=0.0.0.0:0", "--insecure"]);
    assert!(
        code == 0 && complaints.contains("MESHKEEP_TOKNE_FILE") && complaints.contains("0.0.0.0:0 can read everything"),
        "{complaints}"
    );
    assert!(complaints.lines().all(|line| line.starts_with("warning: ")), "a warning is not an error: {complaints}");
    let (code, _, complaints) = check(&directory, Some("MESHKEEP_PORT_9870_TCP_ADDR"), &[]);
    assert_eq!((code, complaints.as_str()), (0, ""), "a service link of Kubernetes");
    let (code, _, complaints) = check(&directory, None, &["--health-listen=127.0.0.1:9870"]);
    assert!(
        code != 0 && complaints.contains("--listen 127.0.0.1:9870 and --health-listen 127.0.0.1:9870 need the same port"),
        "{complaints}"
    );
    let (code, _, complaints) = check(&directory, None, &["--token-file=/no/such/token"]);
    assert!(code == 1 && complaints.contains("/no/such/token"), "{complaints}");
    file("tokyo", "endpoints: [https://nobody.invalid]\nkey_file: /c.key\n");
    let (code, output, _) = check(&directory, None, &[]);
    assert!(code == 0 && output.contains(r#"it contains "key_file" where "key-file" is meant"#), "{output}");
    file("tokyo", "endpoints: https://nobody.invalid\n");
    let (code, output, _) = check(&directory, None, &[]);
    assert!(code == 1 && output.contains("endpoints must be a list of strings"), "{output}");
}

#[test]
fn an_empty_data_directory_is_not_called_damaged() {
    let directory = TempDir::new().unwrap();
    let verify =
        Command::new(env!("CARGO_BIN_EXE_meshkeep")).args(["store", "verify", "--data-dir"]).arg(directory.path()).output().unwrap();
    let complaint = String::from_utf8(verify.stderr).unwrap();
    assert!(
        verify.status.code() == Some(1) && complaint.contains("contains no store") && complaint.contains("has never run"),
        "{complaint}"
    );
}

#[tokio::test]
async fn settings_are_shown_without_secrets_and_probes_have_a_port() {
    let home = Home::new();
    let token = home.data_directory().with_file_name("token");
    fs::write(&token, "sesame-open\n").unwrap();
    let mut home =
        home.with_flags(&["--health-listen=127.0.0.1:0", "--kvstore-opt=etcd.qps=50", &format!("--token-file={}", token.display())]);
    let running = home.start().await;
    let output = home.output();
    let health =
        output.lines().find_map(|line| line.strip_prefix("listening on ")?.strip_suffix(" for probes and metrics")).unwrap().to_owned();
    let metrics = crate::harness::meshkeep::http().get(format!("{health}/metrics")).send().await.unwrap();
    assert_eq!(metrics.status().as_u16(), 200);
    let ask = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.arg("config").args(["--server", running.url()]).args(arguments);
        let Output { status, stdout, stderr } = command.output().unwrap();
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    };
    let shown = token.display().to_string();
    let (code, table, complaints) = ask(&["--token-file", &shown]);
    assert_eq!((code, complaints.as_str()), (Some(0), ""));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = table.lines().map(words).collect();
    for line in ["NAME VALUE FROM", "kvstore-opt.etcd.qps 50 flag", "kvstore-opt.etcd.limit 256 default", "cluster-id 0 default"] {
        assert!(lines.iter().any(|one| one == line), "{line}: {table}");
    }
    assert!(lines.contains(&format!("token-file {shown} flag")) && !table.contains("sesame-open"), "{table}");
    let (code, _, complaints) = ask(&[]);
    assert!(code != Some(0) && complaints.contains("token"), "{complaints}");
}

#[tokio::test]
async fn phase_changes_are_logged_once_and_failures_again() {
    let mut home = Home::new().with_flags(&["--remind-interval=300ms", "--config-rescan-interval=100ms", "--backoff-min=30s"]);
    // a port without a server
    home.write_cluster("paris", "endpoints:\n- http://127.0.0.1:1\n");
    home.write_cluster("tokyo", "endpoint:\n- http://127.0.0.1:1\n");
    let running = home.start().await;
    eventually("reminders of both", || async {
        let cluster = running.log_lines_with(&["cluster paris is still not live", "cluster=paris", "phase=\"backingOff\"", "refused"]);
        let file = running.log_lines_with(&["client file tokyo still cannot be used", "file=\"tokyo\"", "endpoints:"]);
        (cluster >= 2 && file >= 2).then_some(())
    })
    .await;
    assert_eq!(running.log_lines_with(&["client file tokyo cannot be used", "tokyo"]), 1, "{}", running.log());
    assert_eq!(running.log_lines_with(&["backingOff"]) - running.log_lines_with(&["still not live"]), 1, "{}", running.log());
    let (_, status) = running.send_get("/v1/status").await;
    assert!(status["directory"]["invalidFiles"]["tokyo"].as_str().unwrap().contains("\"endpoint:\" instead of \"endpoints:\""), "{status}");
}

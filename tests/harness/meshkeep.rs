//! The real `meshkeep` binary as a child process: started with flags, queried over HTTP, ended by a
//! signal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::Value;
use tempfile::TempDir;

use super::{PATIENCE, eventually};

/// Number of log lines that a failing test prints.
const LOG_LINES_SHOWN: usize = 60;

/// Directories of one sidecar, which outlive its process: client files, store and logs.
pub(crate) struct Home {
    directory: Option<TempDir>,
    flags: Vec<String>,
    wrapper: Vec<String>,
    command: &'static str,
    starts: u32,
}

/// A running sidecar.
pub(crate) struct Meshkeep {
    child: Child,
    url: String,
    log: PathBuf,
    ended: bool,
}

/// Exit status and log of a sidecar that has ended, and how long the test waited for its end.
#[derive(Debug)]
pub(crate) struct ProcessExit {
    pub(crate) status: ExitStatus,
    pub(crate) elapsed: Duration,
    /// Everything that it wrote to standard error.
    pub(crate) log: String,
}

impl Home {
    /// Creates empty directories. The sidecar listens on `127.0.0.1:0`.
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("meshkeep-home-").tempdir().unwrap();
        fs::create_dir(directory.path().join("clustermesh")).unwrap();
        Self { directory: Some(directory), flags: vec!["--listen=127.0.0.1:0".into()], wrapper: Vec::new(), command: "serve", starts: 0 }
    }

    /// Adds flags for every following start.
    pub(crate) fn with_flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self
    }

    /// Uses only these flags and the two directories, without `--listen`.
    pub(crate) fn with_only_flags(mut self, flags: &[&str]) -> Self {
        self.flags.clear();
        self.with_flags(flags)
    }

    /// Runs these shell commands before the binary at every following start, for instance to set
    /// limits.
    pub(crate) fn after_shell_commands(mut self, commands: &str) -> Self {
        self.wrapper = vec!["sh".into(), "-c".into(), format!("{commands}; exec \"$0\" \"$@\"")];
        self
    }

    /// Runs `reflect` instead of `serve`, with the etcd of this client file as its target.
    pub(crate) fn with_reflect_to(mut self, client_file: &str) -> Self {
        let path = self.path().join("target.yaml");
        fs::write(&path, client_file).unwrap();
        self.command = "reflect";
        self.flags.push(format!("--to={}", path.display()));
        self
    }

    fn path(&self) -> &Path {
        self.directory.as_ref().expect("the directory exists until drop").path()
    }

    /// Returns the config directory, which contains the client files.
    pub(crate) fn config_directory(&self) -> PathBuf {
        self.path().join("clustermesh")
    }

    /// Returns the path of a file next to the directories, for `--local-etcd`.
    pub(crate) fn local_etcd_file(&self) -> PathBuf {
        self.path().join("local-etcd.yaml")
    }

    /// Returns the directory of the store, which the sidecar creates.
    pub(crate) fn data_directory(&self) -> PathBuf {
        self.path().join("data")
    }

    /// Writes a cluster's client file atomically.
    pub(crate) fn write_cluster(&self, name: &str, text: &str) {
        let temporary = self.path().join("new-cluster-file");
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.config_directory().join(name)).unwrap();
    }

    pub(crate) fn remove_cluster(&self, name: &str) {
        fs::remove_file(self.config_directory().join(name)).unwrap();
    }

    /// Starts the sidecar and waits until it listens.
    pub(crate) async fn start(&mut self) -> Meshkeep {
        let (mut child, output, log) = self.spawn();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(&output).unwrap_or_default();
            if let Some(url) = text.lines().find_map(|line| line.strip_prefix("listening on ")) {
                return Meshkeep { child, url: url.trim_end_matches('/').to_owned(), log, ended: false };
            }
            let ended = child.try_wait().unwrap();
            let output_and_log = || format!("output:\n{text}\nlog:\n{}", fs::read_to_string(&log).unwrap_or_default());
            assert!(ended.is_none(), "meshkeep ended at its start with {ended:?}\n{}", output_and_log());
            if Instant::now() >= deadline {
                child.kill().unwrap();
                panic!("meshkeep does not say that it listens\n{}", output_and_log());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Starts the sidecar and waits only until it handles signals, which is the first thing that it
    /// sets up. It may not listen yet.
    pub(crate) async fn start_until_signals(&mut self) -> Meshkeep {
        /// Bit of SIGTERM in a signal mask (signal(7)).
        const SIGTERM: u64 = 1 << 14;
        let (child, _, log) = self.spawn();
        let meshkeep = Meshkeep { child, url: String::new(), log, ended: false };
        let status = format!("/proc/{}/status", meshkeep.id());
        eventually("a handler for SIGTERM", || async {
            let text = fs::read_to_string(&status).unwrap();
            let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            (u64::from_str_radix(caught.trim(), 16).unwrap() & SIGTERM != 0).then_some(())
        })
        .await;
        meshkeep
    }

    /// Returns everything that the last start wrote to standard output.
    pub(crate) fn output(&self) -> String {
        fs::read_to_string(self.path().join(format!("output-{}.log", self.starts))).unwrap()
    }

    /// Starts a sidecar that is expected to end by itself, and waits for its end.
    pub(crate) async fn run_to_the_end(&mut self) -> ProcessExit {
        let started = Instant::now();
        let (child, _, log) = self.spawn();
        wait(child, started, log).await
    }

    fn spawn(&mut self) -> (Child, PathBuf, PathBuf) {
        self.starts += 1;
        let file = |name: &str| self.path().join(format!("{name}-{}.log", self.starts));
        let (output, log) = (file("output"), file("meshkeep"));
        let binary = env!("CARGO_BIN_EXE_meshkeep");
        let mut command = match self.wrapper.split_first() {
            None => Command::new(binary),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(binary);
                command
            }
        };
        command
            .arg(self.command)
            .arg(format!("--clustermesh-config={}", self.config_directory().display()))
            .args(&self.flags)
            // `MESHKEEP_…` variables of the tests' own environment must not reach it
            .env_clear()
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null())
            .stdout(fs::File::create(&output).unwrap())
            .stderr(fs::File::create(&log).unwrap());
        if !self.flags.iter().any(|flag| flag.starts_with("--data-dir")) {
            command.arg(format!("--data-dir={}", self.data_directory().display()));
        }
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        (command.spawn().unwrap(), output, log)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(directory) = self.directory.take()
        {
            eprintln!("the sidecar's files are kept in {}", directory.keep().display());
        }
    }
}

impl Meshkeep {
    /// Returns the URL that the sidecar logged: `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the peak of resident memory, in bytes (proc(5), `VmHWM`).
    pub(crate) fn resident_peak(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Returns everything that it has written to standard error so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Returns the number of log lines that contain all of these words.
    pub(crate) fn log_lines_with(&self, words: &[&str]) -> usize {
        self.log().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }

    /// Kills the sidecar with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.ended = true;
    }

    /// Sends SIGTERM without waiting for the end.
    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends the signal with this name.
    pub(crate) fn signal(&self, name: &str) {
        let signal = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &signal]).status().unwrap().success());
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn stop(self) -> ProcessExit {
        self.terminate();
        self.wait_for_end().await
    }

    /// Waits for the end of a sidecar that was asked to end.
    pub(crate) async fn wait_for_end(mut self) -> ProcessExit {
        let started = Instant::now();
        let log = self.log.clone();
        let deadline = started + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "meshkeep does not end within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.ended = true;
        let status = self.child.wait().unwrap();
        ProcessExit { status, elapsed: started.elapsed(), log: fs::read_to_string(log).unwrap() }
    }

    /// Sends a `GET` request. Returns its status and body; the body is `null` if it is not JSON.
    pub(crate) async fn send_get(&self, path: &str) -> (StatusCode, Value) {
        let response = http().get(format!("{}{path}", self.url)).send().await.unwrap();
        let status = response.status();
        (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap_or(Value::Null))
    }

    /// Sends a `GET` request and returns the body as text.
    pub(crate) async fn text(&self, path: &str) -> String {
        http().get(format!("{}{path}", self.url)).send().await.unwrap().text().await.unwrap()
    }

    /// Sends a `GET` request that must succeed.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send_get(path).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    /// Returns the current state of a cluster; `null` if it is unknown.
    pub(crate) async fn cluster(&self, name: &str) -> Value {
        self.send_get(&format!("/v1/clusters/{name}")).await.1
    }

    /// Returns the phase of a cluster; empty if it is unknown.
    pub(crate) async fn phase(&self, name: &str) -> String {
        self.cluster(name).await["phase"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a cluster is in a phase.
    pub(crate) async fn wait_for_phase(&self, name: &str, phase: &str) {
        let what = format!("cluster {name} in phase {phase}");
        eventually(&what, || async { (self.phase(name).await == phase).then_some(()) }).await;
    }

    /// Waits until a field of a cluster's state contains a text, and returns that state.
    pub(crate) async fn wait_for_field(&self, name: &str, field: &str, text: &str) -> Value {
        let what = format!("{field} of cluster {name} to contain {text}");
        eventually(&what, || async {
            let cluster = self.cluster(name).await;
            cluster[field].to_string().contains(text).then_some(cluster)
        })
        .await
    }
}

impl Drop for Meshkeep {
    fn drop(&mut self) {
        if !self.ended {
            // a failure cannot be handled here, and a panic in `drop` would hide the test's panic
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the end of {}:\n{}", self.log.display(), lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n"));
        }
    }
}

async fn wait(mut child: Child, started: Instant, log: PathBuf) -> ProcessExit {
    let deadline = started + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return ProcessExit { status, elapsed: started.elapsed(), log: fs::read_to_string(log).unwrap() };
        }
        if Instant::now() >= deadline {
            child.kill().unwrap();
            panic!("meshkeep should have ended by itself:\n{}", fs::read_to_string(log).unwrap());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the tests' HTTP client, created once: in this crate reqwest has no TLS provider of its
/// own.
pub(crate) fn http() -> &'static reqwest::Client {
    static HTTP: OnceLock<reqwest::Client> = OnceLock::new();
    HTTP.get_or_init(|| {
        // an error means that there is a provider already
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // no pool: a connection belongs to the runtime of the test that opened it
        reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap()
    })
}

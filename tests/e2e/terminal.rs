//! The command line in a pseudo-terminal: width, colours, and a progress line.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::samples::in_state_form;
use crate::harness::etcd::etcd_binaries;
use crate::harness::eventually;
use crate::harness::mesh::FULL;
use crate::harness::meshkeep::Home;
use crate::harness::scene::Scene;

/// Start of a colour sequence (ECMA-48, SGR).
const COLOUR: &str = "\u{1b}[";

/// Sequence that clears the progress line.
const CLEAR_LINE: &str = "\r\u{1b}[K";

/// A terminal with one command in it, ended when it is dropped.
struct Terminal {
    script: Child,
    directory: TempDir,
}

impl Terminal {
    /// Opens a terminal with this width and runs a shell command line in it. `meshkeep` is the
    /// tested binary.
    fn open(columns: u16, line: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let screen = fs::File::create(directory.path().join("screen")).unwrap();
        let line = format!("stty cols {columns} rows 24; meshkeep() {{ {} \"$@\"; }}; {line}", env!("CARGO_BIN_EXE_meshkeep"));
        // `script` creates the terminal, copies its output, and exits with the command's exit code.
        // A background job of a shell without job control ignores SIGINT and SIGQUIT, and its
        // children inherit that. `env` restores the default.
        let mut script = Command::new("env");
        script.args(["--default-signal=INT,QUIT", "script", "--quiet", "--flush", "--return", "--command", &line, "/dev/null"]);
        script.env_clear().env("TERM", "xterm");
        script.env("PATH", std::env::var_os("PATH").unwrap()).env("SHELL", "/bin/sh");
        let script = script.stdin(Stdio::piped()).stdout(screen).spawn().unwrap();
        Self { script, directory }
    }

    /// Returns all output so far.
    fn screen(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.directory.path().join("screen")).unwrap()).into_owned()
    }

    /// Waits until the output contains a text.
    async fn wait_for_text(&self, text: &str) {
        eventually(&format!("the terminal to show {text:?}"), || std::future::ready(self.screen().contains(text).then_some(()))).await;
    }

    fn type_keys(&mut self, keys: &str) {
        // the command may have ended
        let _ = self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes());
    }

    /// Waits for the end. Returns the exit code and all output.
    async fn wait_for_end(mut self) -> (Option<i32>, String) {
        let status = eventually("the command to end", || std::future::ready(self.script.try_wait().unwrap())).await;
        (status.code(), self.screen())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // the command may have ended
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

async fn run(columns: u16, line: &str) -> (Option<i32>, String) {
    Terminal::open(columns, line).wait_for_end().await
}

fn widest(screen: &str) -> usize {
    screen.lines().map(|line| line.trim_end_matches('\r').chars().count()).max().unwrap_or_default()
}

#[tokio::test]
async fn tables_fit_a_terminal_and_only_terminals_get_colours() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let server = running.url();
    let (code, narrow) = run(60, &format!("meshkeep get ipcache --server {server}")).await;
    assert!(code == Some(0) && widest(&narrow) <= 60, "{narrow}");
    let (code, wide) = run(200, &format!("meshkeep get ipcache --server {server}")).await;
    assert!(code == Some(0) && widest(&wide) > 60 && wide.lines().count() < narrow.lines().count(), "{wide}");
    // lines break between labels, not within one
    let (_, labels) = run(110, &format!("meshkeep get identities --server {server}")).await;
    assert!(labels.contains("k8s:io.cilium.k8s.policy.cluster=paris") && widest(&labels) <= 110, "{labels}");
    // a pipe has no width and no colours, even if the other file descriptors are terminals
    let (_, piped) = run(60, &format!("meshkeep get ipcache --server {server} | cat")).await;
    assert!(widest(&piped) > 60, "{piped}");

    let explain = format!("meshkeep explain 10.1.2.40 --server {server}");
    let (code, coloured) = run(120, &explain).await;
    assert!(code == Some(0) && coloured.contains(COLOUR), "{coloured:?}");
    for plain in [format!("NO_COLOR=1 {explain}"), format!("{explain} | cat")] {
        let (_, screen) = run(120, &plain).await;
        assert!(screen.contains("wins") && !screen.contains(COLOUR), "{plain}: {screen:?}");
    }
    let (_, forced) = run(120, &format!("CLICOLOR_FORCE=1 {explain} | cat")).await;
    assert!(forced.contains(COLOUR), "{forced:?}");
    // columns are aligned with and without colours
    let (_, clusters) = run(200, &format!("meshkeep get clusters --server {server}")).await;
    let plain = run(200, &format!("NO_COLOR=1 meshkeep get clusters --server {server}")).await.1;
    let bare = clusters.replace("\u{1b}[32m", "").replace("\u{1b}[0m", "");
    let columns = |screen: &str| screen.lines().map(|line| line.find(" live ")).collect::<Vec<_>>();
    assert!(clusters.contains("\u{1b}[32mlive"), "{clusters:?}");
    assert_eq!((columns(&bare), widest(&bare)), (columns(&plain), widest(&plain)), "{clusters}\n{plain}");
}

#[tokio::test]
async fn ctrl_c_ends_a_watch() {
    let (etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let mut terminal = Terminal::open(120, &format!("meshkeep watch --kind service --server {}", running.url()));
    let one_stream = "meshkeep_streams{encoding=\"ndjson\"} 1";
    eventually(one_stream, || async { running.text("/metrics").await.contains(one_stream).then_some(()) }).await;
    etcds[0].delete("cilium/state/services/v1/paris/shop/cart").await;
    terminal.wait_for_text("service shop/cart deleted").await;
    // `script` may outlive its command, so the test waits for the end of the stream; on a busy
    // machine `script` once lost Ctrl-C, so the test presses it again, as a person would
    let no_stream = "meshkeep_streams{encoding=\"ndjson\"} 0";
    eventually(no_stream, || {
        terminal.type_keys("\u{3}");
        async { running.text("/metrics").await.contains(no_stream).then_some(()) }
    })
    .await;
    let screen = terminal.screen();
    assert!(screen.contains(&format!("{COLOUR}31m-{COLOUR}0m service shop/cart deleted")), "{screen:?}");
}

#[tokio::test]
async fn a_long_wait_shows_a_progress_line_and_clears_it() {
    let mut home = Home::new();
    home.write_cluster("paris", "endpoints:\n- http://127.0.0.1:1\n");
    let running = home.start().await;
    let (code, screen) = run(60, &format!("meshkeep status --wait --timeout 2s --server {}", running.url())).await;
    assert_eq!(code, Some(1), "{screen:?}");
    let shown: Vec<&str> = screen.split(CLEAR_LINE).collect();
    assert!(shown.len() > 2 && shown[1].starts_with("0 of 1 clusters are live; paris is "), "{screen:?}");
    for line in &shown[1..shown.len() - 1] {
        assert!(line.chars().count() < 60 && !line.contains('\n'), "{line:?}");
    }
    assert!(shown.last().unwrap().contains("0 of 1 live, "), "the summary begins on a cleared line: {screen:?}");
    let (_, screen) = run(60, &format!("meshkeep status --server {}", running.url())).await;
    assert!(!screen.contains(CLEAR_LINE), "a quick command shows no progress line: {screen:?}");
}

/// An export shows its progress while the reader of its output stops reading.
#[tokio::test]
async fn an_export_that_waits_for_its_reader_shows_its_progress() {
    let mut scene = Scene::start(&etcd_binaries()[0], 1, 0, FULL).await;
    scene.wait_until_settled("the first loading").await;
    scene.stop_meshkeep().await;
    let gate = tempfile::tempdir().unwrap();
    let gate = gate.path().join("gate");
    assert!(Command::new("mkfifo").arg(&gate).status().unwrap().success());
    let data = scene.home.data_directory();
    let line = |gate: &Path| format!("meshkeep store export --data-dir {} | {{ read go <{}; wc -l; }}", data.display(), gate.display());
    let terminal = Terminal::open(80, &line(&gate));
    terminal.wait_for_text(&format!("{CLEAR_LINE}printed ")).await;
    fs::write(&gate, "go\n").unwrap();
    let (code, screen) = terminal.wait_for_end().await;
    assert_eq!(code, Some(0), "{screen:?}");
    let reported = format!(" of {} entries, ", scene.truth().expected().objects.len());
    assert!(screen.contains(&reported), "{reported}: {screen:?}");
    let (code, screen) = run(80, &format!("meshkeep store verify --data-dir {}", data.display())).await;
    assert!(code == Some(0) && screen.contains("intact: "), "{screen:?}");
}

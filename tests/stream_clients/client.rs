//! A client in a child process that prints each complete state as one line of JSON.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// A client of the stream whose state can be read.
pub(crate) trait StreamFollower {
    /// Returns the newest complete state; `None` before the first.
    async fn latest(&self) -> Option<Value>;
}

/// A running client, killed with its children when it is dropped.
pub(crate) struct Client {
    child: Child,
    /// Directory with its output and errors; the client may write files there.
    directory: TempDir,
}

impl Client {
    /// Starts a command, which gets its own directory.
    pub(crate) fn start(command: impl FnOnce(&Path) -> Command) -> Self {
        let directory = tempfile::Builder::new().prefix("meshkeep-client-").tempdir().unwrap();
        let file = |name: &str| fs::File::create(directory.path().join(name)).unwrap();
        let mut command = command(directory.path());
        command.stdin(Stdio::null()).stdout(file("output")).stderr(file("errors")).process_group(0);
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?} (see scripts/stream-clients-setup): {e}"));
        Self { child, directory }
    }

    /// Returns the content of a file in its directory.
    pub(crate) fn read(&self, name: &str) -> String {
        // it may end in the middle of a character; only complete lines are used
        String::from_utf8_lossy(&fs::read(self.directory.path().join(name)).unwrap()).into_owned()
    }

    /// Returns the last complete line of a file in its directory; `None` if there is none yet.
    pub(super) fn last_line_of(&self, name: &str) -> Option<Value> {
        let text = String::from_utf8_lossy(&fs::read(self.directory.path().join(name)).ok()?).into_owned();
        // the last line may be incomplete
        let line = text[..text.rfind('\n')?].lines().last()?;
        Some(serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
    }
}

impl StreamFollower for Client {
    async fn latest(&self) -> Option<Value> {
        self.last_line_of("output")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        kill_process_group(&mut self.child);
        if std::thread::panicking() {
            eprintln!("errors of the client:\n{}", self.read("errors"));
        }
    }
}

/// Kills a child that leads a process group, and the group.
pub(crate) fn kill_process_group(child: &mut Child) {
    // a failure cannot be handled here, and a panic in `drop` would hide the test's own
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

/// Returns the path of a file below `tests/clients`.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}

/// Installs missing tools. Returns the directory of the npm package and the Go client.
pub(crate) fn install_tools() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| script("scripts/stream-clients-setup"))
}

/// Generates and builds the clients of other languages if necessary. Returns their directory.
pub(super) fn generated_clients() -> PathBuf {
    script("scripts/generated-clients-setup")
}

/// Returns a Python interpreter that has httpx.
pub(crate) fn python() -> PathBuf {
    script("scripts/python-client-setup")
}

/// Installs etcdctl and builds etcd's Go client. Returns the directory of the client.
pub(crate) fn etcd_clients() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| script("scripts/etcd-clients-setup"))
}

/// Runs a script that prints a path.
fn script(name: &str) -> PathBuf {
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).output().unwrap();
    assert!(output.status.success(), "{name}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

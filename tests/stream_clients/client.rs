//! A client as a child process that prints each complete state of what it follows as one line of JSON.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

/// Whatever follows the stream and can be asked for what it holds.
pub(crate) trait Following {
    /// The newest complete state; `None` before the first.
    async fn latest(&self) -> Option<Value>;
}

/// A running client, killed with all its children when dropped.
pub(crate) struct Client {
    child: Child,
    /// Its output and errors, and free for files of its own.
    directory: TempDir,
}

impl Client {
    /// Starts a command to which a directory of its own may matter.
    pub(crate) fn start(command: impl FnOnce(&Path) -> Command) -> Self {
        let directory = tempfile::Builder::new().prefix("meshkeep-client-").tempdir().unwrap();
        let file = |name: &str| fs::File::create(directory.path().join(name)).unwrap();
        let mut command = command(directory.path());
        command.stdin(Stdio::null()).stdout(file("output")).stderr(file("errors")).process_group(0);
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?} (see scripts/stream-clients-setup): {e}"));
        Self { child, directory }
    }

    /// A file in its directory.
    pub(crate) fn read(&self, name: &str) -> String {
        // it may be caught in the middle of a character; only whole lines are used
        String::from_utf8_lossy(&fs::read(self.directory.path().join(name)).unwrap()).into_owned()
    }

    /// The last whole line of a file in its directory; `None` where there is none yet.
    pub(super) fn last_line_of(&self, name: &str) -> Option<Value> {
        let text = String::from_utf8_lossy(&fs::read(self.directory.path().join(name)).ok()?).into_owned();
        // what follows the last line's end is still being written
        let line = text[..text.rfind('\n')?].lines().last()?;
        Some(serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
    }
}

impl Following for Client {
    async fn latest(&self) -> Option<Value> {
        self.last_line_of("output")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        end_group(&mut self.child);
        if std::thread::panicking() {
            eprintln!("what the client complained of:\n{}", self.read("errors"));
        }
    }
}

/// Kills a child that leads a process group, and the group.
pub(crate) fn end_group(child: &mut Child) {
    // nothing can be done about a failure here, and a panic in drop would hide the test's own
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

/// A file below `tests/clients`.
pub(crate) fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}

/// Installs what is missing, and says where the npm package and the Go client are.
pub(crate) fn installed() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| script("scripts/stream-clients-setup"))
}

/// Generates and builds the clients of other languages where that is not done, and says where they are.
pub(super) fn generated_clients() -> PathBuf {
    script("scripts/generated-clients-setup")
}

/// An interpreter of Python that has httpx.
pub(crate) fn python() -> PathBuf {
    script("scripts/python-client-setup")
}

/// Installs etcdctl, builds etcd's own client for Go, and says where that is.
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

//! A directory that can be made to hang, as a network share without its server: two bindfs (FUSE) on top of each other, each a process that can be
//! stopped. It needs root, /dev/fuse and Debian's bindfs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::eventually;

/// Where the kernel shows how many requests of a FUSE mount wait for an answer.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Two layers; the upper one is the directory that is used.
pub(crate) struct HangingDirectory {
    upper: Layer,
    lower: Layer,
    _kept: TempDir,
}

/// One bindfs.
struct Layer {
    mounted: PathBuf,
    connection: PathBuf,
    daemon: Child,
}

/// How a call to the directory hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hanging {
    /// Before the file system has taken it: the end of a process ends the call.
    Killable,
    /// Behind the file system: the kernel holds the process until the answer comes.
    Uninterruptible,
}

impl HangingDirectory {
    /// Whether this machine can make one. Without it the tests that need one say so and end.
    pub(crate) fn is_possible() -> bool {
        let is_possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && Path::new("/usr/bin/bindfs").exists();
        if !is_possible {
            eprintln!("without directories that hang: they need root, /dev/fuse and Debian's bindfs");
        }
        is_possible
    }

    /// Makes the directory, which must not exist yet.
    pub(crate) async fn at(directory: &Path) -> Self {
        let kept = TempDir::new().unwrap();
        let (bottom, middle) = (kept.path().join("bottom"), kept.path().join("middle"));
        for path in [&bottom, &middle, &directory.to_path_buf()] {
            fs::create_dir(path).unwrap();
        }
        let lower = Layer::mount(&bottom, &middle).await;
        let upper = Layer::mount(&middle, directory).await;
        Self { upper, lower, _kept: kept }
    }

    fn stopped(&self, hanging: Hanging) -> &Layer {
        match hanging {
            Hanging::Killable => &self.upper,
            Hanging::Uninterruptible => &self.lower,
        }
    }

    /// No call returns any more. Waits first for the calls in progress, such as the release of files that were just written.
    pub(crate) async fn hang(&self, hanging: Hanging) {
        let layer = self.stopped(hanging);
        eventually("the end of the calls to the directory", || async { (layer.waiting() == "0").then_some(()) }).await;
        layer.signal(Signal::STOP);
    }

    /// Waits until a call hangs that somebody made.
    pub(crate) async fn is_waited_for(&self, hanging: Hanging) {
        let layer = self.stopped(hanging);
        eventually("a call to the directory that hangs", || async { (layer.waiting() != "0").then_some(()) }).await;
    }

    /// Calls return again.
    pub(crate) fn go_on(&self, hanging: Hanging) {
        self.stopped(hanging).signal(Signal::CONT);
    }
}

impl Layer {
    async fn mount(from: &Path, to: &Path) -> Self {
        let mut command = Command::new("bindfs");
        command.args(["-f", "-o", "attr_timeout=0"]).args([from, to]).stdin(Stdio::null());
        let before = fs::metadata(to).unwrap().dev();
        let daemon = command.spawn().expect("tests with directories that hang need Debian's package bindfs");
        let what = "a mount by FUSE, for which these tests need root and /dev/fuse";
        let device = eventually(what, || async { Some(fs::metadata(to).unwrap().dev()).filter(|device| *device != before) }).await;
        // file systems without a device have a number of their own, the minor one alone (fuse's Documentation/filesystems/fuse.rst)
        let connection = Path::new(CONNECTIONS).join(rustix::fs::minor(device).to_string());
        if !connection.exists() {
            // systemd mounts it; where another test was faster it is there already
            let _ = Command::new("mount").args(["-t", "fusectl", "fusectl", CONNECTIONS]).stderr(Stdio::null()).status();
        }
        assert!(connection.exists(), "{} is not there: these tests need root", connection.display());
        Self { mounted: to.to_owned(), connection, daemon }
    }

    /// Number of requests that wait for an answer.
    fn waiting(&self) -> String {
        fs::read_to_string(self.connection.join("waiting")).unwrap().trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.daemon.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // nothing can be done about a failure here; a killed daemon answers whatever waits with an error
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.mounted).status();
    }
}

//! A directory that can be made to hang, like a network share without its server. It consists of
//! two bindfs mounts (FUSE), one on top of the other, and the process of each can be stopped. It
//! needs root, `/dev/fuse` and Debian's bindfs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::eventually;

/// Directory in which the kernel shows how many requests of a FUSE mount wait for an answer.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// A directory with two FUSE layers. Callers use the upper one.
pub(crate) struct HangingDirectory {
    upper: Layer,
    lower: Layer,
    _temporary: TempDir,
}

/// A running bindfs.
struct Layer {
    mount_point: PathBuf,
    connection: PathBuf,
    daemon: Child,
}

/// The state in which a call to the directory hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HangMode {
    /// The upper daemon is stopped and has not read the request: killing the calling process ends
    /// the call.
    Killable,
    /// The lower daemon is stopped, and the upper one has already read the request: the kernel
    /// keeps the calling process until the answer arrives.
    Uninterruptible,
}

impl HangingDirectory {
    /// Returns whether this machine supports hanging directories. If it does not, logs the reason;
    /// the tests that need one then end early.
    pub(crate) fn is_possible() -> bool {
        let is_possible = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && Path::new("/usr/bin/bindfs").exists();
        if !is_possible {
            eprintln!("tests with hanging directories are skipped: they need root, /dev/fuse and Debian's bindfs");
        }
        is_possible
    }

    /// Creates the directory, which must not exist yet.
    pub(crate) async fn create(directory: &Path) -> Self {
        let temporary = TempDir::new().unwrap();
        let (bottom, middle) = (temporary.path().join("bottom"), temporary.path().join("middle"));
        for path in [&bottom, &middle, &directory.to_path_buf()] {
            fs::create_dir(path).unwrap();
        }
        let lower = Layer::mount(&bottom, &middle).await;
        let upper = Layer::mount(&middle, directory).await;
        Self { upper, lower, _temporary: temporary }
    }

    fn layer_to_stop(&self, hanging: HangMode) -> &Layer {
        match hanging {
            HangMode::Killable => &self.upper,
            HangMode::Uninterruptible => &self.lower,
        }
    }

    /// Makes every call hang. First waits for the calls in progress, such as the release of files
    /// that were just written.
    pub(crate) async fn hang(&self, hanging: HangMode) {
        let layer = self.layer_to_stop(hanging);
        eventually("the end of the calls to the directory", || async { (layer.pending_requests() == "0").then_some(()) }).await;
        layer.signal(Signal::STOP);
    }

    /// Waits until another process's call hangs.
    pub(crate) async fn wait_for_hanging_call(&self, hanging: HangMode) {
        let layer = self.layer_to_stop(hanging);
        eventually("a call to the directory that hangs", || async { (layer.pending_requests() != "0").then_some(()) }).await;
    }

    /// Lets calls return again.
    pub(crate) fn resume_calls(&self, hanging: HangMode) {
        self.layer_to_stop(hanging).signal(Signal::CONT);
    }
}

impl Layer {
    async fn mount(from: &Path, to: &Path) -> Self {
        let mut command = Command::new("bindfs");
        command.args(["-f", "-o", "attr_timeout=0"]).args([from, to]).stdin(Stdio::null());
        let before = fs::metadata(to).unwrap().dev();
        let daemon = command.spawn().expect("tests with directories that hang need Debian's package bindfs");
        let what = "a FUSE mount, which needs root and /dev/fuse";
        let device = eventually(what, || async { Some(fs::metadata(to).unwrap().dev()).filter(|device| *device != before) }).await;
        // file systems without a device have an anonymous device number with only a minor part
        // (fuse's Documentation/filesystems/fuse.rst)
        let connection = Path::new(CONNECTIONS).join(rustix::fs::minor(device).to_string());
        if !connection.exists() {
            // systemd usually mounts it; the result is ignored, because another test may mount it
            // first
            let _ = Command::new("mount").args(["-t", "fusectl", "fusectl", CONNECTIONS]).stderr(Stdio::null()).status();
        }
        assert!(connection.exists(), "{} does not exist: these tests need root", connection.display());
        Self { mount_point: to.to_owned(), connection, daemon }
    }

    /// Returns the number of requests that wait for an answer.
    fn pending_requests(&self) -> String {
        fs::read_to_string(self.connection.join("waiting")).unwrap().trim().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_raw(i32::try_from(self.daemon.id()).unwrap()).unwrap();
        kill_process(id, signal).unwrap();
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // a failure cannot be handled here; after the daemon is killed, the kernel answers all
        // waiting calls with an error
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount_point).status();
    }
}

//! The sidecar of the demo: this program as `meshkeep serve`, in its own process.
//!
//! `meshkeep log` prints the log of the sidecar. The demo prints only the end of the log, and only
//! if the sidecar ends by itself.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::task::JoinSet;

use super::DemoError;
use super::simulated_etcd::SimulatedEtcd;

/// Maximum time for an orderly shutdown. Kubernetes waits at least as long
/// (docs/develop/invariants.md, "Retries and shutdown").
const STOP_MAX: Duration = Duration::from_secs(5);

/// Maximum bytes of the log that are kept for the message about a sidecar that ended.
const LOG_TAIL_BYTES: usize = 4 << 10;

/// A running sidecar and its directory, which is deleted with it.
pub(super) struct Sidecar {
    directory: PathBuf,
    listen: SocketAddr,
    child: Child,
    /// Pipe to the sidecar's standard input. The sidecar ends when the pipe is closed, so it never
    /// outlives this process. Taken out of `child`, which would close it on `wait`.
    stdin_pipe: Option<ChildStdin>,
    log: SidecarLog,
    /// Task that reads the log.
    reader: JoinSet<()>,
}

/// Newest bytes of a log, for the message about a sidecar that ended.
#[derive(Clone, Default)]
struct SidecarLog(Arc<Mutex<Vec<u8>>>);

impl SidecarLog {
    /// Reads the log until it ends.
    async fn follow(self, mut log: ChildStderr) {
        let mut bytes = [0; 4 << 10];
        while let Ok(count @ 1..) = log.read(&mut bytes).await {
            self.append(&bytes[..count]);
        }
    }

    fn append(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(bytes);
        let surplus = tail.len().saturating_sub(LOG_TAIL_BYTES);
        tail.drain(..surplus);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).trim_end().to_owned()
    }
}

impl Sidecar {
    pub(super) fn start(listen: SocketAddr, etcds: &[SimulatedEtcd]) -> Result<Self, DemoError> {
        let directory = std::env::temp_dir().join(format!("meshkeep-demo-{}", std::process::id()));
        let clusters = directory.join("clustermesh");
        // fails if the directory exists: another user could own it and read or change the files
        fs::create_dir(&directory).and_then(|()| fs::create_dir(&clusters)).map_err(DemoError::Files)?;
        for etcd in etcds {
            fs::write(clusters.join(etcd.name()), etcd.client_file()).map_err(DemoError::Files)?;
        }
        let mut child = spawn(&directory, listen)?;
        let (stdin_pipe, log, mut reader) = (child.stdin.take(), SidecarLog::default(), JoinSet::new());
        if let Some(pipe) = child.stderr.take() {
            reader.spawn(log.clone().follow(pipe));
        }
        Ok(Self { directory, listen, child, stdin_pipe, log, reader })
    }

    /// Waits until the sidecar ends by itself. Returns the error for it.
    pub(super) async fn ended(&mut self) -> DemoError {
        let Ok(status) = self.child.wait().await else { return std::future::pending().await };
        // the end of the log may still be in the pipe
        drop(tokio::time::timeout(STOP_MAX, self.reader.join_next()).await);
        DemoError::SidecarEnded { status, log: self.log.text() }
    }

    /// Kills the sidecar with `SIGKILL` and starts it again.
    pub(super) async fn restart(&mut self) -> Result<(), DemoError> {
        // the port is free once the process has ended
        self.child.kill().await.map_err(DemoError::Sidecar)?;
        self.child = spawn(&self.directory, self.listen)?;
        self.stdin_pipe = self.child.stdin.take();
        self.reader.shutdown().await;
        if let Some(pipe) = self.child.stderr.take() {
            self.reader.spawn(self.log.clone().follow(pipe));
        }
        Ok(())
    }

    /// Closes the sidecar's standard input and waits for its orderly shutdown.
    pub(super) async fn stop(mut self) {
        drop(self.stdin_pipe.take());
        drop(tokio::time::timeout(STOP_MAX, self.child.wait()).await);
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        drop(self.child.start_kill());
        // nothing else uses the directory
        drop(fs::remove_dir_all(&self.directory));
    }
}

fn spawn(directory: &Path, listen: SocketAddr) -> Result<Child, DemoError> {
    let program = std::env::current_exe().map_err(DemoError::Sidecar)?;
    let mut command = Command::new(program);
    command
        .arg("serve")
        .arg(format!("--clustermesh-config={}", directory.join("clustermesh").display()))
        .arg(format!("--data-dir={}", directory.join("data").display()))
        .arg(format!("--listen={listen}"))
        // reconnect within seconds, because somebody is watching
        .args(["--backoff-max=2s", "--log-level=warn", "--allow-no-clusters", "--end-with-stdin"])
        .stdin(Stdio::piped())
        // the demo prints the address of the page itself
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command.spawn().map_err(DemoError::Sidecar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_log_is_kept() {
        let log = SidecarLog::default();
        log.append(b"first\n");
        log.append(&vec![b'x'; LOG_TAIL_BYTES]);
        log.append(b"\nlast\n");
        let text = log.text();
        assert!(text.ends_with("x\nlast") && !text.contains("first") && text.len() < LOG_TAIL_BYTES, "{text}");
    }
}

//! The sidecar of the demo: this program as `meshkeep serve`, in its own process.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, ChildStdin, Command};

use super::DemoError;
use super::simulated_etcd::SimulatedEtcd;

/// Maximum time for an orderly shutdown. Kubernetes waits at least as long
/// (docs/develop/invariants.md, "Retries and shutdown").
const STOP_MAX: Duration = Duration::from_secs(5);

/// A running sidecar and its directory, which is deleted with it.
pub(super) struct Sidecar {
    directory: PathBuf,
    listen: SocketAddr,
    child: Child,
    /// Pipe to the sidecar's standard input. The sidecar ends when the pipe is closed, so it never
    /// outlives this process. Taken out of `child`, which would close it on `wait`.
    stdin_pipe: Option<ChildStdin>,
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
        let stdin_pipe = child.stdin.take();
        Ok(Self { directory, listen, child, stdin_pipe })
    }

    /// Waits until the sidecar ends by itself.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            Err(_) => std::future::pending().await,
        }
    }

    /// Kills the sidecar with `SIGKILL` and starts it again.
    pub(super) async fn restart(&mut self) -> Result<(), DemoError> {
        // the port is free once the process has ended
        self.child.kill().await.map_err(DemoError::Sidecar)?;
        self.child = spawn(&self.directory, self.listen)?;
        self.stdin_pipe = self.child.stdin.take();
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
        .kill_on_drop(true);
    command.spawn().map_err(DemoError::Sidecar)
}

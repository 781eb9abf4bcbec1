//! The sidecar: this very program as `meshkeep serve`, in a process of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::process::{Child, ChildStdin, Command};

use super::DemoError;
use super::upstream::Upstream;

/// How long it has for an orderly end: as Kubernetes would wait at least (docs/develop/invariants.md, "Retries and shutdown").
const STOP_MAX: Duration = Duration::from_secs(5);

/// A running sidecar, and the files that it has.
pub(super) struct Sidecar {
    directory: PathBuf,
    listen: SocketAddr,
    child: Child,
    /// The pipe whose end ends the sidecar, so that it never outlives this process. Not left to `child`, which closes it when it is waited for.
    lifeline: Option<ChildStdin>,
}

impl Sidecar {
    pub(super) fn start(listen: SocketAddr, ups: &[Upstream]) -> Result<Self, DemoError> {
        let directory = std::env::temp_dir().join(format!("meshkeep-demo-{}", std::process::id()));
        let clusters = directory.join("clustermesh");
        // only where nothing is: another owner could read and change what is in it
        fs::create_dir(&directory).and_then(|()| fs::create_dir(&clusters)).map_err(DemoError::Files)?;
        for up in ups {
            fs::write(clusters.join(up.name()), up.client_file()).map_err(DemoError::Files)?;
        }
        let mut child = spawn(&directory, listen)?;
        let lifeline = child.stdin.take();
        Ok(Self { directory, listen, child, lifeline })
    }

    /// Waits until it has ended by itself.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        match self.child.wait().await {
            Ok(status) => status,
            Err(_) => std::future::pending().await,
        }
    }

    /// `kill -9`, and another start.
    pub(super) async fn restart(&mut self) -> Result<(), DemoError> {
        // its port is free once it is gone
        self.child.kill().await.map_err(DemoError::Sidecar)?;
        self.child = spawn(&self.directory, self.listen)?;
        self.lifeline = self.child.stdin.take();
        Ok(())
    }

    /// An orderly end.
    pub(super) async fn stop(mut self) {
        drop(self.lifeline.take());
        drop(tokio::time::timeout(STOP_MAX, self.child.wait()).await);
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        drop(self.child.start_kill());
        // nobody else knows of it
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
        // it comes back within seconds where somebody looks on
        .args(["--backoff-max=2s", "--log-level=warn", "--allow-no-clusters", "--end-with-stdin"])
        .stdin(Stdio::piped())
        .kill_on_drop(true);
    command.spawn().map_err(DemoError::Sidecar)
}

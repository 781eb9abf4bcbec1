//! Sends findings and heartbeats to the committer. The tasks that make them (`findings/detector`,
//! `etcd_api`) only read the mirror otherwise; the handle offers them no other command.

use std::sync::{Arc, OnceLock};

use super::Handle;
use crate::commit::{CommitterEnded, WeakCommandSender};
use crate::model::{Command, FindingChange};

/// Sender of findings to the committer, once there is one. It does not keep the committer running.
/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FindingSender(Arc<OnceLock<WeakCommandSender>>);

impl FindingSender {
    /// Connects the sender to the committer.
    pub fn connect(&self, commands: WeakCommandSender) {
        // a process has one committer
        let _ = self.0.set(commands);
    }
}

impl Handle {
    /// Sets the sender of findings.
    #[must_use]
    pub fn with_finding_sender(self, findings: FindingSender) -> Self {
        self.with(|state| state.findings = findings)
    }

    /// Sends new and resolved findings to the committer, which publishes and announces them. Waits
    /// for a slot in its queue.
    ///
    /// # Errors
    /// There is no committer, either not yet or not any more.
    pub async fn send_findings(&self, changes: Vec<FindingChange>) -> Result<(), CommitterEnded> {
        let commands = self.0.findings.0.get().ok_or(CommitterEnded)?;
        commands.send(Command::Findings(changes)).await
    }

    /// Makes the committer publish the heartbeat that clients of the etcd API read.
    ///
    /// # Errors
    /// There is no committer, either not yet or not any more.
    pub async fn write_heartbeat(&self) -> Result<(), CommitterEnded> {
        let commands = self.0.findings.0.get().ok_or(CommitterEnded)?;
        commands.send(Command::Heartbeat).await
    }
}

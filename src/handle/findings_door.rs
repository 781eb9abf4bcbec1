//! The way of findings to the writer: the task that looks what is wrong (`findings/lookout`) only reads, so that the one thing it says goes through a door of its own.

use std::sync::{Arc, OnceLock};

use super::Handle;
use crate::commit::{WeakCommandSender, WriterGone};
use crate::model::{Command, FindingChange};

/// Leads to the writer once there is one, and does not keep it running. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FindingsDoor(Arc<OnceLock<WeakCommandSender>>);

impl FindingsDoor {
    /// From now on it leads to this writer.
    pub fn lead_to(&self, writer: WeakCommandSender) {
        // a process has one writer
        let _ = self.0.set(writer);
    }
}

impl Handle {
    /// This face, whose findings go through a door.
    #[must_use]
    pub fn with_findings_through(self, findings: FindingsDoor) -> Self {
        self.with(|shared| shared.findings = findings)
    }

    /// Has the writer show and announce what is found wrong by now, and what no longer is. Waits for a place in its queue.
    ///
    /// # Errors
    /// There is no writer, not yet or no longer.
    pub async fn tell_findings(&self, changes: Vec<FindingChange>) -> Result<(), WriterGone> {
        let writer = self.0.findings.0.get().ok_or(WriterGone)?;
        writer.send(Command::Findings(changes)).await
    }

    /// Has the writer show the heartbeat of the etcd that the mirror is to some readers.
    ///
    /// # Errors
    /// There is no writer, not yet or no longer.
    pub async fn beat(&self) -> Result<(), WriterGone> {
        let writer = self.0.findings.0.get().ok_or(WriterGone)?;
        writer.send(Command::Beat).await
    }
}

//! Metrics of an announcer, written to a file in the Prometheus text format for node_exporter's
//! textfile collector. An announcer serves no HTTP.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;

use super::FollowReport;
use super::rules::{HoldBackReason, WithdrawnWorkloads};
use crate::announce::plan::ClusterPlan;
use crate::model::redacted_path;

/// Interval between writes when nothing changes. The time of the file shows that the announcer is
/// alive.
const WRITE_INTERVAL: Duration = Duration::from_mins(1);

/// Mode of the file: the collector runs as another user.
const MODE: u32 = 0o644;

/// Writes the file whenever the plan or the report changes, until the future is dropped.
pub(in crate::announce) async fn write_metrics(
    path: PathBuf,
    mut plans: watch::Receiver<Arc<ClusterPlan>>,
    mut reports: watch::Receiver<FollowReport>,
) -> Result<(), JoinError> {
    let mut is_failing = false;
    loop {
        let text = metrics(&plans.borrow_and_update(), &reports.borrow_and_update());
        let target = path.clone();
        let written = spawn_blocking(move || replace(&target, &text)).await?;
        if let Err(error) = written.as_ref()
            && !is_failing
        {
            tracing::warn!(path = %redacted_path(&path), %error, "cannot write the metrics: trying again every minute");
        }
        is_failing = written.is_err();
        tokio::select! {
            Ok(()) = plans.changed() => {}
            Ok(()) = reports.changed() => {}
            () = sleep(WRITE_INTERVAL) => {}
        }
    }
}

/// Replaces the file atomically. Blocks.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // the collector reads only `*.prom`
    let partial = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = fs::write(&partial, text)
        .and_then(|()| fs::set_permissions(&partial, Permissions::from_mode(MODE)))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Returns the metrics as text.
pub(super) fn metrics(plan: &ClusterPlan, report: &FollowReport) -> String {
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, samples: &[(String, usize)]| {
        // writing to a string does not fail
        let _ = writeln!(text, "# HELP meshkeep_announce_{name} {help}\n# TYPE meshkeep_announce_{name} gauge");
        for (labels, value) in samples {
            let _ = writeln!(text, "meshkeep_announce_{name}{labels} {value}");
        }
    };
    let per_cluster = |value: usize| [(format!("{{cluster=\"{}\"}}", plan.cluster), value)];
    let withdrawn = |reason: HoldBackReason| match reason {
        HoldBackReason::Withdrawal(WithdrawnWorkloads { withdrawn, .. }) => Some(withdrawn),
        HoldBackReason::KeepsChanging => None,
    };
    let held_back: Vec<_> = report
        .held_back
        .iter()
        .filter_map(|change| {
            let file = escape_label(&change.path.to_string_lossy());
            Some((format!("{{cluster=\"{}\",file=\"{file}\"}}", plan.cluster), withdrawn(change.reason)?))
        })
        .collect();
    gauge("workloads", "Announced workloads.", &per_cluster(plan.workloads.len()));
    gauge("held_files", "Files with a change that is held back.", &per_cluster(report.held_back.len()));
    gauge("held_workloads", "Workloads that a change to the file would withdraw; the change is held back.", &held_back);
    gauge("file_errors", "Errors in the files; while there are any, no change is applied.", &per_cluster(report.errors.len()));
    text
}

/// Escapes a label value for the text format.
fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

//! What stands between this machine and each remote cluster, looked at step by step: names, TCP, TLS, certificates, credentials, the server, and what
//! a reader of Cilium ClusterMesh needs to find in it; after Cilium's `troubleshoot clustermesh` (`pkg/kvstore/etcd_debug.go`).
//!
//! Owns: the steps, in order, what each failure means, and what to do next. Receives: a directory of client files. Emits: a [`Report`].
//! Invariants: it only reads; one cluster that hangs takes no time from another; no secret is in a report. Deliberately lacks: a running sidecar,
//! whom it does not need, and printing.

mod endpoint;
mod local;
mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use crate::kvstore::{ClientFile, ClientOptions, Connection};
use crate::model::{ClusterId, ClusterName, EtcdClusterId, MaxConnectedClusters, in_words};

/// How a step went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// It works, and somebody should look at it.
    Warning,
    /// It does not work.
    Failed,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// What was looked at: `dns`, `tcp`, `tls`, …
    pub step: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// What was found.
    pub found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    fn ok(step: &'static str, found: impl Into<String>) -> Self {
        Self { step, outcome: Outcome::Ok, found: found.into(), advice: None }
    }

    fn warning(step: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { step, outcome: Outcome::Warning, found: in_words(found.into()), advice: Some(advice.into()) }
    }

    fn failed(step: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { step, outcome: Outcome::Failed, found: in_words(found.into()), advice: Some(advice.into()) }
    }
}

/// What was found at one endpoint of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// The endpoint, without anything secret.
    pub endpoint: String,
    /// The steps, up to the first that failed for good.
    pub checks: Vec<Check>,
}

/// What was found of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    /// The cluster: its file's name.
    pub cluster: String,
    /// The file.
    pub file: PathBuf,
    /// What concerns all of its endpoints.
    pub checks: Vec<Check>,
    /// Its endpoints, in the order of the file.
    pub endpoints: Vec<EndpointReport>,
}

/// Everything that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// What concerns this machine.
    pub checks: Vec<Check>,
    /// The clusters, by name.
    pub clusters: Vec<ClusterReport>,
}

impl Report {
    /// Whether nothing failed.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.worst() != Some(Outcome::Failed)
    }

    /// How the worst step went; `None` if there was none.
    #[must_use]
    pub fn worst(&self) -> Option<Outcome> {
        let of_endpoints = self.clusters.iter().flat_map(|cluster| &cluster.endpoints).flat_map(|endpoint| &endpoint.checks);
        let of_clusters = self.clusters.iter().flat_map(|cluster| &cluster.checks);
        self.checks.iter().chain(of_clusters).chain(of_endpoints).map(|check| check.outcome).max()
    }
}

/// What to look at.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    /// The directory of client files.
    pub clustermesh_config: PathBuf,
    /// The own cluster, whose file is ignored.
    pub own_cluster: Option<ClusterName>,
    /// Whether a directory without any client file is all right.
    pub allow_no_clusters: bool,
    /// The clusters that are read although they have no cluster config.
    pub legacy_clusters: Vec<ClusterName>,
    /// The own cluster's id; 0 if it is not known.
    pub own_id: ClusterId,
    /// How many clusters the mesh can have; `None` if it is not known, then each cluster config is checked by the size that it names.
    pub max_connected_clusters: Option<MaxConnectedClusters>,
    /// Where a sidecar keeps what it mirrors.
    pub data_dir: PathBuf,
    /// These clusters only; all, if empty.
    pub clusters: Vec<String>,
    /// How long each step may take.
    pub step_max: Duration,
}

/// Looks at everything, at all clusters side by side.
///
/// # Errors
/// When a named cluster has no file.
pub async fn examine(options: &DoctorOptions) -> Result<Report, String> {
    look(options, true).await
}

/// Looks at files alone: connects to nobody, and leaves the store closed.
///
/// # Errors
/// When a named cluster has no file.
pub async fn examine_files(options: &DoctorOptions) -> Result<Report, String> {
    look(options, false).await
}

async fn look(options: &DoctorOptions, connects: bool) -> Result<Report, String> {
    let directories = options.clone();
    let looking = tokio::task::spawn_blocking(move || local::look(&directories, connects));
    let local::Local { checks, files, known } = looking.await.map_err(|error| error.to_string())?;
    if let Some(missing) = options.clusters.iter().find(|name| !files.contains_key(*name)) {
        let known: Vec<&str> = files.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "no cluster file at all".to_owned() } else { known.join(", ") };
        return Err(format!("{} has no file for cluster {missing}, but {known}", options.clustermesh_config.display()));
    }
    let mut running = JoinSet::new();
    for (name, content) in files {
        if options.clusters.is_empty() || options.clusters.contains(&name) {
            let known = ClusterName::parse(&name).ok().and_then(|cluster| known.get(&cluster).copied());
            running.spawn(examine_cluster(name, content, known, options.clone(), connects));
        }
    }
    let mut clusters = running.join_all().await;
    clusters.sort_by(|left, right| left.cluster.cmp(&right.cluster));
    Ok(Report { checks, clusters })
}

async fn examine_cluster(
    name: String,
    content: Result<Arc<[u8]>, String>,
    known: Option<EtcdClusterId>,
    options: DoctorOptions,
    connects: bool,
) -> ClusterReport {
    let file = options.clustermesh_config.join(&name);
    let mut report = ClusterReport { cluster: name.clone(), file, checks: Vec::new(), endpoints: Vec::new() };
    let parsing = tokio::task::spawn_blocking(move || ClientFile::parse(&content?).map_err(|error| error.to_string()));
    let parsed = parsing.await.unwrap_or_else(|error| Err(error.to_string()));
    let (client, cluster) = match parsed.and_then(|client| Ok((client, ClusterName::parse(&name).map_err(|error| error.to_string())?))) {
        Ok(found) => found,
        Err(reason) => {
            report.checks.push(Check::failed("file", reason, local::FILE_ADVICE));
            return report;
        }
    };
    report.checks.push(Check::ok("file", local::summary(&client)));
    report.checks.extend(client.slips().map(|slips| Check::warning("file", slips, "correct the key")));
    let reading = client.clone();
    match tokio::task::spawn_blocking(move || local::certificates(&reading)).await {
        Ok(checks) => report.checks.extend(checks),
        Err(error) => report.checks.push(Check::failed("certificates", error.to_string(), "please report this")),
    }
    for endpoint in client.endpoints().iter().filter(|_| connects) {
        let mut checks = endpoint::checks(&client, endpoint, options.step_max).await;
        if checks.iter().all(|check| check.outcome != Outcome::Failed) {
            let limits = ClientOptions { connect_timeout: options.step_max, request_timeout: options.step_max, ..ClientOptions::default() };
            match Connection::open(&client, endpoint, &limits).await {
                Ok(connection) => checks.extend(source::checks(&connection, &cluster, client.user_name(), known, &options).await),
                Err(error) => checks.push(source::refused(&error)),
            }
        }
        report.endpoints.push(EndpointReport { endpoint: endpoint.to_string(), checks });
    }
    report
}

//! `meshkeep doctor`: checks the path from this machine to each remote cluster step by step: names,
//! TCP, TLS, certificates, credentials, the server, and the keys that a reader of Cilium
//! ClusterMesh needs. Modelled on Cilium's `troubleshoot clustermesh`
//! (`pkg/kvstore/etcd_debug.go`).
//!
//! The checks only read, and they need no running sidecar. Clusters are checked concurrently, so
//! one that hangs does not delay the others. A [`Report`] contains no secrets.

mod endpoint;
mod local;
mod source;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinSet;

use crate::client_file::ClientFile;
use crate::model::{ClusterId, ClusterName, EtcdClusterId, MaxConnectedClusters, readable_error};
use cilium_kvstore::{ClientOptions, Connection};

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckOutcome {
    /// No problem was found.
    Ok,
    /// The step works, but a person should look at it.
    Warning,
    /// The step does not work.
    Failed,
}

/// One check with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Name of the check: `dns`, `tcp`, `tls`, …
    pub step: &'static str,
    /// Result of the check.
    pub outcome: CheckOutcome,
    /// Observation, as text.
    pub found: String,
    /// Advice on what to do; absent if nothing is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    fn ok(step: &'static str, found: impl Into<String>) -> Self {
        Self { step, outcome: CheckOutcome::Ok, found: found.into(), advice: None }
    }

    fn warning(step: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { step, outcome: CheckOutcome::Warning, found: readable_error(found.into()), advice: Some(advice.into()) }
    }

    fn failed(step: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { step, outcome: CheckOutcome::Failed, found: readable_error(found.into()), advice: Some(advice.into()) }
    }
}

/// Checks of one endpoint of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointReport {
    /// The endpoint, without secrets.
    pub endpoint: String,
    /// The checks in order, up to the first failure that prevents the next one.
    pub checks: Vec<Check>,
}

/// Checks of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterReport {
    /// Name of the cluster, which is the name of its file.
    pub cluster: String,
    /// Path of the client file.
    pub file: PathBuf,
    /// Checks that concern all endpoints.
    pub checks: Vec<Check>,
    /// Checks of its endpoints, in the order of the file.
    pub endpoints: Vec<EndpointReport>,
}

/// Result of all checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Checks of this machine.
    pub checks: Vec<Check>,
    /// The clusters, sorted by name.
    pub clusters: Vec<ClusterReport>,
}

impl Report {
    /// Returns whether no check failed.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.worst() != Some(CheckOutcome::Failed)
    }

    /// Returns the worst outcome; `None` if there were no checks.
    #[must_use]
    pub fn worst(&self) -> Option<CheckOutcome> {
        let endpoint_checks = self.clusters.iter().flat_map(|cluster| &cluster.endpoints).flat_map(|endpoint| &endpoint.checks);
        let cluster_checks = self.clusters.iter().flat_map(|cluster| &cluster.checks);
        self.checks.iter().chain(cluster_checks).chain(endpoint_checks).map(|check| check.outcome).max()
    }
}

/// Options of the checks.
#[derive(Debug, Clone)]
pub struct DoctorOptions {
    /// Directory of client files.
    pub clustermesh_config: PathBuf,
    /// Clusters whose files are ignored, such as the own cluster.
    pub ignored_clusters: BTreeSet<ClusterName>,
    /// True if the directory may have no client files.
    pub allow_no_clusters: bool,
    /// Clusters that are read although they have no cluster config.
    pub legacy_clusters: Vec<ClusterName>,
    /// Id of the own cluster; 0 if it is unknown.
    pub own_id: ClusterId,
    /// Size of the mesh. If `None`, each cluster config is checked against the size that it names
    /// itself.
    pub max_connected_clusters: Option<MaxConnectedClusters>,
    /// Data directory of the sidecar.
    pub data_dir: PathBuf,
    /// Clusters to check; all if empty.
    pub clusters: Vec<String>,
    /// Maximum time for each step.
    pub step_max: Duration,
}

/// Runs all checks, for all clusters concurrently.
///
/// # Errors
/// Returns an error if a named cluster has no file.
pub async fn examine(options: &DoctorOptions) -> Result<Report, String> {
    run_checks(options, true).await
}

/// Checks files only: opens no connections and does not read the store.
///
/// # Errors
/// Returns an error if a named cluster has no file.
pub async fn examine_files(options: &DoctorOptions) -> Result<Report, String> {
    run_checks(options, false).await
}

async fn run_checks(options: &DoctorOptions, connects: bool) -> Result<Report, String> {
    let directories = options.clone();
    let local_checks = tokio::task::spawn_blocking(move || local::check_local(&directories, connects));
    let local::LocalChecks { checks, files, stored_etcd_ids } = local_checks.await.map_err(|error| error.to_string())?;
    if let Some(missing) = options.clusters.iter().find(|name| !files.contains_key(*name)) {
        let file_names: Vec<&str> = files.keys().map(String::as_str).collect();
        let file_names =
            if file_names.is_empty() { "it has no client file".to_owned() } else { format!("its client files: {}", file_names.join(", ")) };
        return Err(format!("{} has no file for cluster {missing}; {file_names}", options.clustermesh_config.display()));
    }
    let mut running = JoinSet::new();
    for (name, content) in files {
        if options.clusters.is_empty() || options.clusters.contains(&name) {
            let known = ClusterName::parse(&name).ok().and_then(|cluster| stored_etcd_ids.get(&cluster).copied());
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
    let (file, cluster) = match parsed.and_then(|client| Ok((client, ClusterName::parse(&name).map_err(|error| error.to_string())?))) {
        Ok(parsed) => parsed,
        Err(reason) => {
            report.checks.push(Check::failed("file", reason, local::FILE_ADVICE));
            return report;
        }
    };
    report.checks.push(Check::ok("file", local::summary(&file.config)));
    report.checks.extend(file.warnings().map(|warnings| Check::warning("file", warnings, "correct the key")));
    let client = file.config;
    let client_copy = client.clone();
    match tokio::task::spawn_blocking(move || local::certificates(&client_copy)).await {
        Ok(checks) => report.checks.extend(checks),
        Err(error) => report.checks.push(Check::failed("certificates", error.to_string(), "please report this")),
    }
    for endpoint in client.endpoints().iter().filter(|_| connects) {
        let mut checks = endpoint::check_endpoint(&client, endpoint, options.step_max).await;
        if checks.iter().all(|check| check.outcome != CheckOutcome::Failed) {
            let limits = ClientOptions { connect_timeout: options.step_max, request_timeout: options.step_max, ..ClientOptions::default() };
            match Connection::open(&client, endpoint, &limits).await {
                Ok(connection) => checks.extend(
                    source::check_keys(
                        &connection,
                        &cluster,
                        client.credentials.as_ref().map(|user| user.username.as_str()),
                        known,
                        &options,
                    )
                    .await,
                ),
                Err(error) => checks.push(source::failed_login(&error)),
            }
        }
        report.endpoints.push(EndpointReport { endpoint: endpoint.to_string(), checks });
    }
    report
}

//! `meshkeep verify`: compares the mirror with the etcds of the clusters, with the mirror of
//! another meshkeep, or with the etcd of a KVStoreMesh.

mod against;
mod etcd_copy;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

use self::against::MeshCopy;
use self::etcd_copy::EtcdCopy;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::queries::api_client::{ApiClient, ServerOptions};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{Colour, TableColumn, TableShape, coloured, number};
use crate::config::parse_duration;
use crate::dto::status::{ClusterVerification, KindVerification, VerificationList};
use crate::dto::values::closed::Phase;

/// Interval at which the command asks for the results.
const POLL_INTERVAL: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(in crate::cli) struct VerifyOptions {
    /// Only these clusters
    #[arg(value_name = "CLUSTER")]
    clusters: Vec<String>,
    /// Also compare the bytes of the values, not only the revisions
    #[arg(long)]
    values: bool,
    /// Compare with the mirror of this meshkeep instead of the etcds; it gets the same token and
    /// certificates
    #[arg(long, value_name = "URL", conflicts_with = "values")]
    against: Option<String>,
    /// Compare with the copy below cilium/cache of another etcd, into which `meshkeep reflect` or a
    /// KVStoreMesh writes. FILE is its client file in Cilium's format
    #[arg(long, value_name = "FILE", conflicts_with_all = ["values", "against", "timeout"])]
    against_etcd: Option<PathBuf>,
    /// Maximum time to wait for the results of the clusters; exit code 1 if one of them is missing
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_duration, conflicts_with = "against")]
    timeout: Duration,
    #[command(flatten)]
    list: ListOptions,
}

/// Result of one kind of one cluster.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VerifiedKind {
    cluster: String,
    #[serde(flatten)]
    result: KindVerification,
}

const SHAPE: TableShape<VerifiedKind> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |one| one.cluster.clone()),
        TableColumn::new("KIND", |one| one.result.kind.to_string()),
        TableColumn::new("KEYS", |one| number(one.result.keys_compared)),
        TableColumn::new("RESULT", result_text),
        TableColumn::wide("REVISION", |one| one.result.revision.map(|revision| revision.to_string()).unwrap_or_default()),
        TableColumn::below("DIFFERING KEYS", |one| one.result.differing.join("\n")),
    ],
    name: |one| format!("{}/{}", one.cluster, one.result.kind),
};

fn result_text(one: &VerifiedKind) -> String {
    match (one.result.compared, one.result.differing_count) {
        (false, _) => coloured("not compared", Colour::Red),
        (true, 0) => "equal".to_owned(),
        (true, count) => coloured(&format!("{} differ", number(count)), Colour::Red),
    }
}

/// Starts the comparison, waits for its end and prints the result. Returns
/// [`ExitStatus::Failed`] if keys differ, or if a cluster or one of its kinds was not compared.
/// Fails if there is no cluster.
pub(in crate::cli) async fn run(options: &VerifyOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let client = ApiClient::new(server)?;
    let clusters: Vec<(&str, &str)> = options.clusters.iter().map(|name| ("cluster", name.as_str())).collect();
    if let Some(other) = &options.against {
        let other = ApiClient::new(&server.with_server(other, "--against"))?;
        return against::compare(&client, &MeshCopy::Meshkeep(&other), &clusters, &options.list).await;
    }
    if let Some(file) = &options.against_etcd {
        let etcd = EtcdCopy::connect(&client, file, &options.clusters).await?;
        return against::compare(&client, &MeshCopy::Etcd(&etcd), &clusters, &options.list).await;
    }
    let mut start = clusters.clone();
    if options.values {
        start.push(("values", "true"));
    }
    let started: VerificationList = client.start("/v1/verifications", &start).await?;
    let results = wait_for_results(&client.silent(), &clusters, &started, options.timeout).await?;
    if results.items.is_empty() {
        return Err(Failure::new("nothing was compared: meshkeep mirrors no cluster"));
    }
    let is_compared = |one: &ClusterVerification| is_answered(one, &started) && !one.kinds.is_empty();
    let (answered, missing): (Vec<_>, Vec<_>) = results.items.into_iter().partition(is_compared);
    for cluster in &missing {
        let outcome = match &cluster.phase {
            _ if is_answered(cluster, &started) => "was not compared: it publishes no kind".to_owned(),
            Some(_) if is_connected(cluster) => "was not compared in time: meshkeep continues, so wait longer with --timeout".to_owned(),
            Some(phase) => format!("was not compared: it is {phase}"),
            None => "was not compared: it is without a client file".to_owned(),
        };
        crate::cli::print_to_stderr(format!("{} {outcome}\n", cluster.cluster));
    }
    let rows: Vec<VerifiedKind> = answered
        .into_iter()
        .flat_map(|one| one.kinds.into_iter().map(move |result| VerifiedKind { cluster: one.cluster.clone(), result }))
        .collect();
    for VerifiedKind { cluster, result } in rows.iter().filter(|one| !one.result.compared) {
        let reason = "it is being listed, or the connection broke: run the command again";
        crate::cli::print_to_stderr(format!("{} of {cluster} was not compared: {reason}\n", result.kind));
    }
    let is_equal = missing.is_empty() && rows.iter().all(|one| one.result.compared && one.result.differing_count == 0);
    let rows = rows.iter().map(serde_json::to_value).collect::<Result<Vec<Value>, _>>()?;
    options.list.print_list(&SHAPE, rows)?;
    Ok(ExitStatus::from_success(is_equal))
}

/// Asks for the results until every connected cluster has been compared, or the time is over.
async fn wait_for_results(
    client: &ApiClient,
    clusters: &[(&str, &str)],
    started: &VerificationList,
    time_max: Duration,
) -> Result<VerificationList, Failure> {
    let deadline = Instant::now() + time_max;
    loop {
        let results: VerificationList = client.get("/v1/verifications", clusters).await?;
        let is_complete = results.items.iter().all(|one| is_answered(one, started) || !is_connected(one));
        if is_complete || Instant::now() >= deadline {
            return Ok(results);
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns whether a result answers the request. A cluster that was added later needs no answer.
fn is_answered(one: &ClusterVerification, started: &VerificationList) -> bool {
    let requested = started.items.iter().find(|started| started.cluster == one.cluster).map_or(0, |started| started.requested);
    one.answered >= requested
}

/// Returns whether a cluster is connected. A kind that differed is listed again.
fn is_connected(one: &ClusterVerification) -> bool {
    let phase = one.phase.as_ref().and_then(|phase| phase.known());
    matches!(phase, Some(Phase::Live | Phase::SourceLost | Phase::Listing))
}

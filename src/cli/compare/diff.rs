//! `meshkeep diff --agent FILE`: what one agent has differently from the mirror, and why.

mod comparison;
mod identities;
mod ipcache;
mod nodes;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::comparison::{Difference, DifferenceKind, FieldDifference, MirrorFacts, Reason, TableComparison};
use self::identities::MirrorIdentity;
use self::ipcache::{MirrorEntries, MirrorEntry, MirrorNodeAddresses};
use super::list_names;
use crate::cli::failure::{ExitStatus, Failure, ResultExt as _};
use crate::cli::queries::api_client::{ApiClient, ServerOptions};
use crate::cli::queries::get::encoded;
use crate::cli::terminal::layout::{TableStyle, wrap};
use crate::cli::terminal::output::{
    Colour, OutputFormat, OutputOptions, TableColumn, TableShape, coloured, parse_answer, print, print_coloured, print_list, print_one,
    table, table_style, text,
};
use crate::dto::findings::{Explanation, Hint};
use crate::dto::objects::Node;
use crate::dto::status::Cluster;
use crate::dto::text::rfc3339;
use crate::dto::values::closed::HintKind;
use crate::dump::agent::{AgentTable, parse_agent_table};
use crate::files::{read_argument, read_bounded};

/// Maximum size of a table: a million entries of the BPF map with some 120 bytes each, and more.
const TABLE_BYTES_MAX: u64 = 1 << 30;

/// Maximum number of prefixes with several entries for which the server is asked which one agents
/// use. More than that is one mistake with a finding of its own, such as the same pod CIDRs in two
/// clusters.
const RESOLVED_MAX: usize = 1_000;

/// Maximum number of additional entries that the server is asked to explain: more than anybody
/// reads, in about a second.
const EXPLAINED_MAX: usize = 200;

/// Argument that selects standard input instead of a file.
const STANDARD_INPUT: &str = "-";

#[derive(Debug, Args)]
pub(in crate::cli) struct DiffOptions {
    /// Table of an agent: the output of `cilium-dbg bpf ipcache list -o json`, `cilium-dbg ip list
    /// -o json`, `cilium-dbg identity list -o json` or `cilium-dbg node list -o json`; `-` reads
    /// standard input
    #[arg(long, value_name = "FILE")]
    agent: PathBuf,
    #[command(flatten)]
    output: OutputOptions,
}

/// The command's JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::cli) struct DiffReport {
    /// Command that printed the table.
    table: String,
    /// Time at which the agent was asked: the time of the file.
    time: String,
    /// Number of objects that were compared.
    compared: usize,
    differences: Vec<Difference>,
    not_compared: Vec<NotComparedCount>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NotComparedCount {
    reason: comparison::NotCompared,
    count: usize,
    /// The reason as text.
    detail: String,
}

const DIFFERENCES: TableShape<Difference> = TableShape {
    columns: &[
        TableColumn::new("DIFFERENCE", |difference| kind(difference.kind)),
        TableColumn::new("OBJECT", object),
        TableColumn::new("CLUSTER", |difference| text(difference.cluster.as_ref())),
        TableColumn::new("AGENT", |difference| values(difference, |field| &field.agent)),
        TableColumn::new("MESHKEEP", |difference| values(difference, |field| &field.meshkeep)),
        TableColumn::below("LIKELY REASON", |difference| text(difference.detail.as_ref())),
    ],
    name: |difference| difference.object.clone(),
};

fn kind(kind: DifferenceKind) -> String {
    let colour = if kind == DifferenceKind::Different { Colour::Yellow } else { Colour::Red };
    coloured(kind.name(), colour)
}

fn object(difference: &Difference) -> String {
    difference.count.map_or_else(|| difference.object.clone(), |count| format!("all {count}"))
}

/// Returns the values of one side, one for each member that differs.
fn values(difference: &Difference, side: fn(&FieldDifference) -> &String) -> String {
    let value = |field| Some(side(field)).filter(|value| !value.is_empty()).map_or("none", String::as_str);
    difference.fields.iter().map(|field| format!("{}={}", field.field, value(field))).collect::<Vec<_>>().join(" ")
}

/// Compares a table of an agent with the mirror. Returns [`ExitStatus::Failed`] if anything
/// differs. Fails if there was nothing to compare.
pub(in crate::cli) async fn run(options: &DiffOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let (bytes, time) = read_table(&options.agent)?;
    let shown = if is_standard_input(&options.agent) { Path::new("standard input") } else { &options.agent };
    let (report, nothing_compared) = compare_table(&ApiClient::new(server)?, shown, &bytes, time).await?;
    let is_equal = report.differences.is_empty();
    print_report(options.output.output, &report)?;
    nothing_compared.map_or(Ok(ExitStatus::from_success(is_equal)), Err)
}

/// Compares a table with the mirror. `shown` names the table in messages, and `time` is the time at
/// which the agent was asked. Returns the report, and the reason if there was nothing to compare.
pub(in crate::cli) async fn compare_table(
    client: &ApiClient,
    shown: &Path,
    bytes: &[u8],
    time: SystemTime,
) -> Result<(DiffReport, Option<Failure>), Failure> {
    let agent = parse_agent_table(shown, bytes).map_err(|error| Failure::usage(error.to_string()))?;
    let clusters: Vec<Cluster> = client.list_as("/v1/clusters", &[]).await?;
    let facts = MirrorFacts::new(clusters, jiff::Timestamp::try_from(time).or_fail("the time of the file is not usable")?);
    let TableComparison { compared, differences, not_compared } = compare(client, &agent, &facts).await?;
    let not_compared = not_compared.into_iter().map(|(reason, count)| NotComparedCount { reason, count, detail: reason.text().to_owned() });
    let (table, time) = (agent.command().to_owned(), rfc3339(time));
    let nothing_compared = (compared == 0).then(|| {
        let reason = match facts.cluster_names() {
            names if names.is_empty() => "meshkeep mirrors no cluster".to_owned(),
            names => format!("neither the table nor meshkeep has an object of {}", list_names(&names, false)),
        };
        Failure::new(format!("nothing was compared: {reason}"))
    });
    Ok((DiffReport { table, time, compared, differences, not_compared: not_compared.collect() }, nothing_compared))
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new(STANDARD_INPUT)
}

/// Reads the table. Returns its bytes and the time of its last change.
fn read_table(path: &Path) -> Result<(Vec<u8>, SystemTime), Failure> {
    let unreadable = |error: io::Error| Failure::usage(format!("cannot read --agent {}: {error}", path.display()));
    if is_standard_input(path) {
        let mut bytes = Vec::new();
        io::stdin().lock().take(TABLE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        let is_small = u64::try_from(bytes.len()).is_ok_and(|length| length <= TABLE_BYTES_MAX);
        return is_small.then(|| (bytes, SystemTime::now())).ok_or_else(|| unreadable(io::ErrorKind::FileTooLarge.into()));
    }
    read_file(path).map_err(unreadable)
}

/// Reads a file with a table. Returns its bytes and the time of its last change.
fn read_file(path: &Path) -> io::Result<(Vec<u8>, SystemTime)> {
    let bytes = read_argument(path, TABLE_BYTES_MAX)?;
    Ok((bytes, std::fs::metadata(path)?.modified()?))
}

/// Reads a regular file with a table, which the user of the command did not name. It must not block
/// for ever, as a FIFO would.
pub(in crate::cli) fn read_regular_file(path: &Path) -> io::Result<(Vec<u8>, SystemTime)> {
    let bytes = read_bounded(path, TABLE_BYTES_MAX)?;
    Ok((bytes, std::fs::metadata(path)?.modified()?))
}

async fn compare(client: &ApiClient, agent: &AgentTable, facts: &MirrorFacts) -> Result<TableComparison, Failure> {
    match agent {
        AgentTable::BpfIpcache(entries) | AgentTable::Ipcache(entries) => {
            let nodes: Vec<Node> = client.list_as("/v1/nodes", &[]).await?;
            let nodes = MirrorNodeAddresses::new(&nodes);
            let mirror = mirror_entries(client).await?;
            let mut comparison = ipcache::compare(entries, &mirror, &nodes, facts);
            explain_additional(client, &mut comparison.differences).await?;
            Ok(comparison)
        }
        AgentTable::Identities(identities) => {
            let mirror: Vec<MirrorIdentity> = client.list_as("/v1/identities", &[]).await?;
            Ok(identities::compare(identities, &mirror, facts))
        }
        AgentTable::Nodes(nodes) => {
            let mirror: Vec<Node> = client.list_as("/v1/nodes", &[]).await?;
            Ok(nodes::compare(nodes, &mirror, facts))
        }
    }
}

/// Returns the entries of the mirror. If a prefix has several, the server decides which of them
/// agents use.
async fn mirror_entries(client: &ApiClient) -> Result<MirrorEntries, Failure> {
    let mut entries = MirrorEntries::new();
    for entry in client.list_as::<MirrorEntry>("/v1/ipcache", &[]).await? {
        entries.entry(entry.prefix).or_default().push(entry);
    }
    for (prefix, candidates) in entries.iter_mut().filter(|(_, candidates)| candidates.len() > 1).take(RESOLVED_MAX) {
        // the entries may have changed since the list
        if let Some(found) = entries_of(client, &prefix.to_string()).await? {
            *candidates = found;
        }
    }
    Ok(entries)
}

/// Entries of one prefix in the order in which agents prefer them.
#[derive(Deserialize)]
struct EntriesOfPrefix {
    #[serde(flatten)]
    used: MirrorEntry,
    others: Vec<MirrorEntry>,
}

/// Returns the entries of a prefix. `None` if it has none any more.
async fn entries_of(client: &ApiClient, prefix: &str) -> Result<Option<Vec<MirrorEntry>>, Failure> {
    match client.get::<EntriesOfPrefix>(&format!("/v1/ipcache/{}", encoded(prefix)), &[]).await {
        Ok(found) => Ok(Some(std::iter::once(found.used).chain(found.others).collect())),
        Err(failure) if failure.is_unavailable() => Err(failure),
        Err(_) => Ok(None),
    }
}

/// Adds the reasons that the server knows why the mirror has no entry.
async fn explain_additional(client: &ApiClient, differences: &mut [Difference]) -> Result<(), Failure> {
    let additional = differences.iter_mut().filter(|difference| difference.kind == DifferenceKind::Additional);
    for difference in additional.filter(|difference| difference.reason.is_none()).take(EXPLAINED_MAX) {
        let explanation: Explanation = client.get(&format!("/v1/explain/{}", encoded(&difference.object)), &[]).await?;
        let mut hints = explanation.hints.into_iter().filter(|hint| is_about(hint, difference));
        let reason = hints.find_map(|hint| match hint.kind.known()? {
            HintKind::Deleted => Some((Reason::Deleted, hint.detail)),
            HintKind::Rejected => Some((Reason::Rejected, hint.detail)),
            HintKind::Inside | HintKind::PodCidr | HintKind::NeverRead | HintKind::Restored | HintKind::Nearest => None,
        });
        (difference.reason, difference.detail) = reason.unzip();
    }
    Ok(())
}

/// Returns whether a hint is about the entry that the mirror lacks, and not about a range around
/// it, a node or another cluster. A deleted entry always has the prefix of the address.
fn is_about(hint: &Hint, difference: &Difference) -> bool {
    let is_same_cluster = difference.cluster.as_ref().is_some_and(|cluster| hint.clusters.contains(cluster));
    is_same_cluster && (hint.kind == HintKind::Deleted || hint.prefix.as_ref() == Some(&difference.object))
}

fn print_report(format: OutputFormat, report: &DiffReport) -> Result<(), Failure> {
    let document = serde_json::to_value(report)?;
    match format {
        // parsed like an answer, which escapes the texts of other clusters
        OutputFormat::Table | OutputFormat::Wide => print_coloured(&report_text(parse_answer(&document)?, table_style(format))),
        OutputFormat::Json | OutputFormat::Yaml | OutputFormat::JsonPath(_) => print_one(format, &DIFFERENCES, &document),
        OutputFormat::Name if report.differences.is_empty() => print(""),
        OutputFormat::Name | OutputFormat::CustomColumns(_) => {
            let differences = document.get("differences").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            print_list(format, &DIFFERENCES, differences)
        }
    }
}

/// Returns the number of differences, their table, and what was not compared.
fn report_text(report: DiffReport, style: TableStyle) -> String {
    let DiffReport { table: command, compared, differences, not_compared, .. } = report;
    let count = match differences.len() {
        0 => coloured("no differences", Colour::Green),
        1 => "1 difference".to_owned(),
        count => format!("{count} differences"),
    };
    let mut out = wrap(&format!("{count} in {compared} objects of {command}"), style.width);
    if !differences.is_empty() {
        out += "\n";
        out += &table(&DIFFERENCES, differences, style);
    }
    if !not_compared.is_empty() {
        out += "\nnot compared:\n";
        for NotComparedCount { count, detail, .. } in not_compared {
            out += &wrap(&format!("  {count} {detail}"), style.width);
        }
    }
    out
}

//! `meshkeep problems`: the findings, and advice for each.

use std::cmp::Reverse;

use clap::Args;

use super::api_client::{ApiClient, ServerOptions};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::layout::TableStyle;
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{
    Colour, TableColumn, TableShape, age_since, coloured, joined, parse_answer, print, print_coloured, table, text,
};
use crate::dto::findings::Finding;
use crate::dto::values::closed::Severity;

#[derive(Debug, Args)]
pub(in crate::cli) struct ProblemsOptions {
    /// Only problems of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Only problems of this kind, such as danglingIdentity
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    /// Only problems of this severity: critical, warning or info
    #[arg(long, value_name = "SEVERITY")]
    severity: Option<String>,
    #[command(flatten)]
    list: ListOptions,
}

const SHAPE: TableShape<Finding> = TableShape {
    columns: &[
        TableColumn::new("SEVERITY", severity),
        TableColumn::new("KIND", |finding| finding.kind.to_string()),
        TableColumn::new("CLUSTERS", |finding| joined(&finding.clusters)),
        TableColumn::new("COUNT", |finding| text(finding.count.as_ref())),
        TableColumn::new("SINCE", since),
        TableColumn::wide("KEY", |finding| text(finding.key.as_ref())),
        TableColumn::below("PROBLEM AND ADVICE", |finding| format!("{}\n-> {}", finding.detail, finding.advice)),
    ],
    name: |finding| finding.id.clone(),
};

/// Returns the severity of a finding in its colour.
fn severity(finding: &Finding) -> String {
    coloured(finding.severity.name(), severity_colour(finding.severity.known()))
}

const fn severity_colour(severity: Option<Severity>) -> Colour {
    match severity {
        Some(Severity::Critical) => Colour::Red,
        Some(Severity::Info) => Colour::Faint,
        Some(Severity::Warning) | None => Colour::Yellow,
    }
}

/// Returns the position of a finding's severity. One that only a newer server knows comes last.
fn severity_rank(finding: &Finding) -> usize {
    finding.severity.known().map_or(usize::MAX, |severity| severity as usize)
}

fn start_time(finding: &Finding) -> Option<jiff::Timestamp> {
    finding.since.as_ref().and_then(|time| time.parse().ok())
}

/// Sorts findings: the most severe first, and the newest first among those of one severity.
fn sort_by_severity(findings: &mut [Finding]) {
    findings.sort_by_key(|finding| (severity_rank(finding), Reverse(start_time(finding))));
}

/// Returns the number of findings of each severity, then their table.
fn report(findings: Vec<Finding>, style: TableStyle) -> String {
    let mut by_severity: Vec<&Finding> = findings.iter().collect();
    by_severity.sort_by_key(|finding| severity_rank(finding));
    let groups = by_severity.chunk_by(|one, other| one.severity == other.severity);
    let counts = groups.map(|group| {
        let severity = &group[0].severity;
        coloured(&format!("{} {}", group.len(), severity.name()), severity_colour(severity.known()))
    });
    let counts: Vec<String> = counts.collect();
    let problems = if findings.len() == 1 { "1 problem".to_owned() } else { format!("{} problems", findings.len()) };
    format!("{problems}: {}\n{}", counts.join(", "), table(&SHAPE, findings, style))
}

/// Returns how long a finding has existed.
fn since(finding: &Finding) -> String {
    age_since(start_time(finding))
}

/// Returns the text of the command for a generated mesh.
#[cfg(test)]
pub(super) fn render(mesh: &super::tests::mesh::Mesh, style: TableStyle) -> String {
    let mut findings = mesh.findings.clone();
    sort_by_severity(&mut findings);
    report(findings, style)
}

/// Prints the findings, as JSON in the order of the API. Returns [`ExitStatus::Failed`] if there
/// are any.
pub(in crate::cli) async fn run(options: &ProblemsOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let mut query: Vec<(&str, &str)> = options.cluster.iter().map(|name| ("cluster", name.as_str())).collect();
    query.extend(options.kind.iter().map(|kind| ("kind", kind.as_str())));
    query.extend(options.severity.iter().map(|severity| ("severity", severity.as_str())));
    let items = ApiClient::new(server)?.list("/v1/problems", &query).await?;
    let is_empty = items.is_empty();
    if !options.list.format().is_table() {
        options.list.print_list(&SHAPE, items)?;
    } else if is_empty {
        print("no problems\n")?;
    } else {
        let items = options.list.sorted(items)?;
        let mut findings = items.iter().map(parse_answer).collect::<Result<Vec<Finding>, _>>()?;
        if !options.list.has_order() {
            sort_by_severity(&mut findings);
        }
        print_coloured(&report(findings, options.list.table_style()))?;
    }
    Ok(ExitStatus::from_success(is_empty))
}

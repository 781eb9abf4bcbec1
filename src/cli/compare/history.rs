//! `meshkeep history WHAT`: the versions of an address, a pod, an identity, a node or a key, newest
//! first.

use clap::Args;
use serde_json::Value;

use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::queries::api_client::{ApiClient, ServerOptions, items};
use crate::cli::queries::watch::describe_object;
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{TableColumn, TableShape, parse_answer, text};
use crate::dto::meta::UnknownPeriod;
use crate::dto::objects::last_change::LastChange;
use crate::dto::streamed::{EntryVersion, VersionList};

#[derive(Debug, Args)]
pub(in crate::cli) struct VersionQueryOptions {
    /// An address, pod/NAMESPACE/NAME, identity/NUMBER, node/CLUSTER/NAME, cluster/NAME, or a key
    /// in cache form
    #[arg(value_name = "WHAT")]
    subject: String,
    /// Maximum number of versions
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u32,
    #[command(flatten)]
    list: ListOptions,
}

const VERSIONS: TableShape<EntryVersion> = TableShape {
    columns: &[
        TableColumn::new("FROM", |version| time_text(&version.from)),
        TableColumn::new("TO", |version| version.to.as_ref().map_or_else(|| "now".to_owned(), time_text)),
        TableColumn::new("KIND", |version| version.kind.to_string()),
        TableColumn::new("CLUSTER", |version| cluster_of(&version.key).to_owned()),
        TableColumn::new("OBJECT", |version| describe_object(&version.key, version.object.as_ref())),
        TableColumn::new("END", |version| text(version.ended.as_ref())),
    ],
    name: |version| version.key.clone(),
};

/// Prints the versions. Returns [`ExitStatus::Failed`] if there are none.
pub(in crate::cli) async fn run(options: &VersionQueryOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let (name, value) = parameter(&options.subject);
    let limit = options.limit.to_string();
    let answer: Value = ApiClient::new(server)?.get("/v1/history", &[(name, value), ("limit", &limit)]).await?;
    let list: VersionList = parse_answer(&answer)?;
    let is_empty = list.items.is_empty();
    options.list.print_list(&VERSIONS, items(answer))?;
    if options.list.format().is_table() {
        list.gaps.iter().for_each(|gap| crate::cli::print_to_stderr(describe_gap(gap)));
        if list.next_page_token.is_some() {
            crate::cli::print_to_stderr("there are older versions: raise --limit to see them\n".to_owned());
        }
    }
    Ok(ExitStatus::from_success(!is_empty))
}

/// Returns the parameter of the API for a subject.
fn parameter(subject: &str) -> (&'static str, &str) {
    for name in ["pod", "identity", "node", "cluster", "ip"] {
        if let Some(value) = subject.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')) {
            return (name, value);
        }
    }
    if subject.starts_with("cilium/") { ("key", subject) } else { ("ip", subject) }
}

/// Returns the cluster in a key in cache form.
fn cluster_of(key: &str) -> &str {
    key.strip_prefix("cilium/cache/")
        .and_then(|rest| rest.split("/v1/").nth(1))
        .map_or("", |rest| rest.split('/').next().unwrap_or_default())
}

/// Returns the time of a change: exact, as a period, or as the time of the first list.
fn time_text(change: &LastChange) -> String {
    let LastChange { changed_at, changed_between, first_seen_at } = change;
    let between = || changed_between.as_ref().map(|[from, to]| format!("{from}..{to}"));
    let first_seen = || first_seen_at.as_ref().map(|time| format!("before {time}"));
    changed_at.clone().or_else(between).or_else(first_seen).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns a note about a period whose changes are not known.
fn describe_gap(gap: &UnknownPeriod) -> String {
    let (from, to) = (gap.from.as_deref().unwrap_or("the beginning"), gap.to.as_deref().unwrap_or("now"));
    match (&gap.cluster, &gap.kind) {
        (Some(cluster), Some(kind)) => format!("note: the {kind} data of cluster {cluster} was not observed from {from} to {to}\n"),
        _ => format!("note: the history has no changes from {from} to {to}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_names_its_parameter() {
        for (subject, expected) in [
            ("10.1.2.40", ("ip", "10.1.2.40")),
            ("fd00::1", ("ip", "fd00::1")),
            ("pod/shop/cart-0", ("pod", "shop/cart-0")),
            ("identity/68352", ("identity", "68352")),
            ("node/paris/worker-1", ("node", "paris/worker-1")),
            ("cilium/cache/nodes/v1/paris/worker-1", ("key", "cilium/cache/nodes/v1/paris/worker-1")),
        ] {
            assert_eq!(parameter(subject), expected);
        }
        assert_eq!(cluster_of("cilium/cache/services/v1/paris/shop/cart"), "paris");
    }
}

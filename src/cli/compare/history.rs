//! `meshkeep history WHAT`: the versions of an address, a pod, an identity, a node or a key, newest
//! first.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::queries::api_client::lists::PageReader;
use crate::cli::queries::api_client::{ApiClient, ServerOptions};
use crate::cli::queries::watch::describe_object;
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{OutputFormat, TableColumn, TableShape, text};
use crate::cli::terminal::past_notes::describe_gap;
use crate::dto::meta::UnknownPeriod;
use crate::dto::objects::last_change::LastChange;
use crate::dto::streamed::EntryVersion;
use crate::model::EntryKey;

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
        TableColumn::new("CLUSTER", |version| text(EntryKey::from_cache_form(&version.key).map(|key| key.cluster).as_ref())),
        TableColumn::new("OBJECT", |version| describe_object(&version.key, version.object.as_ref())),
        TableColumn::new("END", |version| text(version.ended.as_ref())),
    ],
    name: |version| version.key.clone(),
};

/// Prints the versions. Returns [`ExitStatus::Failed`] if there are none.
pub(in crate::cli) async fn run(options: &VersionQueryOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let mut history = fetch_history(options, &ApiClient::new(server)?).await?;
    let (format, is_empty, notes) = (options.list.format(), history.items.is_empty(), history.notes());
    if format.is_whole_answer() || matches!(format, OutputFormat::JsonPath(_)) {
        history.items = options.list.sorted(history.items)?;
        options.list.print_one(&VERSIONS, &serde_json::to_value(&history)?)?;
    } else {
        options.list.print_list(&VERSIONS, history.items)?;
    }
    if !format.is_whole_answer() {
        crate::cli::print_to_stderr(notes);
    }
    Ok(ExitStatus::from_success(!is_empty))
}

/// Versions of all pages, as the API sent them.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionHistory {
    items: Vec<Value>,
    complete: bool,
    gaps: Vec<UnknownPeriod>,
    /// Token of the next page, if `--limit` ended the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
    /// Members of the first page that this version does not need, such as `since` and `position`.
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Members of one page.
#[derive(Debug, Deserialize)]
struct PageMembers {
    complete: bool,
    #[serde(default)]
    gaps: Vec<UnknownPeriod>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Requests the newest `--limit` versions.
async fn fetch_history(options: &VersionQueryOptions, client: &ApiClient) -> Result<VersionHistory, Failure> {
    let (mut history, mut is_first) = (VersionHistory { complete: true, ..VersionHistory::default() }, true);
    let count_max = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let mut pages = PageReader::new(client, "/v1/history", &[parameter(&options.subject)]);
    while let Some(page) = pages.next::<Value, PageMembers>(count_max - history.items.len()).await? {
        let PageMembers { complete, gaps, others } = page.members;
        history.complete &= complete;
        for gap in gaps {
            // each page repeats the gaps that last longer than its versions
            if !history.gaps.contains(&gap) {
                history.gaps.push(gap);
            }
        }
        if std::mem::take(&mut is_first) {
            history.others = others;
        }
        history.items.extend(page.items);
        history.next_page_token = page.next_page_token;
        if history.items.len() >= count_max {
            break;
        }
    }
    Ok(history)
}

impl VersionHistory {
    /// Returns a line for each period whose changes are not known, and one if there are older
    /// versions.
    fn notes(&self) -> String {
        let mut notes: String = self.gaps.iter().map(describe_gap).collect();
        if self.next_page_token.is_some() {
            notes += "there are older versions: raise --limit to see them\n";
        }
        notes
    }
}

/// Returns the parameter of the API for a subject.
pub(in crate::cli) fn parameter(subject: &str) -> (&'static str, &str) {
    for name in ["pod", "identity", "node", "cluster", "ip"] {
        if let Some(value) = subject.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')) {
            return (name, value);
        }
    }
    if subject.starts_with("cilium/") { ("key", subject) } else { ("ip", subject) }
}

/// Returns the time of a change: exact, as a period, or as the time of the first list.
fn time_text(change: &LastChange) -> String {
    let LastChange { changed_at, changed_between, first_seen_at } = change;
    let between = || changed_between.as_ref().map(|[from, to]| format!("{from}..{to}"));
    let first_seen = || first_seen_at.as_ref().map(|time| format!("before {time}"));
    changed_at.clone().or_else(between).or_else(first_seen).unwrap_or_else(|| "unknown".to_owned())
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
    }
}

//! `meshkeep lookup IP…`: finds the entry of an address by longest prefix.

use std::io::{self, BufRead};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::api_client::{ApiClient, ServerOptions, items};
use super::kinds::{identity_labels, owner};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::change_age::change_age;
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{TableColumn, TableShape, age_of, labels, number, one_line, parse_answer, text};
use crate::dto::findings::Explanation;
use crate::dto::lookup::{LookupAnswer, LookupItem, LookupRequest};
use crate::dto::meta::{ItemMeta, ListMeta, UnknownPeriod};
use crate::dto::objects::IpcacheEntry;
use crate::dto::objects::last_change::LastChange;
use crate::dto::streamed::{EntryVersion, StreamedObject};

/// Maximum number of addresses per request (the API's limit).
const BATCH_LENGTH_MAX: usize = 10_000;

#[derive(Debug, Args)]
pub(in crate::cli) struct LookupOptions {
    /// Addresses, IPv4 or IPv6; `-` reads them from standard input, one per line
    #[arg(value_name = "IP", required = true)]
    ips: Vec<String>,
    /// Look up the addresses as they were at this time: RFC 3339, or a duration before now, such as
    /// 10m
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    list: ListOptions,
}

/// Result of a lookup, from the API's answer for one address or for a batch.
pub(in crate::cli) trait LookupResult: DeserializeOwned + 'static {
    /// Columns of the table of answers.
    const SHAPE: TableShape<Self> = TableShape {
        columns: &[
            TableColumn::new("IP", |result: &Self| result.ip().to_owned()),
            TableColumn::new("PREFIX", prefix),
            TableColumn::new("CLUSTER", |result| entry_cell(result, |entry| entry.cluster.clone())),
            TableColumn::new("IDENTITY", |result| entry_cell(result, |entry| entry.identity.to_string())),
            TableColumn::new("OWNER", |result| entry_cell(result, owner)),
            TableColumn::new("NODE", |result| entry_cell(result, |entry| text(entry.node_name.as_ref()))),
            TableColumn::new("AGE", |result| entry_cell(result, |entry| change_age(&entry.change))),
            TableColumn::new("SOURCE-AGE", |result| age_of(result.age_seconds())),
            TableColumn::wide("HOST", |result| entry_cell(result, |entry| text(entry.host_ip.as_ref()))),
            TableColumn::wide("KEY", |result| entry_cell(result, |entry| number(entry.encryption_key))),
            TableColumn::new("LABELS", |result| entry_cell(result, identity_labels)),
        ],
        name: |result| entry_cell(result, |entry| entry.prefix.clone()),
    };

    /// Returns the address.
    fn ip(&self) -> &str;

    /// Returns the entry that covers the address.
    fn found(&self) -> Option<&IpcacheEntry>;

    /// Returns the age of the answer in seconds.
    fn age_seconds(&self) -> Option<f64> {
        None
    }

    /// Returns why the address could not be looked up.
    fn error(&self) -> Option<&str> {
        None
    }
}

impl LookupResult for LookupAnswer {
    fn ip(&self) -> &str {
        &self.ip
    }

    fn found(&self) -> Option<&IpcacheEntry> {
        self.found.as_ref()
    }

    fn age_seconds(&self) -> Option<f64> {
        self.meta.age_seconds
    }
}

impl LookupResult for LookupItem {
    fn ip(&self) -> &str {
        &self.ip
    }

    fn found(&self) -> Option<&IpcacheEntry> {
        self.found.as_ref()?.as_ref()
    }

    fn age_seconds(&self) -> Option<f64> {
        self.meta.as_ref()?.age_seconds
    }

    fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

impl LookupResult for Explanation {
    fn ip(&self) -> &str {
        &self.ip
    }

    fn found(&self) -> Option<&IpcacheEntry> {
        self.found.as_ref()
    }

    fn age_seconds(&self) -> Option<f64> {
        self.meta.age_seconds
    }
}

/// Returns a cell about the matching entry; empty without one.
fn entry_cell(result: &impl LookupResult, describe: fn(&IpcacheEntry) -> String) -> String {
    result.found().map(describe).unwrap_or_default()
}

/// Returns the prefix that covers an address, or why there is none.
fn prefix(result: &impl LookupResult) -> String {
    match (result.error(), result.found()) {
        (Some(error), _) => error.to_owned(),
        (None, Some(entry)) => entry.prefix.clone(),
        (None, None) => "no entry".to_owned(),
    }
}

/// Prints the entry of each address. Returns [`ExitStatus::Failed`] if an address has none.
pub(in crate::cli) async fn run(options: &LookupOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let client = ApiClient::new(server)?;
    let ips = addresses(&options.ips)?;
    if let [ip] = ips.as_slice() {
        let at = options.at.iter().map(|at| ("at", at.as_str()));
        let query: Vec<(&str, &str)> = std::iter::once(("ip", ip.as_str())).chain(at).collect();
        let answer = client.get("/v1/ipcache/lookup", &query).await?;
        options.list.print_one(&LookupAnswer::SHAPE, &answer)?;
        if options.at.is_some() && !options.list.format().is_whole_answer() {
            let LookupAnswer { others, meta, .. } = parse_answer(&answer)?;
            let others = others.iter().map(|other| format!("note: {} had an entry for {} too\n", other.cluster, other.prefix));
            crate::cli::print_to_stderr(past_notes(&meta) + &others.collect::<String>());
        }
        return is_found::<LookupAnswer>(&answer).map(ExitStatus::from_success);
    }
    let at: Vec<(&str, &str)> = options.at.iter().map(|at| ("at", at.as_str())).collect();
    let (mut all, mut notes) = (Vec::new(), String::new());
    for batch in ips.chunks(BATCH_LENGTH_MAX) {
        let answer = client.post("/v1/ipcache/lookup", &at, &LookupRequest { ips: batch.to_vec() }).await?;
        let ListMeta { complete, gaps, .. } = parse_answer(&answer["meta"])?;
        notes = past_gaps(complete, &gaps);
        all.extend(items(answer));
    }
    let found: Result<Vec<bool>, Failure> = all.iter().map(is_found::<LookupItem>).collect();
    let candidates: String =
        all.iter().filter_map(|item| parse_answer(item).ok()).map(|item: LookupItem| describe_candidates(&item)).collect();
    options.list.print_list(&LookupItem::SHAPE, all)?;
    if options.at.is_some() && !options.list.format().is_whole_answer() {
        crate::cli::print_to_stderr(notes + &candidates);
    }
    Ok(ExitStatus::from_success(found?.into_iter().all(|found| found)))
}

/// Returns a line for each reason why an answer about an earlier time may be wrong.
pub(in crate::cli) fn past_notes(meta: &ItemMeta) -> String {
    let candidates = meta.candidates.iter().map(describe_candidate);
    past_gaps(meta.complete, &meta.gaps) + &candidates.collect::<String>()
}

fn past_gaps(complete: Option<bool>, gaps: &[UnknownPeriod]) -> String {
    let mut notes = String::new();
    if complete == Some(false) {
        notes += "note: the answer may be wrong, because meshkeep did not observe everything at that time\n";
    }
    notes.extend(gaps.iter().map(describe_gap));
    notes
}

/// Returns a note about a version that an object may have had, with its line end.
fn describe_candidate(version: &EntryVersion) -> String {
    let end = version.to.as_ref().map_or_else(|| "is current".to_owned(), |to| format!("ended {}", describe_change(to)));
    one_line(&format!("note: it may be the version of {} that began {} and {end}", version.key, describe_change(&version.from))) + "\n"
}

fn describe_candidates(item: &LookupItem) -> String {
    item.candidates.iter().map(|version| describe_candidate(version).replacen("it may", &format!("{} may", item.ip), 1)).collect()
}

/// Returns the labels and the end of the last version of an identity that no cluster has, for the
/// end of an error message.
pub(super) fn describe_last_version(version: &EntryVersion) -> String {
    let (Some(StreamedObject::Identity(identity)), Some(end)) = (&version.object, &version.to) else { return String::new() };
    let cluster = identity.cluster.as_deref().unwrap_or_default();
    format!("; {cluster} deleted it {}, with the labels {}", describe_change(end), labels(identity.labels.0.iter()))
}

/// Returns the time of a change as text.
pub(in crate::cli) fn describe_change(change: &LastChange) -> String {
    match change {
        LastChange { changed_at: Some(time), .. } => format!("at {time}"),
        LastChange { changed_between: Some([from, to]), .. } => format!("between {from} and {to}"),
        LastChange { first_seen_at: Some(time), .. } => format!("before {time}"),
        _ => "at an unknown time".to_owned(),
    }
}

/// Returns a note about a period whose changes are not known, with its line end.
pub(in crate::cli) fn describe_gap(gap: &UnknownPeriod) -> String {
    let (from, to) = (gap.from.as_deref().unwrap_or("the beginning"), gap.to.as_deref().unwrap_or("now"));
    let what = match (&gap.cluster, &gap.kind) {
        (Some(cluster), Some(kind)) => format!("the {kind} data of cluster {cluster} was not observed"),
        _ => "the history has no changes".to_owned(),
    };
    one_line(&format!("note: {what} from {from} to {to}")) + "\n"
}

/// Returns whether an answer has an entry for the address.
fn is_found<T: LookupResult>(answer: &Value) -> Result<bool, Failure> {
    parse_answer::<T>(answer).map(|result| result.found().is_some())
}

/// Returns the addresses of the arguments, with those of standard input in place of `-`.
fn addresses(arguments: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for argument in arguments {
        if argument != "-" {
            all.push(argument.clone());
            continue;
        }
        for line in io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
            all.extend(line.split_whitespace().map(str::to_owned));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_uncertain_answer_has_a_note_for_each_reason() {
        let version = |identity: u32, from: Value, to: Value| {
            json!({"kind": "ipcache", "key": "cilium/cache/ip/v1/paris/10.1.4.1", "from": from, "to": to, "ended": "updated",
                "object": {"prefix": "10.1.4.1/32", "host": true, "cluster": "paris", "identity": identity, "source": "clustermesh"}})
        };
        let between = json!({"changedBetween": ["2026-01-01T00:01:40Z", "2026-01-01T00:03:20Z"]});
        let meta = json!({"position": "v1.a.1", "complete": false,
            "gaps": [{"cluster": "paris", "kind": "ipcache", "from": "2026-01-01T00:01:40Z"}],
            "candidates": [version(70_001, json!({"firstSeenAt": "2026-01-01T00:00:00Z"}), between)]});
        let expected = "note: the answer may be wrong, because meshkeep did not observe everything at that time
note: the ipcache data of cluster paris was not observed from 2026-01-01T00:01:40Z to now
note: it may be the version of cilium/cache/ip/v1/paris/10.1.4.1 that began before 2026-01-01T00:00:00Z and ended between \
                        2026-01-01T00:01:40Z and 2026-01-01T00:03:20Z
";
        assert_eq!(past_notes(&parse_answer(&meta).unwrap()), expected);
        assert_eq!(past_notes(&parse_answer(&json!({"position": "v1.a.1", "complete": true})).unwrap()), "");
    }

    #[test]
    fn a_former_identity_has_its_labels_and_its_end() {
        let version = json!({"kind": "identity", "key": "cilium/cache/identities/v1/paris/id/70001", "from": {}, "ended": "deleted",
            "to": {"changedAt": "2026-01-01T00:00:50Z"},
            "object": {"id": 70001, "cluster": "paris", "scope": "global", "labels": {"k8s:app": "cart"}}});
        let text = describe_last_version(&parse_answer(&version).unwrap());
        assert_eq!(text, "; paris deleted it at 2026-01-01T00:00:50Z, with the labels k8s:app=cart");
    }
}

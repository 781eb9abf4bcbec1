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
use crate::cli::terminal::output::{TableColumn, TableShape, age_of, number, parse_answer, text};
use crate::cli::terminal::past_notes::{PastSummary, describe_candidates, past_notes};
use crate::dto::findings::Explanation;
use crate::dto::lookup::{LookupAnswer, LookupItem, LookupRequest};
use crate::dto::meta::ListMeta;
use crate::dto::objects::IpcacheEntry;

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
            TableColumn::age(|result, time| result.found().map(|entry| change_age(&entry.change, time)).unwrap_or_default()),
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
        let answer: Value = client.get("/v1/ipcache/lookup", &query).await?;
        options.list.print_one(&LookupAnswer::SHAPE, &answer)?;
        if options.at.is_some() && !options.list.format().is_whole_answer() {
            let LookupAnswer { others, meta, .. } = parse_answer(&answer)?;
            let others = others.iter().map(|other| format!("note: {} had an entry for {} too\n", other.cluster, other.prefix));
            crate::cli::print_to_stderr(past_notes(&meta) + &others.collect::<String>());
        }
        return is_found::<LookupAnswer>(&answer).map(ExitStatus::from_success);
    }
    let (mut all, mut past) = (Vec::new(), PastSummary::default());
    for batch in ips.chunks(BATCH_LENGTH_MAX) {
        // a duration before now is resolved with the first batch
        let at = past.at().or(options.at.as_deref()).map(|at| ("at", at.to_owned()));
        let query: Vec<(&str, &str)> = at.iter().map(|(name, at)| (*name, at.as_str())).collect();
        let answer = client.post("/v1/ipcache/lookup", &query, &LookupRequest { ips: batch.to_vec() }).await?;
        let meta: ListMeta = parse_answer(&answer["meta"])?;
        past.add(meta.past);
        all.extend(items(answer));
    }
    let found: Result<Vec<bool>, Failure> = all.iter().map(is_found::<LookupItem>).collect();
    let candidates: String =
        all.iter().filter_map(|item| parse_answer(item).ok()).map(|item: LookupItem| describe_candidates(&item)).collect();
    if options.at.is_none() {
        options.list.print_list(&LookupItem::SHAPE, all)?;
    } else {
        options.list.print_past_list(&LookupItem::SHAPE, all, &past)?;
        if !options.list.format().is_whole_answer() {
            crate::cli::print_to_stderr(candidates);
        }
    }
    Ok(ExitStatus::from_success(found?.into_iter().all(|found| found)))
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

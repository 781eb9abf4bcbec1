//! `meshkeep lookup IP…`: finds the entry of an address by longest prefix.

use std::io::{self, BufRead};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::asker::{Asker, ServerOptions, items};
use super::kinds::{identity_labels, owner};
use crate::cli::failure::{Failure, Verdict};
use crate::cli::terminal::output::{Column, OutputOptions, Shape, age_of, number, print_list, print_one, read, text};
use crate::dto::lookup::{LookupAnswer, LookupItem, LookupRequest};
use crate::dto::objects::IpcacheEntry;
use crate::dto::problems::Explanation;

/// Maximum number of addresses per request (the API's limit).
const BATCH_LENGTH_MAX: usize = 10_000;

/// What to look up.
#[derive(Debug, Args)]
pub(in crate::cli) struct LookupOptions {
    /// Addresses, IPv4 or IPv6; `-` reads them from standard input, one a line
    #[arg(value_name = "IP", required = true)]
    ips: Vec<String>,
    #[command(flatten)]
    output: OutputOptions,
}

/// An answer of a lookup, from the API for one address or for many.
pub(in crate::cli) trait Looked: DeserializeOwned + 'static {
    /// Table of such answers.
    const SHAPE: Shape<Self> = Shape {
        columns: &[
            Column::new("IP", |looked: &Self| looked.ip().to_owned()),
            Column::new("PREFIX", prefix),
            Column::new("CLUSTER", |looked| of(looked, |entry| entry.cluster.clone())),
            Column::new("IDENTITY", |looked| of(looked, |entry| entry.identity.to_string())),
            Column::new("OWNER", |looked| of(looked, owner)),
            Column::new("NODE", |looked| of(looked, |entry| text(entry.node_name.as_ref()))),
            Column::new("SOURCE-AGE", |looked| age_of(looked.age_seconds())),
            Column::wide("HOST", |looked| of(looked, |entry| text(entry.host_ip.as_ref()))),
            Column::wide("KEY", |looked| of(looked, |entry| number(entry.encryption_key))),
            Column::new("LABELS", |looked| of(looked, identity_labels)),
        ],
        name: |looked| of(looked, |entry| entry.prefix.clone()),
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

impl Looked for LookupAnswer {
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

impl Looked for LookupItem {
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

impl Looked for Explanation {
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
fn of(looked: &impl Looked, tell: fn(&IpcacheEntry) -> String) -> String {
    looked.found().map(tell).unwrap_or_default()
}

/// Returns the prefix that covers an address, or why there is none.
fn prefix(looked: &impl Looked) -> String {
    match (looked.error(), looked.found()) {
        (Some(error), _) => error.to_owned(),
        (None, Some(entry)) => entry.prefix.clone(),
        (None, None) => "no entry".to_owned(),
    }
}

/// Prints the entry of each address. Not fine if an address has none.
pub(in crate::cli) async fn run(options: &LookupOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let asker = Asker::new(server)?;
    let ips = addresses(&options.ips)?;
    if let [ip] = ips.as_slice() {
        let answer = asker.get("/v1/ipcache/lookup", &[("ip", ip)]).await?;
        print_one(options.output.output, &LookupAnswer::SHAPE, &answer)?;
        return is_found::<LookupAnswer>(&answer).map(Verdict::of);
    }
    let mut all = Vec::new();
    for batch in ips.chunks(BATCH_LENGTH_MAX) {
        all.extend(items(asker.post("/v1/ipcache/lookup", &LookupRequest { ips: batch.to_vec() }).await?));
    }
    print_list(options.output.output, &LookupItem::SHAPE, &all)?;
    for item in &all {
        if !is_found::<LookupItem>(item)? {
            return Ok(Verdict::NotFine);
        }
    }
    Ok(Verdict::Fine)
}

/// Returns whether an answer has an entry for the address.
fn is_found<T: Looked>(answer: &Value) -> Result<bool, Failure> {
    read::<T>(answer).map(|looked| looked.found().is_some())
}

/// Returns the addresses of the arguments, with those of standard input in place of `-`.
fn addresses(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for word in given {
        if word != "-" {
            all.push(word.clone());
            continue;
        }
        for line in io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
            all.extend(line.split_whitespace().map(str::to_owned));
        }
    }
    Ok(all)
}

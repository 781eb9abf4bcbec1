//! `meshkeep lookup IP…`: who has an address, by longest prefix.

use std::io::{self, BufRead};

use clap::Args;
use serde_json::{Value, json};

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::kinds::owner;
use super::output::{Column, Format, OutputOptions, Shape, age_at, print_json, print_list, print_one, text};

/// How many addresses one request may have (the API's bound).
const BATCH_LENGTH_MAX: usize = 10_000;

/// What to look up.
#[derive(Debug, Args)]
pub(super) struct LookupOptions {
    /// Addresses, IPv4 or IPv6; `-` reads them from standard input, one a line
    #[arg(value_name = "IP", required = true)]
    ips: Vec<String>,
    #[command(flatten)]
    output: OutputOptions,
}

pub(super) const SHAPE: Shape = Shape {
    columns: &[
        Column::new("IP", |item| text(item, "/ip")),
        Column::new("PREFIX", |item| matched(item, "/match/prefix", "no entry")),
        Column::new("CLUSTER", |item| text(item, "/match/cluster")),
        Column::new("IDENTITY", |item| text(item, "/match/identity")),
        Column::new("OWNER", |item| item.get("match").map(owner).unwrap_or_default()),
        Column::new("NODE", |item| text(item, "/match/nodeName")),
        Column::new("AGE", |item| age_at(item, "/meta/ageSeconds")),
        Column::wide("HOST", |item| text(item, "/match/hostIP")),
        Column::wide("KEY", |item| text(item, "/match/encryptionKey")),
        Column::new("LABELS", |item| text(item, "/match/labels")),
    ],
    name: |item| text(item, "/match/prefix"),
};

/// What is at a place of a lookup that found something; else why there is nothing.
fn matched(item: &Value, place: &str, otherwise: &str) -> String {
    match (item.get("match"), text(item, "/error")) {
        (_, error) if !error.is_empty() => error,
        (Some(Value::Object(_)), _) => text(item, place),
        _ => otherwise.to_owned(),
    }
}

/// Prints who has each address; not fine if one has nobody.
pub(super) async fn run(options: &LookupOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let asker = Asker::new(server)?;
    let ips = addresses(&options.ips)?;
    let is_found = |item: &Value| item.get("match").is_some_and(Value::is_object);
    if let [ip] = ips.as_slice() {
        let answer = asker.get("/v1/ipcache/lookup", &[("ip", ip)]).await?;
        print_one(options.output.output, &SHAPE, &answer)?;
        return Ok(Verdict::of(is_found(&answer)));
    }
    let mut items = Vec::new();
    for batch in ips.chunks(BATCH_LENGTH_MAX) {
        let mut answer = asker.post("/v1/ipcache/lookup", &json!({ "ips": batch })).await?;
        if let Some(Value::Array(found)) = answer.get_mut("items").map(Value::take) {
            items.extend(found);
        }
    }
    match options.output.output {
        Format::Json => print_json(&json!({ "items": items }))?,
        format => print_list(format, &SHAPE, &items)?,
    }
    Ok(Verdict::of(items.iter().all(is_found)))
}

/// The addresses that were given, those of standard input in place of `-`.
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

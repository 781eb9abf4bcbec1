//! `meshkeep status`: how the sidecar and each cluster is, once or until all are live.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::kinds::{CLUSTER_COLUMNS, KindRow};
use super::output::{Format, OutputOptions, Shape, age_at, print, print_list, print_one, table, text};
use super::progress::Progress;
use crate::config::parse_duration;

/// How often to ask while waiting: a person sees a change at once, and the sidecar does not notice.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

/// What to tell.
#[derive(Debug, Args)]
pub(super) struct StatusOptions {
    /// Wait until every cluster is live
    #[arg(long)]
    wait: bool,
    /// How long to wait at most
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_duration, requires = "wait")]
    timeout: Duration,
    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the state; not fine while something is not live.
pub(super) async fn run(options: &StatusOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let asker = Asker::new(server)?;
    let deadline = Instant::now() + options.timeout;
    let mut waiting = Waiting::default();
    let (status, clusters) = loop {
        let found = read(&asker).await;
        let waits = options.wait && Instant::now() < deadline;
        match found {
            Ok((ref status, _)) if waits && !is_directory_read(status) => waiting.tell("the config directory is not read yet"),
            Ok((_, ref clusters)) if waits && !all_live(clusters) => waiting.tell(&waiting_for(clusters)),
            Ok(found) => break found,
            Err(failure) if waits && failure.is_unreachable() => waiting.tell(&failure.to_string()),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    };
    drop(waiting);
    let shape = Shape { columns: CLUSTER_COLUMNS, name: |item| format!("cluster/{}", text(item, "/name")) };
    match options.output.output {
        format @ (Format::Table | Format::Wide) => print(&(summary(&status) + "\n" + &table(&shape, &clusters, format == Format::Wide)))?,
        Format::Name => print_list(Format::Name, &shape, &clusters)?,
        format => print_one(format, &shape, &json!({ "status": status, "clusters": clusters }))?,
    }
    Ok(Verdict::of(is_directory_read(&status) && all_live(&clusters)))
}

/// Whether the sidecar knows which clusters there are: without that, none is no good sign.
fn is_directory_read(status: &Value) -> bool {
    status.pointer("/directory/readable") != Some(&Value::Bool(false))
}

async fn read(asker: &Asker) -> Result<(Value, Vec<Value>), Failure> {
    let status = asker.get("/v1/status", &[]).await?;
    let path = KindRow::of("clusters").map(KindRow::path).unwrap_or_default();
    let (clusters, _) = asker.list(&path, &[]).await?;
    Ok((status, clusters))
}

fn is_live(cluster: &Value) -> bool {
    text(cluster, "/phase") == "live" && text(cluster, "/origin") == "live"
}

fn all_live(clusters: &[Value]) -> bool {
    clusters.iter().all(is_live)
}

fn waiting_for(clusters: &[Value]) -> String {
    let waiting: Vec<&Value> = clusters.iter().filter(|cluster| !is_live(cluster)).collect();
    let first = waiting.first().map(|cluster| {
        let error = text(cluster, "/lastError");
        let phase = text(cluster, "/phase");
        format!(
            "{} is {}{}{}",
            text(cluster, "/name"),
            if phase.is_empty() { "without a file" } else { &phase },
            listed(cluster),
            if error.is_empty() { error } else { format!(" ({error})") }
        )
    });
    format!("{} of {} clusters are live; {}", clusters.len() - waiting.len(), clusters.len(), first.unwrap_or_default())
}

/// How far the lists of a cluster are, where they say so.
fn listed(cluster: &Value) -> String {
    let sum = |field: &str| -> u64 {
        let resources = cluster.get("resources").and_then(Value::as_array);
        resources.into_iter().flatten().filter_map(|resource| resource.get(field)?.as_u64()).sum()
    };
    match (text(cluster, "/phase").as_str(), sum("expected")) {
        ("listing", expected) if expected > 0 => format!(", {} of {expected} entries", sum("entries")),
        _ => String::new(),
    }
}

/// Tells what is waited for: a person on one line of the terminal, a log each thing once.
#[derive(Debug, Default)]
struct Waiting {
    progress: Option<Progress>,
    told: String,
}

impl Waiting {
    fn tell(&mut self, text: &str) {
        if io::stderr().is_terminal() {
            self.progress.get_or_insert_with(|| Progress::begin("")).tell(text);
        } else if self.told != text {
            // a caller that does not listen is not told
            let _ = writeln!(io::stderr(), "{text}");
            text.clone_into(&mut self.told);
        }
    }
}

/// What there is of each kind, by the API's name: one, and several.
const COUNTED: [(&str, &str, &str); 7] = [
    ("nodes", "node", "nodes"),
    ("services", "service", "services"),
    ("identities", "identity", "identities"),
    ("ipcache", "ipcache entry", "ipcache entries"),
    ("serviceExports", "service export", "service exports"),
    ("endpointSlices", "endpoint slice", "endpoint slices"),
    ("rejected", "rejected value", "rejected values"),
];

/// What is held, on a line; kinds of which there is nothing are left out.
fn held(status: &Value) -> String {
    let count = |name: &str| status.pointer("/counts").and_then(|counts| counts.get(name)).and_then(Value::as_u64);
    let Some(keys) = count("entries") else { return String::new() };
    let parts = COUNTED.iter().filter_map(|(name, one, several)| match count(name)? {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {several}")),
    });
    let parts: Vec<String> = parts.collect();
    let keys = if keys == 1 { "1 key".to_owned() } else { format!("{keys} keys") };
    if parts.is_empty() { format!("holds {keys}\n") } else { format!("holds {keys}: {}\n", parts.join(", ")) }
}

/// How writing into another etcd goes, on a line.
fn reflected(reflection: &Value) -> String {
    let count = |name: &str| reflection.get(name).and_then(Value::as_u64).unwrap_or_default();
    let (error, leads) = (text(reflection, "/error"), reflection.get("leader").and_then(Value::as_bool) == Some(true));
    match (error.as_str(), leads) {
        ("", true) => format!("reflects {} clusters; {} keys wait\n", count("clusters"), count("waiting")),
        ("", false) => "reflects nothing: another meshkeep or KVStoreMesh writes\n".to_owned(),
        (error, _) => format!("cannot reflect: {error}\n"),
    }
}

/// The process in a few lines.
fn summary(status: &Value) -> String {
    let mut out = String::new();
    let loaded = status.pointer("/loaded").and_then(Value::as_bool).unwrap_or(false);
    let _ = writeln!(
        out,
        "meshkeep {}, up {}{}",
        text(status, "/version"),
        age_at(status, "/uptimeSeconds"),
        if loaded { "" } else { ", still loading its store" }
    );
    out.push_str(&held(status));
    let error = text(status, "/store/error");
    let _ = writeln!(out, "store {}{}", text(status, "/store/state"), if error.is_empty() { error } else { format!(": {error}") });
    if let Some(reflection) = status.get("reflection") {
        out.push_str(&reflected(reflection));
    }
    let error = text(status, "/directory/error");
    match (is_directory_read(status), error.as_str()) {
        (true, _) => {}
        (false, "") => out.push_str("config directory is not read yet\n"),
        (false, error) => drop(writeln!(out, "config directory cannot be read: {error}")),
    }
    for (file, reason) in status.pointer("/directory/invalidFiles").and_then(Value::as_object).into_iter().flatten() {
        let _ = writeln!(out, "file {file} is not used: {}", reason.as_str().unwrap_or_default());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_said_in_words() {
        let counts = json!({"entries": 22, "nodes": 4, "services": 1, "identities": 0, "ipcache": 44, "serviceExports": 1, "rejected": 2});
        assert_eq!(
            held(&json!({ "counts": counts })),
            "holds 22 keys: 4 nodes, 1 service, 44 ipcache entries, 1 service export, 2 rejected values\n"
        );
        assert_eq!(held(&json!({"counts": {"entries": 1}})), "holds 1 key\n");
        assert_eq!(held(&json!({})), "");
    }
}

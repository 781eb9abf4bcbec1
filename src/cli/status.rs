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
    let mut told = String::new();
    let (status, clusters) = loop {
        let found = read(&asker).await;
        let waits = options.wait && Instant::now() < deadline;
        match found {
            Ok((_, ref clusters)) if waits && !all_live(clusters) => progress(&waiting_for(clusters), &mut told),
            Ok(found) => break found,
            Err(failure) if waits && failure.is_unreachable() => progress(&failure.to_string(), &mut told),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    };
    let shape = Shape { columns: CLUSTER_COLUMNS, name: |item| format!("cluster/{}", text(item, "/name")) };
    match options.output.output {
        format @ (Format::Table | Format::Wide) => print(&(summary(&status) + "\n" + &table(&shape, &clusters, format == Format::Wide)))?,
        Format::Name => print_list(Format::Name, &shape, &clusters)?,
        format => print_one(format, &shape, &json!({ "status": status, "clusters": clusters }))?,
    }
    Ok(Verdict::of(all_live(&clusters)))
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
            "{} is {}{}",
            text(cluster, "/name"),
            if phase.is_empty() { "without a file" } else { &phase },
            if error.is_empty() { error } else { format!(" ({error})") }
        )
    });
    format!("{} of {} clusters are live; {}", clusters.len() - waiting.len(), clusters.len(), first.unwrap_or_default())
}

/// Tells a person on the terminal what is waited for: on one line that is written over; in a log, each thing once.
fn progress(text: &str, told: &mut String) {
    let mut out = io::stderr().lock();
    // who does not listen is not told
    let _ = if out.is_terminal() {
        write!(out, "\r\x1b[K{text}").and_then(|()| out.flush())
    } else if *told == text {
        Ok(())
    } else {
        writeln!(out, "{text}")
    };
    text.clone_into(told);
}

/// The process in three lines.
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
    let counts = status.get("counts").and_then(Value::as_object);
    let counts: Vec<String> = counts.into_iter().flatten().map(|(name, count)| format!("{count} {name}")).collect();
    if !counts.is_empty() {
        let _ = writeln!(out, "holds {}", counts.join(", "));
    }
    let error = text(status, "/store/error");
    let _ = writeln!(out, "store {}{}", text(status, "/store/state"), if error.is_empty() { error } else { format!(": {error}") });
    if status.pointer("/directory/readable") == Some(&Value::Bool(false)) {
        let _ = writeln!(out, "config directory cannot be read: {}", text(status, "/directory/error"));
    }
    for (file, reason) in status.pointer("/directory/invalidFiles").and_then(Value::as_object).into_iter().flatten() {
        let _ = writeln!(out, "file {file} is not used: {}", reason.as_str().unwrap_or_default());
    }
    out
}

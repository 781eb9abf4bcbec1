//! `meshkeep explain IP`: everything that is known about an address or a CIDR, drawn as a tree.

use std::fmt::Write as _;

use clap::Args;
use serde_json::Value;

use super::api_client::{ApiClient, ServerOptions};
use super::get::encoded;
use super::kinds::owner;
use super::lookup::LookupResult;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{Colour, OutputFormat, OutputOptions, age_of, coloured, parse_answer, print_coloured, print_one, text};
use crate::cli::terminal::past_notes::past_notes;
use crate::cli::terminal::route_commands::name_commands;
use crate::dto::findings::{ExplainedEntry, Explanation, Hint};
use crate::dto::objects::IpcacheEntry;
use crate::dto::values::closed::{HintKind, Verdict};

#[derive(Debug, Args)]
pub(in crate::cli) struct ExplainOptions {
    /// The address or CIDR, IPv4 or IPv6
    #[arg(value_name = "IP")]
    ip: String,
    /// Explain it as it was at this time: RFC 3339, or a duration before now, such as 10m
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the explanation. Returns [`ExitStatus::Failed`] if no entry covers the address.
pub(in crate::cli) async fn run(options: &ExplainOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let at: Vec<(&str, &str)> = options.at.iter().map(|at| ("at", at.as_str())).collect();
    let answer: Value = ApiClient::new(server)?.get(&format!("/v1/explain/{}", encoded(&options.ip)), &at).await?;
    let explanation: Explanation = parse_answer(&answer)?;
    match options.output.output {
        OutputFormat::Table | OutputFormat::Wide => print_coloured(&name_commands(&ladder(&explanation)))?,
        format => print_one(format, &Explanation::SHAPE, &answer)?,
    }
    if options.at.is_some() && !options.output.output.is_whole_answer() {
        crate::cli::print_to_stderr(past_notes(&explanation.meta));
    }
    Ok(ExitStatus::from_success(explanation.found.is_some()))
}

/// Returns the explanation of an address as a tree: its entries, the identity, the node, the
/// services, the hints and the findings.
fn ladder(explanation: &Explanation) -> String {
    let mut out = String::new();
    match &explanation.found {
        Some(found) => {
            let who = [found.cluster.clone(), format!("identity {}", found.identity), owner(found)];
            let who: Vec<&str> = who.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            let (origin, age) = (text(explanation.meta.origin.as_ref()), age_of(explanation.meta.age_seconds));
            let age = if age.is_empty() { age } else { format!(", {age} old") };
            let source = explanation.meta.past.at.as_ref().map_or_else(|| format!("{origin}{age}"), |at| format!("at {at}"));
            let _ = writeln!(out, "{} -> {}  ({source})", explanation.ip, who.join("  "));
        }
        None => {
            let is_rejected = explanation.hints.iter().any(|hint| hint.kind == HintKind::Rejected && hint.node.is_none());
            let why = match &explanation.meta.past.at {
                Some(at) => format!("no entry that meshkeep knows of covered it at {at}"),
                None if is_rejected => "no usable entry covers it: a value was rejected".to_owned(),
                None => "no entry of any cluster covers it".to_owned(),
            };
            let _ = writeln!(out, "{} -> {}", explanation.ip, coloured(&why, Colour::Yellow));
        }
    }
    if !explanation.entries.is_empty() {
        out.push('\n');
        draw_entries(&mut out, &explanation.entries);
    }
    if let Some(found) = &explanation.found {
        draw_details(&mut out, found, explanation);
    }
    draw_hints(&mut out, &explanation.hints);
    let problems = explanation.problems.as_deref().unwrap_or_default();
    if !problems.is_empty() {
        out.push_str("\nproblems\n");
        for problem in problems {
            let _ = writeln!(out, "  {} {}: {}; {}", coloured("!", Colour::Red), problem.kind, problem.detail, problem.advice);
        }
    }
    out
}

/// Draws the entries that cover the address, each with the reason why it wins or loses. A filled
/// dot marks the winner.
fn draw_entries(out: &mut String, entries: &[ExplainedEntry]) {
    let width = |text: fn(&IpcacheEntry) -> String| entries.iter().map(|explained| text(&explained.entry).len()).max().unwrap_or(0);
    let (prefix_width, cluster_width) = (width(|entry| entry.prefix.clone()), width(|entry| entry.cluster.clone()));
    let identity_width = width(|entry| entry.identity.to_string());
    for ExplainedEntry { entry, verdict, reason, origin } in entries {
        let (wins, origin) = (*verdict == Verdict::Wins, text(origin.as_ref()));
        let mark = if wins { coloured("●", Colour::Green) } else { "○".to_owned() };
        let line = format!(
            " {mark} {:prefix_width$}  {:cluster_width$}  {:>identity_width$}  {origin:8}  ",
            entry.prefix, entry.cluster, entry.identity
        );
        let reason_text = if wins { format!("wins: {reason}") } else { coloured(reason, Colour::Faint) };
        let _ = writeln!(out, "{line}{reason_text}");
    }
}

/// Draws the identity, node and services behind the winning entry.
fn draw_details(out: &mut String, found: &IpcacheEntry, explanation: &Explanation) {
    let _ = writeln!(out, " │");
    let _ = writeln!(out, " ├─ identity {}", found.identity);
    let labels = found.labels.as_ref().filter(|labels| !labels.0.is_empty());
    for (key, value) in labels.into_iter().flat_map(|labels| labels.0.iter()) {
        let _ = writeln!(out, " │    {key}={value}");
    }
    if labels.is_none() {
        let _ = writeln!(out, " │    {}", coloured("its labels are unknown", Colour::Faint));
    }
    match &explanation.node {
        Some(node) => drop(writeln!(out, " ├─ node      {}/{}  {}", node.cluster, node.name, text(found.host_ip.as_ref()))),
        None => drop(writeln!(out, " ├─ node      {}", coloured("no node has its host address", Colour::Faint))),
    }
    let Some(services) = &explanation.services else { return };
    out.push_str(if services.is_empty() { " └─ services  none has it as a backend\n" } else { " └─ services\n" });
    for service in services {
        let _ = writeln!(out, "      {}/{}/{}  ({})", service.cluster, service.namespace, service.name, service.kind);
    }
}

/// Draws the rejected values, the entries inside a CIDR, then the possible reasons for a missing
/// entry: the pod CIDR that the address belongs to, its former entry, an entry nearby, and the
/// clusters whose addresses are unknown or unconfirmed.
fn draw_hints(out: &mut String, hints: &[Hint]) {
    let (rejected, others): (Vec<&Hint>, Vec<&Hint>) = hints.iter().partition(|hint| hint.kind == HintKind::Rejected);
    let (inside, others): (Vec<&Hint>, Vec<&Hint>) = others.into_iter().partition(|hint| hint.kind == HintKind::Inside);
    for (title, hints) in [("rejected value", rejected), ("inside", inside), ("possible reasons for a missing entry", others)] {
        if !hints.is_empty() {
            let _ = write!(out, "\n{title}\n");
        }
        for hint in hints {
            let _ = writeln!(out, "  {} {}", coloured("·", Colour::Faint), hint.detail);
        }
    }
}

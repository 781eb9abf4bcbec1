//! `meshkeep explain IP`: the whole story of an address, drawn as a ladder.

use std::fmt::Write as _;

use clap::Args;
use serde_json::Value;

use super::asker::{Asker, ServerOptions};
use super::failure::{Failure, Verdict};
use super::get::encoded;
use super::kinds::owner;
use super::output::{Colour, Format, OutputOptions, age_at, coloured, print, print_one, text};

/// What to explain.
#[derive(Debug, Args)]
pub(super) struct ExplainOptions {
    /// The address, IPv4 or IPv6
    #[arg(value_name = "IP")]
    ip: String,
    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the story; not fine if no entry covers the address.
pub(super) async fn run(options: &ExplainOptions, server: &ServerOptions) -> Result<Verdict, Failure> {
    let story = Asker::new(server)?.get(&format!("/v1/explain/{}", encoded(&options.ip)), &[]).await?;
    let is_found = story.get("match").is_some_and(Value::is_object);
    match options.output.output {
        Format::Table | Format::Wide => print(&ladder(&story))?,
        format => print_one(format, &super::lookup::SHAPE, &story)?,
    }
    Ok(Verdict::of(is_found))
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// From the address down: its entries, the identity, the node, the services, and what is wrong.
fn ladder(story: &Value) -> String {
    let mut out = String::new();
    let ip = text(story, "/ip");
    match story.get("match").filter(|found| found.is_object()) {
        Some(found) => {
            let who = [text(found, "/cluster"), format!("identity {}", text(found, "/identity")), owner(found)];
            let who: Vec<&str> = who.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
            let age = age_at(story, "/meta/ageSeconds");
            let origin = text(story, "/meta/origin");
            let _ = writeln!(out, "{ip} -> {}  ({origin}{})", who.join("  "), if age.is_empty() { age } else { format!(", {age} old") });
        }
        None => {
            let _ = writeln!(out, "{ip} -> {}", coloured("no entry of any cluster covers it", Colour::Yellow));
        }
    }
    let entries = list(story, "/entries");
    if !entries.is_empty() {
        out.push('\n');
        draw_entries(&mut out, entries);
    }
    if let Some(found) = story.get("match").filter(|found| found.is_object()) {
        draw_behind(&mut out, found, story);
    }
    draw_miss(&mut out, story);
    let problems = list(story, "/problems");
    if !problems.is_empty() {
        out.push_str("\nwhat looks wrong\n");
        for problem in problems {
            let _ = writeln!(
                out,
                "  {} {}: {}; {}",
                coloured("!", Colour::Red),
                text(problem, "/kind"),
                text(problem, "/detail"),
                text(problem, "/advice")
            );
        }
    }
    out
}

/// The ladder of prefixes: the winner marked, the others with what became of them.
fn draw_entries(out: &mut String, entries: &[Value]) {
    let widths = |pointer: &str| entries.iter().map(|entry| text(entry, pointer).len()).max().unwrap_or(0);
    let (prefix_width, cluster_width, identity_width) = (widths("/prefix"), widths("/cluster"), widths("/identity"));
    for entry in entries {
        let wins = text(entry, "/verdict") == "wins";
        let mark = if wins { coloured("●", Colour::Green) } else { "○".to_owned() };
        let line = format!(
            " {mark} {:prefix_width$}  {:cluster_width$}  {:>identity_width$}  {:8}  ",
            text(entry, "/prefix"),
            text(entry, "/cluster"),
            text(entry, "/identity"),
            text(entry, "/origin"),
        );
        let reason = text(entry, "/reason");
        let told = if wins { format!("wins: {reason}") } else { coloured(&reason, Colour::Faint) };
        let _ = writeln!(out, "{line}{told}");
    }
}

/// What stands behind the entry that wins.
fn draw_behind(out: &mut String, found: &Value, story: &Value) {
    let _ = writeln!(out, " │");
    let labels = found.pointer("/labels").and_then(Value::as_object);
    let labels = labels.map(|labels| labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect());
    let labels: Vec<String> = labels.unwrap_or_default();
    let _ = writeln!(out, " ├─ identity {}", text(found, "/identity"));
    for label in &labels {
        let _ = writeln!(out, " │    {label}");
    }
    if labels.is_empty() {
        let _ = writeln!(out, " │    {}", coloured("its labels are not known", Colour::Faint));
    }
    let node = text(story, "/node/name");
    if node.is_empty() {
        let _ = writeln!(out, " ├─ node      {}", coloured("none is known for its host address", Colour::Faint));
    } else {
        let _ = writeln!(out, " ├─ node      {}/{node}  {}", text(story, "/node/cluster"), text(found, "/hostIP"));
    }
    let services = list(story, "/services");
    out.push_str(if services.is_empty() { " └─ services  none has it behind it\n" } else { " └─ services\n" });
    for service in services {
        let name = format!("{}/{}/{}", text(service, "/cluster"), text(service, "/namespace"), text(service, "/name"));
        let _ = writeln!(out, "      {name}  ({})", text(service, "/kind"));
    }
}

/// What a miss says: whose range it would be in, what was there before, and which clusters could not be asked.
fn draw_miss(out: &mut String, story: &Value) {
    let hints = list(story, "/hints");
    if !hints.is_empty() {
        out.push_str("\nwhy it has no entry of its own\n");
    }
    for hint in hints {
        let _ = writeln!(out, "  {} {}", coloured("·", Colour::Faint), text(hint, "/detail"));
    }
}

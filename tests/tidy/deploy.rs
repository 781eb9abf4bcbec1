//! Files that are deployed with the binary. Alerts and the dashboard may only use existing metrics,
//! each alert must have a section in docs/operate/alerts.md, and the chart must have equal copies.
//! Another test compares docs/operate/metrics.md with `/metrics`. Also the options of
//! scripts/release.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the metrics of docs/operate/metrics.md with their types.
fn metrics() -> BTreeMap<String, String> {
    let page = read("docs/operate/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap_or_default().to_owned())).collect()
}

/// Returns the words that look like names of meshkeep's metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| ["meshkeep_", "process_"].iter().any(|begin| word.starts_with(begin))).collect()
}

/// Returns the metrics in a text that `/metrics` does not have.
fn unknown<'a>(text: &'a str, metrics: &BTreeMap<String, String>) -> Vec<&'a str> {
    let is_part_of_histogram = |name: &str| {
        let family = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
        family.is_some_and(|family| metrics.get(family).is_some_and(|kind| kind == "histogram"))
    };
    names(text).into_iter().filter(|name| !metrics.contains_key(*name) && !is_part_of_histogram(name)).collect()
}

#[test]
fn alerts_and_dashboard_use_only_existing_metrics() {
    let metrics = metrics();
    for name in ["alerts.yaml", "alerts.test.yaml", "dashboard.json"].map(|name| format!("deploy/prometheus/{name}")) {
        let text = read(&name);
        assert!(names(&text).len() > 10, "{name} names hardly any metrics");
        assert_eq!(unknown(&text, &metrics), Vec::<&str>::new(), "{name}");
    }
}

#[test]
fn an_unknown_metric_is_detected() {
    let metrics = metrics();
    let text = "rate(meshkeep_durable_duration_seconds_bucket[5m]) + meshkeep_loaded_count + meshkeep_lodaed + process_threads";
    assert_eq!(unknown(text, &metrics), ["meshkeep_loaded_count", "meshkeep_lodaed"]);
}

#[test]
fn each_alert_has_a_section_and_each_section_an_alert() {
    let (rules, page) = (read("deploy/prometheus/alerts.yaml"), read("docs/operate/alerts.md"));
    let values_of = |begin: &str| rules.lines().filter_map(|line| line.trim().strip_prefix(begin)).map(str::to_owned).collect::<Vec<_>>();
    let alerts: BTreeSet<String> = values_of("- alert: ").into_iter().collect();
    let headings: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("## ").filter(|name| name.starts_with("Meshkeep"))).collect();
    let descriptions = values_of("description: ");
    let section = |text: &'_ String| {
        text.rsplit_once(" See docs/operate/alerts.md, section ").map(|(_, rest)| rest.trim_end_matches(".\"").to_owned())
    };
    let sections: Vec<String> = descriptions.iter().filter_map(section).collect();
    assert!(alerts.len() > 20 && sections.len() == values_of("- alert: ").len(), "each description names a section");
    assert_eq!(headings, sections.iter().map(String::as_str).collect());
    assert_eq!(values_of("runbook_url: "), Vec::<String>::new(), "there is no address that is the same for everybody");
    for alert in &alerts {
        assert!(page.contains(alert.as_str()), "docs/operate/alerts.md does not name {alert}");
        assert!(read("deploy/prometheus/alerts.test.yaml").contains(alert.as_str()), "no test of {alert}");
    }
}

#[test]
fn every_alert_gets_a_link_to_its_section() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus/alerts-with-links");
    // `&` has a meaning in replacements of awk
    let pages = "https://git.example.org/pages?at=main&file=/";
    let output = Command::new(&script).arg(pages).output().unwrap();
    let linked = String::from_utf8(output.stdout).unwrap();
    let links: Vec<&str> = linked.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(links.len(), linked.matches("- alert: ").count());
    assert_eq!(links[0], format!("{pages}{}", "docs/operate/alerts.md#meshkeepnoclusters"));
    assert!(!Command::new(&script).output().unwrap().status.success(), "the address is needed");
}

#[test]
fn the_chart_has_the_same_alerts_and_dashboard() {
    for name in ["alerts.yaml", "dashboard.json"] {
        assert!(
            read(&format!("deploy/prometheus/{name}")) == read(&format!("deploy/helm/meshkeep/files/{name}")),
            "run scripts/chart --write: {name}"
        );
    }
}

#[test]
fn the_key_of_a_release_may_be_relative_to_the_current_directory() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("key"), "").unwrap();
    for (key, expected) in [("key", "unknown option --end"), ("./key", "unknown option --end"), ("other", "cannot read the key")] {
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/release"));
        // an unknown option ends the script before it builds anything
        let output = command.args(["1.2.3", "--sign-key", key, "--end", ""]).current_dir(directory.path()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(expected), "{key}: {error}");
    }
}

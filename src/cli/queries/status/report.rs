//! The text of `meshkeep status`: a summary, the state of the process, and a row for each cluster.
//!
//! The clusters with the worst state come first. If there are many clusters, the text omits the
//! healthy ones.

use std::cmp::Ordering;

use super::{RowOptions, is_live};
use crate::cli::queries::kinds::{CLUSTERS, is_stale, phase_colour};
use crate::cli::terminal::layout::{TableStyle, wrap};
use crate::cli::terminal::output::{Colour, age, coloured, table};
use crate::dto::reflection::ReflectionStatus;
use crate::dto::status::{Cluster, DirectoryStatus, DumpStatus, Status, StatusCounts, StoreStatus};
use crate::dto::values::Open;
use crate::dto::values::closed::{Phase, StoreState};

/// Maximum number of clusters for which healthy clusters are listed without `--all`: they and the
/// summary fit a terminal of 24 lines.
const CLUSTERS_LISTED_MAX: usize = 20;

/// Maximum number of names in a group of the summary. The rows of the table have all names.
const NAMES_MAX: usize = 5;

/// Sorts clusters: the worst state first, then the state that has lasted longest.
pub(super) fn sort_by_health(clusters: &mut [Cluster]) {
    clusters.sort_by(compare_health);
}

/// Returns the whole text, with the clusters in the given order.
pub(super) fn report(status: &Status, clusters: Vec<Cluster>, rows: &RowOptions, style: TableStyle) -> String {
    let mut lines = vec![status.dump.as_ref().map_or_else(|| cluster_summary(&status.directory, &clusters), dump_line)];
    lines.extend(process_lines(status));
    let mut out: String = lines.iter().map(|line| wrap(line, style.width)).collect();
    let selects = !rows.phase.is_empty() || !rows.cluster.is_empty();
    let hides_healthy = clusters.len() > CLUSTERS_LISTED_MAX && !rows.all && !selects;
    let is_listed = |cluster: &Cluster| rows.has_phase(cluster) && !(hides_healthy && is_healthy(cluster));
    let cluster_count = clusters.len();
    let listed: Vec<Cluster> = clusters.into_iter().filter(is_listed).collect();
    let hidden_count = if hides_healthy { cluster_count - listed.len() } else { 0 };
    if !listed.is_empty() {
        out.push('\n');
        out.push_str(&table(&CLUSTERS, listed, style));
    }
    if hidden_count > 0 {
        let clusters = if hidden_count == 1 { "1 live cluster is".to_owned() } else { format!("{hidden_count} live clusters are") };
        out.push('\n');
        out.push_str(&wrap(&format!("{clusters} not listed: --all lists all clusters"), style.width));
    }
    out
}

/// Returns whether a cluster needs no attention.
fn is_healthy(cluster: &Cluster) -> bool {
    is_live(cluster) && !is_stale(cluster)
}

/// Orders clusters: the worst state first, then the state that has lasted longest.
fn compare_health(one: &Cluster, other: &Cluster) -> Ordering {
    let by_time = || other.phase_seconds.unwrap_or_default().total_cmp(&one.phase_seconds.unwrap_or_default());
    let by_rank = health_rank(one).cmp(&health_rank(other));
    // how long a cluster has been live does not matter: live clusters are in order of their names
    if is_healthy(one) && is_healthy(other) {
        one.name.cmp(&other.name)
    } else {
        by_rank.then_with(by_time).then_with(|| one.name.cmp(&other.name))
    }
}

/// Returns the position of a cluster's state, the worst first.
fn health_rank(cluster: &Cluster) -> u8 {
    match cluster.phase.as_ref().map(Open::known) {
        Some(Some(Phase::BackingOff)) => 0,
        Some(Some(Phase::SourceLost)) => 1,
        Some(Some(Phase::WaitingForFiles)) | None => 2,
        Some(Some(Phase::ReadingConfig)) => 3,
        Some(Some(Phase::WaitingForCanary)) => 4,
        Some(Some(Phase::Connecting)) => 5,
        Some(Some(Phase::Listing) | None) => 6,
        Some(Some(Phase::Draining)) => 7,
        Some(Some(Phase::Live)) if !is_live(cluster) => 8,
        Some(Some(Phase::Live)) if is_stale(cluster) => 9,
        Some(Some(Phase::Live)) => 10,
    }
}

/// Returns how many clusters are live, and which ones are not, in one line.
fn cluster_summary(directory: &DirectoryStatus, clusters: &[Cluster]) -> String {
    if clusters.is_empty() {
        return coloured(&no_cluster_reason(directory), Colour::Red);
    }
    let live_count = clusters.iter().filter(|cluster| is_live(cluster)).count();
    let live = format!("{live_count} of {} live", clusters.len());
    let live = if live_count == clusters.len() { coloured(&live, Colour::Green) } else { live };
    let mut unhealthy: Vec<&Cluster> = clusters.iter().filter(|cluster| !is_healthy(cluster)).collect();
    unhealthy.sort_by(|one, other| compare_health(one, other));
    let groups = unhealthy.chunk_by(|one, other| state_words(one) == state_words(other)).map(|group| {
        let (state, colour) = (state_words(group[0]), phase_colour(group[0]));
        let colour = if colour == Colour::Green { Colour::Yellow } else { colour };
        format!("{}: {}", coloured(&format!("{} {state}", group.len()), colour), list_names(group))
    });
    let groups: Vec<String> = groups.collect();
    if groups.is_empty() { live } else { format!("{live}, {}", groups.join("; ")) }
}

/// Returns a description of the dump that the process serves.
fn dump_line(dump: &DumpStatus) -> String {
    let DumpStatus { path, form, time, .. } = dump;
    format!("serves the dump {path} of {time}, made by {form}")
}

/// Returns why there is no cluster.
fn no_cluster_reason(directory: &DirectoryStatus) -> String {
    match (&directory.no_clusters, &directory.error) {
        (Some(reason), _) => format!("there is no cluster: {reason}"),
        (None, Some(error)) if !directory.readable => format!("cannot read the config directory: {error}"),
        (None, _) if !directory.readable => "the config directory was not read yet".to_owned(),
        (None, _) => "there is no cluster yet".to_owned(),
    }
}

/// Returns the state of a cluster as words: `backing off` for the phase `backingOff`.
fn state_words(cluster: &Cluster) -> String {
    let Some(phase) = &cluster.phase else { return "without a file".to_owned() };
    match phase.known() {
        Some(Phase::Live) if is_live(cluster) => return "stale".to_owned(),
        Some(Phase::Live) => return "restored from disk".to_owned(),
        Some(Phase::WaitingForCanary) => return "waiting for a canary".to_owned(),
        _ => {}
    }
    let mut words = String::new();
    for character in phase.name().chars() {
        if character.is_ascii_uppercase() {
            words.push(' ');
        }
        words.push(character.to_ascii_lowercase());
    }
    words
}

fn list_names(clusters: &[&Cluster]) -> String {
    let names: Vec<&str> = clusters.iter().take(NAMES_MAX).map(|cluster| cluster.name.as_str()).collect();
    let rest = clusters.len() - names.len();
    if rest == 0 { names.join(", ") } else { format!("{} and {rest} more", names.join(", ")) }
}

/// Returns the state of the process, one line for each part.
fn process_lines(status: &Status) -> Vec<String> {
    let loading = if status.loaded { "" } else { ", still loading its store" };
    let mut lines = vec![format!("meshkeep {}, up {}{loading}", status.version, age(status.uptime_seconds))];
    lines.extend(status.counts.as_ref().map(counts_line));
    lines.push(store_line(&status.store));
    lines.extend(status.reflection.as_ref().map(reflection_line));
    let directory = &status.directory;
    // without clusters, the summary has the error
    if let Some(error) = directory.error.as_ref().filter(|_| !directory.readable && !status.clusters.is_empty() && status.dump.is_none()) {
        lines.push(coloured(&format!("cannot read the config directory: {error}"), Colour::Red));
    }
    let unused = |(file, reason): (&String, &String)| coloured(&format!("file {file} cannot be used: {reason}"), Colour::Red);
    lines.extend(directory.invalid_files.iter().map(unused));
    lines
}

/// Returns the state of the store and its errors.
fn store_line(store: &StoreStatus) -> String {
    let details: Vec<&str> = store.error.iter().chain(&store.losses).map(String::as_str).collect();
    let colon = if details.is_empty() { "" } else { ": " };
    let line = format!("store {}{colon}{}", store.state, details.join("; "));
    match store.state.known() {
        Some(StoreState::Loading | StoreState::Healthy) => line,
        Some(StoreState::Failing | StoreState::Stopped) => coloured(&line, Colour::Red),
        Some(StoreState::Lost) | None => coloured(&line, Colour::Yellow),
    }
}

/// Kind in the summary: its count, and its singular and plural.
type CountLabel = (fn(&StatusCounts) -> u64, &'static str, &'static str);

const COUNT_LABELS: [CountLabel; 7] = [
    (|counts| counts.nodes, "node", "nodes"),
    (|counts| counts.services, "service", "services"),
    (|counts| counts.identities, "identity", "identities"),
    (|counts| counts.ipcache, "ipcache entry", "ipcache entries"),
    (|counts| counts.service_exports, "service export", "service exports"),
    (|counts| counts.endpoint_slices, "endpoint slice", "endpoint slices"),
    (|counts| counts.rejected, "rejected value", "rejected values"),
];

/// Returns the number of entries per kind, in one line. Kinds without entries are left out.
fn counts_line(counts: &StatusCounts) -> String {
    let parts = COUNT_LABELS.iter().filter_map(|(count, one, several)| match count(counts) {
        0 => None,
        1 => Some(format!("1 {one}")),
        count => Some(format!("{count} {several}")),
    });
    let parts: Vec<String> = parts.collect();
    let keys = if counts.entries == 1 { "1 key".to_owned() } else { format!("{} keys", counts.entries) };
    if parts.is_empty() { keys } else { format!("{keys}: {}", parts.join(", ")) }
}

/// Returns the state of `reflect`, in one line.
fn reflection_line(reflection: &ReflectionStatus) -> String {
    match &reflection.error {
        None if reflection.leader => format!("reflects {} clusters; {} keys wait", reflection.clusters, reflection.waiting),
        None => "does not reflect now: another meshkeep or KVStoreMesh writes".to_owned(),
        Some(error) => coloured(&format!("cannot reflect: {error}"), Colour::Red),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_are_human_readable() {
        let none: StatusCounts = serde_json::from_value(json!({"entries": 1, "nodes": 0, "services": 0, "serviceExports": 0,
            "endpointSlices": 0, "identities": 0, "ipcache": 0, "rejected": 0}))
        .unwrap();
        let some = StatusCounts { entries: 22, nodes: 4, services: 1, ipcache: 44, service_exports: 1, rejected: 2, ..none.clone() };
        assert_eq!(counts_line(&some), "22 keys: 4 nodes, 1 service, 44 ipcache entries, 1 service export, 2 rejected values");
        assert_eq!(counts_line(&none), "1 key");
    }
}

//! `meshkeep get global-services NAME --from CLUSTER --affinity AFFINITY`: the backends of a
//! service, and for each the reason why the agents of a cluster use it or not.

use std::collections::BTreeSet;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::Value;

use crate::cli::failure::Failure;
use crate::cli::queries::api_client::ApiClient;
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{Colour, TableColumn, TableShape, Tabular, cells, coloured, joined, parse_answer, print_coloured, text};
use crate::dto::objects::global_services::{BackendSelection, GlobalBackend, GlobalPort, GlobalService, TooLarge};
use crate::dto::values::closed::{Affinity, BackendState, SelectionRule};
use crate::model::ApiEnum;

#[derive(Debug, Args)]
pub(super) struct AffinityOptions {
    /// Only for global services: the backends that agents of this cluster use; with one name, all
    /// backends, and why each is used or not [default: the own cluster]
    #[arg(long, value_name = "CLUSTER")]
    from: Option<String>,
    /// Service affinity for --from
    #[arg(long, value_name = "AFFINITY", value_parser = PossibleValuesParser::new(Affinity::values().map(ApiEnum::api_name)))]
    affinity: Option<String>,
}

impl AffinityOptions {
    pub(super) fn is_given(&self) -> bool {
        self.from.is_some() || self.affinity.is_some()
    }

    /// Returns the parameters of the API. Without an affinity it is `none`, as on the page.
    pub(super) fn query(&self) -> Vec<(&str, &str)> {
        let affinity = self.affinity.as_deref().unwrap_or(Affinity::None.api_name());
        let affinity = self.is_given().then_some(("affinity", affinity));
        affinity.into_iter().chain(self.from.iter().map(|from| ("from", from.as_str()))).collect()
    }
}

/// Backend of a service, and the decision on it.
struct BackendRow {
    backend: GlobalBackend,
    is_used: bool,
    reason: String,
}

const ROWS: TableShape<BackendRow> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |row| row.backend.cluster.clone()),
        TableColumn::new("BACKEND", |row| row.backend.ip.clone()),
        TableColumn::new("PORTS", |row| joined(row.backend.ports.iter().map(port))),
        TableColumn::new("STATE", |row| row.backend.state.to_string()),
        TableColumn::wide("HOSTNAME", |row| text(row.backend.hostname.as_ref())),
        TableColumn::wide("ZONE", |row| text(row.backend.zone.as_ref())),
        TableColumn::wide("NODE", |row| text(row.backend.node_name.as_ref())),
        TableColumn::new("USED", |row| if row.is_used { coloured("yes", Colour::Green) } else { "no".to_owned() }),
        TableColumn::new("REASON", |row| row.reason.clone()),
    ],
    name: |row| row.backend.ip.clone(),
};

fn port(port: &GlobalPort) -> String {
    let name = port.name.iter().map(|name| format!("{name}:")).collect::<String>();
    format!("{name}{}/{}", port.port, port.protocol)
}

/// Prints the service at `path` with the decision on each backend. Formats for programs have the
/// API's answer, which only has the backends that are used.
pub(super) async fn print_backends(
    client: &ApiClient,
    path: &str,
    options: &AffinityOptions,
    list: &ListOptions,
    shape: &dyn Tabular,
) -> Result<(), Failure> {
    let chosen: Value = client.get(path, &options.query()).await?;
    if !list.format().is_table() {
        return list.print_one(shape, &chosen);
    }
    let chosen: GlobalService = parse_answer(&chosen)?;
    let all: GlobalService = parse_answer(&client.get(path, &[]).await?)?;
    let Some(selection) = &chosen.selection else {
        let reason = chosen.too_large.as_ref().map_or("the answer has no selection", |TooLarge { reason, .. }| reason.as_str());
        return Err(Failure::new(format!("the backends of {}/{} are not known: {reason}", all.namespace, all.name)));
    };
    let rows = decisions(selection, &chosen.backends, all.backends);
    let used = rows.iter().filter(|row| row.is_used).count();
    let unknown = if selection.local_known { "" } else { " (the services of that cluster are not mirrored)" };
    let heading = format!(
        "{}/{} as seen from {} with affinity {}{unknown}: {used} of {} backends would be used\n{}: {}\n\n",
        all.namespace,
        all.name,
        selection.from,
        selection.affinity,
        rows.len(),
        selection.rule,
        chosen.reason.as_deref().unwrap_or_default()
    );
    let is_wide = list.format() == crate::cli::terminal::output::OutputFormat::Wide;
    print_coloured(&(heading + &list.table_text(&cells(&ROWS, rows, is_wide))))
}

fn decisions(selection: &BackendSelection, used: &[GlobalBackend], all: Vec<GlobalBackend>) -> Vec<BackendRow> {
    let used: BTreeSet<(&str, &str)> = used.iter().map(|backend| (backend.cluster.as_str(), backend.ip.as_str())).collect();
    let row = |backend: GlobalBackend| {
        let is_used = used.contains(&(backend.cluster.as_str(), backend.ip.as_str()));
        let why = if is_used { String::new() } else { reason_against(&backend.cluster, selection) };
        let parts = [Some(why), state_note(&backend).map(str::to_owned)];
        let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        let colon = if parts.is_empty() { "" } else { ": " };
        let reason = format!("{}{colon}{}", selection.rule, parts.join("; "));
        BackendRow { backend, is_used, reason }
    };
    all.into_iter().map(row).collect()
}

/// Returns the reason why the backends of a cluster are not used.
fn reason_against(cluster: &str, selection: &BackendSelection) -> String {
    let from = &selection.from;
    match selection.rule.known() {
        Some(SelectionRule::NoLocalService) => format!("{from} announces no such service"),
        Some(SelectionRule::NotGlobal) => format!("the service of {from} does not use backends of other clusters"),
        _ if cluster == from => "affinity remote prefers backends of other clusters".to_owned(),
        _ => format!("affinity local prefers backends of {from}"),
    }
}

/// Returns what an agent does differently with a backend in its state.
fn state_note(backend: &GlobalBackend) -> Option<&'static str> {
    match backend.state.known() {
        _ if backend.ports.is_empty() => Some("it has no ports, so agents ignore it"),
        Some(BackendState::Terminating) => Some("it is terminating and gets no new connections while other backends exist"),
        Some(BackendState::TerminatingNotServing) => Some("it is terminating and no longer serves"),
        Some(BackendState::Maintenance) => Some("it is not ready"),
        Some(BackendState::Active) | None => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn backend(cluster: &str, ip: &str, state: &str) -> Value {
        json!({"ip": ip, "cluster": cluster, "origin": "live", "state": state, "ports": [{"name": "http", "protocol": "TCP", "port": 80}]})
    }

    /// Returns the decisions of a rule: for each backend whether it is used, and the reason.
    fn decide(rule: &str, local: bool, remote: bool) -> Vec<(bool, String)> {
        let selection = json!({"from": "paris", "affinity": "local", "rule": rule, "local": local, "remote": remote, "localKnown": true});
        let own = [backend("paris", "10.1.1.21", "active"), backend("paris", "10.1.1.22", "terminating")];
        let others = [backend("tokyo", "10.2.1.21", "active")];
        let read = |backends: Vec<Value>| backends.iter().map(|one| parse_answer(one).unwrap()).collect::<Vec<GlobalBackend>>();
        let used = read(own.iter().filter(|_| local).chain(others.iter().filter(|_| remote)).cloned().collect());
        let rows = decisions(&parse_answer(&selection).unwrap(), &used, read([&own[..], &others].concat()));
        rows.into_iter().map(|row| (row.is_used, row.reason)).collect()
    }

    #[test]
    fn each_backend_has_its_reason() {
        let terminating = "it is terminating and gets no new connections while other backends exist";
        let expected = |rule: &str, used: [bool; 3], reasons: [&str; 3]| {
            let reason = |text: &str| if text.is_empty() { rule.to_owned() } else { format!("{rule}: {text}") };
            used.into_iter().zip(reasons.map(reason)).collect::<Vec<_>>()
        };
        let against_remote = "affinity local prefers backends of paris";
        assert_eq!(decide("localActive", true, false), expected("localActive", [true, true, false], ["", terminating, against_remote]));
        let against_local = "affinity remote prefers backends of other clusters";
        let both = format!("{against_local}; {terminating}");
        assert_eq!(decide("remoteHealthy", false, true), expected("remoteHealthy", [false, false, true], [against_local, &both, ""]));
        let not_global = "the service of paris does not use backends of other clusters";
        assert_eq!(decide("notGlobal", true, false), expected("notGlobal", [true, true, false], ["", terminating, not_global]));
        let none = "paris announces no such service";
        let both = format!("{none}; {terminating}");
        assert_eq!(decide("noLocalService", false, false), expected("noLocalService", [false; 3], [none, &both, none]));
    }
}

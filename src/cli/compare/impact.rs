//! `meshkeep impact CLUSTER`: what changes for the other clusters if a cluster or a namespace
//! leaves the mesh.

use clap::Args;

use super::list_names;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::queries::api_client::{ApiClient, ServerOptions};
use crate::cli::terminal::layout::{TableStyle, wrap};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{Colour, TableColumn, TableShape, coloured, joined, parse_answer, print_coloured, table, text};
use crate::dto::objects::impact::Impact;
use crate::dto::values::closed::{ImpactEffect, ImpactKind};

/// Effects in the order of the report, with the heading of each.
const EFFECTS: [(ImpactEffect, &str); 5] = [
    (ImpactEffect::LosesAll, "would lose all backends"),
    (ImpactEffect::FallsBack, "would fall back to other backends"),
    (ImpactEffect::LosesSome, "would lose some backends"),
    (ImpactEffect::Unknown, "are too large, so their backends are not known"),
    (ImpactEffect::Unnoticed, "would not notice"),
];

#[derive(Debug, Args)]
pub(in crate::cli) struct ImpactOptions {
    /// The cluster that leaves the mesh
    #[arg(value_name = "CLUSTER", required_unless_present = "namespace", conflicts_with = "namespace")]
    cluster: Option<String>,
    /// The namespace that leaves the mesh, in all clusters
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    list: ListOptions,
}

const SERVICES: TableShape<Impact> = TableShape {
    columns: &[
        TableColumn::new("NAMESPACE", |impact| text(impact.namespace.as_ref())),
        TableColumn::new("NAME", |impact| text(impact.name.as_ref())),
        TableColumn::new("EFFECT", effect),
        TableColumn::new("LOST", |impact| text(impact.lost_backends.as_ref())),
        TableColumn::new("REMAINING", |impact| text(impact.remaining_backends.as_ref())),
        TableColumn::new("NO AFFINITY", |impact| text(impact.affinities.as_ref().map(|effects| &effects.none))),
        TableColumn::new("LOCAL", |impact| text(impact.affinities.as_ref().map(|effects| &effects.local))),
        TableColumn::new("REMOTE", |impact| text(impact.affinities.as_ref().map(|effects| &effects.remote))),
        TableColumn::new("FALLBACK", |impact| joined(&impact.fallback_clusters)),
    ],
    name,
};

fn effect(impact: &Impact) -> String {
    let colour = match impact.effect.known() {
        Some(ImpactEffect::LosesAll | ImpactEffect::Unknown) => Colour::Red,
        Some(ImpactEffect::FallsBack | ImpactEffect::LosesSome) => Colour::Yellow,
        Some(ImpactEffect::Unnoticed | ImpactEffect::OnlyHere) | None => Colour::Faint,
    };
    coloured(impact.effect.name(), colour)
}

fn name(impact: &Impact) -> String {
    match impact.kind.known() {
        Some(ImpactKind::Identity) => format!("identity/{}", text(impact.identity.as_ref())),
        Some(ImpactKind::Cidr) => format!("ipcache/{}", text(impact.prefix.as_ref())),
        Some(ImpactKind::Service) | None => format!("global-service/{}/{}", text(impact.namespace.as_ref()), text(impact.name.as_ref())),
    }
}

/// Prints the affected services, identities and CIDRs.
pub(in crate::cli) async fn run(options: &ImpactOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let cluster = options.cluster.iter().map(|cluster| ("cluster", cluster.as_str()));
    let namespace = options.namespace.iter().map(|namespace| ("namespace", namespace.as_str()));
    let query: Vec<(&str, &str)> = cluster.chain(namespace).collect();
    let items = ApiClient::new(server)?.list("/v1/impact", &query).await?;
    if !options.list.format().is_table() {
        options.list.print_list(&SERVICES, items)?;
        return Ok(ExitStatus::Success);
    }
    let impacts = options.list.sorted(items)?.iter().map(parse_answer).collect::<Result<Vec<Impact>, _>>()?;
    let missing = match (&options.cluster, &options.namespace) {
        (Some(cluster), _) => format!("cluster {cluster}"),
        (None, namespace) => format!("namespace {}", text(namespace.as_ref())),
    };
    print_coloured(&report(&missing, impacts, options.list.table_style()))?;
    Ok(ExitStatus::Success)
}

/// Returns the number of services with each effect, their table, and the identities and CIDRs.
fn report(missing: &str, impacts: Vec<Impact>, style: TableStyle) -> String {
    let (mut services, mut identities, mut cidrs) = (Vec::new(), Vec::new(), Vec::new());
    for impact in impacts {
        match impact.kind.known() {
            Some(ImpactKind::Service) => services.push(impact),
            Some(ImpactKind::Identity) => identities.push(text(impact.identity.as_ref())),
            Some(ImpactKind::Cidr) => cidrs.push(text(impact.prefix.as_ref())),
            None => {}
        }
    }
    let mut out = wrap(&format!("without {missing}:"), style.width);
    for (effect, words) in EFFECTS {
        let count = services.iter().filter(|service| service.effect == effect).count();
        if count > 0 || effect == ImpactEffect::LosesAll {
            out += &wrap(&format!("  {} {words}", counted(count, "global service", "global services")), style.width);
        }
    }
    for (names, one, many) in [(&identities, "identity", "identities"), (&cidrs, "CIDR", "CIDRs")] {
        if !names.is_empty() {
            let line = format!("  {} would no longer be announced: {}", counted(names.len(), one, many), list_names(names, style.wide));
            out += &wrap(&line, style.width);
        }
    }
    if !services.is_empty() {
        // stable, so that services with the same effect stay in order of their names
        services.sort_by_key(|service| EFFECTS.iter().position(|(effect, _)| service.effect == *effect));
        out.push('\n');
        out += &table(&SERVICES, services, style);
    }
    out
}

fn counted(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::without_colours;

    #[test]
    fn the_worst_effects_come_first() {
        let service = |name: &str, effect: &str| {
            json!({"kind": "service", "namespace": "shop", "name": name, "effect": effect, "lostBackends": 2, "remainingBackends": 1,
                "affinities": {"none": effect, "local": "unnoticed", "remote": effect}, "fallbackClusters": ["tokyo"]})
        };
        let identity = |id: u32| json!({"kind": "identity", "effect": "onlyHere", "identity": id, "labels": {}});
        let items: Vec<Value> = [service("a", "unnoticed"), service("b", "losesAll"), service("c", "fallsBack"), service("d", "fallsBack")]
            .into_iter()
            .chain((1..=12).map(identity))
            .chain([json!({"kind": "cidr", "effect": "onlyHere", "prefix": "10.1.0.0/16", "identity": 2})])
            .collect();
        let names: Vec<String> = items.iter().map(|item| (SERVICES.name)(&parse_answer(item).unwrap())).collect();
        assert_eq!([&names[0], &names[4], &names[16]], ["global-service/shop/a", "identity/1", "ipcache/10.1.0.0/16"]);
        let impacts = items.iter().map(|item| parse_answer(item).unwrap()).collect();
        let text = report("cluster paris", impacts, TableStyle { wide: false, has_headings: true, width: None });
        let expected = "without cluster paris:
  1 global service would lose all backends
  2 global services would fall back to other backends
  1 global service would not notice
  12 identities would no longer be announced: 1,2,3,4,5,6,7,8,9,10 and 2 more
  1 CIDR would no longer be announced: 10.1.0.0/16

NAMESPACE  NAME  EFFECT     LOST  REMAINING  NO AFFINITY  LOCAL      REMOTE     FALLBACK
shop       b     losesAll   2     1          losesAll     unnoticed  losesAll   tokyo
shop       c     fallsBack  2     1          fallsBack    unnoticed  fallsBack  tokyo
shop       d     fallsBack  2     1          fallsBack    unnoticed  fallsBack  tokyo
shop       a     unnoticed  2     1          unnoticed    unnoticed  unnoticed  tokyo
";
        assert_eq!(without_colours(&text), expected);
    }
}

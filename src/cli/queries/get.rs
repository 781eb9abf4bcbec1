//! `meshkeep get KIND [NAME]`: lists and single objects, once or followed.

mod affinity;

use clap::Args;
use serde_json::Value;

use self::affinity::AffinityOptions;
use super::api_client::lists::WholeList;
use super::api_client::{ApiClient, ServerOptions, items};
use super::filters::FilterOptions;
use super::kinds::{KINDS, KindRow};
use super::watch;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{OutputFormat, parse_answer};
use crate::cli::terminal::past_notes::past_notes;
use crate::dto::values::closed::Kind;
use crate::model::check_exact_name;

/// Kind whose backends `--from` and `--affinity` select.
const GLOBAL_SERVICES: &str = "global-services";

#[derive(Debug, Args)]
pub(in crate::cli) struct GetOptions {
    /// nodes, services, global-services, identities, ipcache, service-exports, endpoint-slices or
    /// clusters
    #[arg(value_name = "KIND")]
    kind: String,
    /// The name: CLUSTER/NAME of a node, CLUSTER/NAMESPACE/NAME of a service, NUMBER of an
    /// identity, an address or prefix, or only the last part
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    filters: FilterOptions,
    /// Continue with changes
    #[arg(short, long)]
    watch: bool,
    /// The objects as they were at this time: RFC 3339, or a duration before now, such as 10m
    #[arg(long, value_name = "TIME", conflicts_with_all = ["watch", "from", "affinity"])]
    at: Option<String>,
    #[command(flatten)]
    affinity: AffinityOptions,
    #[command(flatten)]
    list: ListOptions,
}

/// Prints the objects that the options select.
pub(in crate::cli) async fn run(options: &GetOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let kind = KindRow::by_name(&options.kind).ok_or_else(|| {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.names[0]).collect();
        Failure::usage(format!("there is no kind {:?}: use one of {}", options.kind, known.join(", ")))
    })?;
    if let Some(Err(error)) = options.name.as_deref().map(check_exact_name) {
        return Err(Failure::usage(error.to_string()));
    }
    let client = ApiClient::new(server)?;
    let filters = check_filters(&options.filters, kind)?;
    let mut query: Vec<(&str, &str)> = filters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    check_watch(options, kind)?;
    check_past(options, kind)?;
    if options.affinity.is_given() {
        if kind.names[0] != GLOBAL_SERVICES {
            return Err(Failure::usage(format!("--from and --affinity are for {GLOBAL_SERVICES}, not for {}", kind.names[0])));
        }
        if let Some(name) = options.name.as_deref() {
            let path = service_path(kind, options, name)?;
            // the namespace may complete the name
            let is_filter = |filter: &str| filter != "namespace" || name.contains('/');
            let others: Vec<(&str, &str)> = query.into_iter().filter(|(filter, _)| is_filter(filter)).collect();
            check_object_filters(kind, &others, &path)?;
            affinity::print_backends(&client, &path, &options.affinity, &options.list, kind.shape).await?;
            return Ok(ExitStatus::Success);
        }
        query.extend(options.affinity.query());
    }
    if let Some(path) = options.name.as_deref().and_then(|name| object_path(kind, options, name)) {
        check_object_filters(kind, &query, &path)?;
        let mut by_cluster: Vec<(&str, &str)> = query.into_iter().filter(|_| needs_cluster(kind)).collect();
        by_cluster.extend(options.at.iter().map(|at| ("at", at.as_str())));
        let found: Value = client.get(&path, &by_cluster).await?;
        if found.get("items").is_some_and(Value::is_array) {
            options.list.print_list(kind.shape, items(found))?;
        } else {
            options.list.print_one(kind.shape, &found)?;
            if options.at.is_some() && !options.list.format().is_whole_answer() {
                crate::cli::print_to_stderr(past_notes(&parse_answer(&found["meta"])?));
            }
        }
        return Ok(ExitStatus::Success);
    }
    query.extend(options.at.iter().map(|at| ("at", at.as_str())));
    let WholeList { mut items, position, past } = client.list_whole(&kind.path(), &query).await?;
    if let Some(name) = &options.name {
        items = filter_by_name(kind, items, name)?;
        if items.is_empty() {
            // it may be missing because of a gap
            crate::cli::print_to_stderr(past.notes());
            let when = if options.at.is_some() { " at that time" } else { "" };
            return Err(Failure::new(format!("there is no {} {name:?} in any mirrored cluster{when}", kind.names[1])));
        }
    }
    if options.at.is_some() {
        options.list.print_past_list(kind.shape, items, &past)?;
        return Ok(ExitStatus::Success);
    }
    options.list.print_list(kind.shape, items)?;
    let Some(streamed) = kind.streamed.filter(|_| options.watch) else { return Ok(ExitStatus::Success) };
    let mut query: Vec<(String, String)> = filters.clone();
    query.push(("kind".to_owned(), streamed.to_string()));
    watch::follow(&client, query, watch::WatchStart::After(position), options.list.format()).await
}

/// Refuses `-w` with options that it does not support.
fn check_watch(options: &GetOptions, kind: &KindRow) -> Result<(), Failure> {
    let format = options.list.format();
    let reason = match (kind.streamed, &options.name) {
        _ if !options.watch => return Ok(()),
        (None, _) => format!("does not support {}: use services", kind.names[0]),
        (_, Some(_)) => "only follows lists: omit the name, and give --cluster or another filter".to_owned(),
        _ if matches!(format, OutputFormat::JsonPath(_) | OutputFormat::CustomColumns(_)) => {
            "prints events after the list, which have other members: use -o json, or meshkeep watch -o jsonpath=…".to_owned()
        }
        _ => return Ok(()),
    };
    Err(Failure::usage(format!("-w {reason}")))
}

/// Refuses `--at` for kinds of which no earlier versions are stored.
fn check_past(options: &GetOptions, kind: &KindRow) -> Result<(), Failure> {
    let has_past = |row: &KindRow| row.streamed.is_some_and(|kind| kind != Kind::Cluster);
    if options.at.is_none() || has_past(kind) {
        return Ok(());
    }
    let others: Vec<&str> = KINDS.iter().filter(|row| has_past(row)).map(|row| row.names[0]).collect();
    Err(Failure::usage(format!("--at does not support {}: use it with {}", kind.names[0], others.join(", "))))
}

/// Returns the path of the service for `--from`, whose namespace may come from `-n`.
fn service_path(kind: &KindRow, options: &GetOptions, name: &str) -> Result<String, Failure> {
    let full_name = match (options.filters.namespace(), name.contains('/')) {
        (Some(namespace), false) => format!("{namespace}/{name}"),
        _ => name.to_owned(),
    };
    let incomplete = || Failure::usage(format!("--from and --affinity need the namespace of {name}: write NAMESPACE/{name}"));
    object_path(kind, options, &full_name).ok_or_else(incomplete)
}

/// Returns the query parameters of the list. Refuses filters that the kind does not have.
fn check_filters(options: &FilterOptions, kind: &KindRow) -> Result<Vec<(String, String)>, Failure> {
    let name = kind.names[0];
    if options.namespace().is_some() && !kind.namespaced {
        return Err(Failure::usage(format!("{name} have no namespace")));
    }
    if options.selector.is_some() && !kind.labelled {
        let instead = "select identities, then use get ipcache --filter identity=NUMBER";
        return Err(Failure::usage(format!("{name} have no labels: {instead}")));
    }
    Ok(options.query())
}

/// Returns whether several clusters may have an object of the same name, so that `cluster=` selects
/// one of them.
fn needs_cluster(kind: &KindRow) -> bool {
    matches!(kind.name_parts, ["prefix" | "id"])
}

/// Refuses filters that a complete name makes useless or that contradict it.
fn check_object_filters(kind: &KindRow, query: &[(&str, &str)], path: &str) -> Result<(), Failure> {
    let name_has_cluster = kind.name_parts.first() == Some(&"cluster");
    for (filter, value) in query {
        let is_redundant =
            name_has_cluster && path.strip_prefix(&kind.path()).is_some_and(|name| name.split('/').nth(1) == Some(encoded(value).as_str()));
        if *filter != "cluster" || !(needs_cluster(kind) || is_redundant) {
            return Err(Failure::usage(format!("a full name selects one object: omit {filter}={value}, or the name")));
        }
    }
    Ok(())
}

/// Returns the path of a single object; `None` if the name is incomplete.
fn object_path(kind: &KindRow, options: &GetOptions, name: &str) -> Option<String> {
    if matches!(kind.name_parts, ["prefix" | "id" | "name"]) {
        return Some(format!("{}/{}", kind.path(), encoded(name)));
    }
    let mut parts: Vec<&str> = name.split('/').collect();
    if parts.len() + 1 == kind.name_parts.len() && kind.name_parts.contains(&"namespace") && !parts.contains(&"") {
        // the namespace of a service may come from -n, and the cluster from --cluster
        if let ([cluster], true) = (options.filters.cluster.as_slice(), kind.name_parts[0] == "cluster") {
            parts.insert(0, cluster);
        }
    } else if let (1, [cluster], ["cluster", "name"]) = (parts.len(), options.filters.cluster.as_slice(), kind.name_parts) {
        parts.insert(0, cluster);
    }
    (parts.len() == kind.name_parts.len())
        .then(|| format!("{}/{}", kind.path(), parts.into_iter().map(encoded).collect::<Vec<_>>().join("/")))
}

/// Returns the objects whose name ends with the parts in `wanted`.
fn filter_by_name(kind: &KindRow, items: Vec<Value>, wanted: &str) -> Result<Vec<Value>, Failure> {
    let wanted: Vec<&str> = wanted.split('/').collect();
    let mut found = Vec::new();
    for item in items {
        // the first part is the kind
        let name = kind.shape.name(&item)?;
        let own: Vec<&str> = name.split('/').skip(1).collect();
        if own.ends_with(&wanted) {
            found.push(item);
        }
    }
    Ok(found)
}

/// Percent-encodes a part of a path. The `/` and `:` of prefixes stay as they are.
pub(in crate::cli) fn encoded(part: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte);
    part.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

//! `meshkeep find TEXT`: the objects of all kinds whose name, address or label contains a text.

use clap::Args;
use serde_json::{Map, Value};

use super::api_client::{ApiClient, ServerOptions};
use super::kinds::{KINDS, KindRow};
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::output::{OutputFormat, OutputOptions, print, print_json, print_list, print_yaml};
use crate::dto::values::closed::Kind;

#[derive(Debug, Args)]
pub(in crate::cli) struct FindOptions {
    /// A part of a name (cart, shop/cart), a pod or a label, the beginning of an address (10.1.),
    /// or the name of a reserved identity (world)
    #[arg(value_name = "TEXT")]
    text: String,
    /// Maximum number of objects of each kind
    #[arg(long, value_name = "COUNT", default_value = "50", value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    output: OutputOptions,
}

/// Prints the objects that match, kind by kind.
pub(in crate::cli) async fn run(options: &FindOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let text = options.text.trim();
    if text.is_empty() {
        return Err(Failure::usage("TEXT is empty: give a part of a name, a label or an address"));
    }
    let (client, count_max) = (ApiClient::new(server)?, usize::try_from(options.limit).unwrap_or(usize::MAX));
    let mut matches = Vec::new();
    for kind in KINDS {
        let (items, has_more) = find_in(&client, kind, text, count_max).await?;
        if has_more {
            let name = kind.names[0];
            crate::cli::print_warning(&format!("more than {count_max} {name} match: type more of the text, or raise --limit"));
        }
        if !items.is_empty() {
            matches.push((kind, items));
        }
    }
    if matches.is_empty() {
        return Err(Failure::new(format!("nothing in any mirrored cluster matches {text:?}")));
    }
    print_matches(options.output.output, matches)?;
    Ok(ExitStatus::Success)
}

/// Returns the objects of a kind that match, and whether there are more.
async fn find_in(client: &ApiClient, kind: &KindRow, text: &str, count_max: usize) -> Result<(Vec<Value>, bool), Failure> {
    if kind.streamed != Some(Kind::Cluster) {
        return client.list_first(&kind.path(), &[("search", text)], count_max).await;
    }
    // there are at most a few hundred clusters, and their list has no search
    let clusters = client.list(&kind.path(), &[]).await?;
    let is_match = |cluster: &Value| cluster["name"].as_str().is_some_and(|name| name.contains(&text.to_ascii_lowercase()));
    let mut clusters: Vec<Value> = clusters.into_iter().filter(is_match).collect();
    let has_more = clusters.len() > count_max;
    clusters.truncate(count_max);
    Ok((clusters, has_more))
}

fn print_matches(format: OutputFormat, matches: Vec<(&KindRow, Vec<Value>)>) -> Result<(), Failure> {
    let by_kind =
        || Value::Object(matches.iter().map(|(kind, items)| (kind.names[0].to_owned(), items.clone().into())).collect::<Map<_, _>>());
    match format {
        OutputFormat::Json => return print_json(&by_kind()),
        OutputFormat::Yaml => return print_yaml(&by_kind()),
        OutputFormat::JsonPath(template) => return print(&template.text(&by_kind())),
        OutputFormat::Table | OutputFormat::Wide | OutputFormat::Name | OutputFormat::CustomColumns(_) => {}
    }
    for (index, (kind, items)) in matches.iter().enumerate() {
        if format != OutputFormat::Name {
            print(&format!("{}{}:\n", if index == 0 { "" } else { "\n" }, kind.names[0]))?;
        }
        print_list(format, kind.shape, items)?;
    }
    Ok(())
}

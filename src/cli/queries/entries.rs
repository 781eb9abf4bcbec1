//! `meshkeep entries` and `meshkeep rejected`: raw entries, and values that meshkeep rejected.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;

use super::api_client::{ApiClient, ServerOptions};
use super::get::encoded;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{TableColumn, TableShape, age_since, print, print_document};
use crate::dto::raw::{Entry, Rejected};

#[derive(Debug, Args)]
pub(in crate::cli) struct EntriesOptions {
    /// Only keys that begin with this, such as cilium/cache/ip/v1/paris/
    #[arg(value_name = "PREFIX")]
    prefix: Option<String>,
    /// Only entries of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    /// Print the bytes of one key, PREFIX, unmodified; on a terminal, control characters are
    /// escaped
    #[arg(long, requires = "prefix", conflicts_with = "cluster")]
    value: bool,
    #[command(flatten)]
    list: ListOptions,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct RejectedOptions {
    /// Only values of this cluster (repeatable)
    #[arg(long, value_name = "NAME")]
    cluster: Vec<String>,
    #[command(flatten)]
    list: ListOptions,
}

const ENTRIES: TableShape<Entry> = TableShape {
    columns: &[
        TableColumn::new("KEY", |entry| entry.key.clone()),
        TableColumn::new("BYTES", |entry| decoded_bytes(&entry.value).to_string()),
        TableColumn::new("REVISION", |entry| entry.mod_revision.to_string()),
        TableColumn::wide("CREATED", |entry| entry.create_revision.to_string()),
        TableColumn::wide("VERSION", |entry| entry.version.to_string()),
        TableColumn::wide("SOURCE REVISION", |entry| entry.source_revision.map_or_else(|| "-".to_owned(), |revision| revision.to_string())),
    ],
    name: |entry| entry.key.clone(),
};

const REJECTED: TableShape<Rejected> = TableShape {
    columns: &[
        TableColumn::new("CLUSTER", |rejected| rejected.cluster.clone()),
        TableColumn::new("KIND", |rejected| rejected.kind.to_string()),
        TableColumn::new("KEY", |rejected| rejected.key.clone()),
        TableColumn::new("SINCE", |rejected| age_since(rejected.first_seen.parse().ok())),
        TableColumn::wide("LAST", |rejected| age_since(rejected.last_seen.parse().ok())),
        TableColumn::wide("BYTES", |rejected| decoded_bytes(&rejected.value).to_string()),
        TableColumn::new("SERVES", |rejected| if rejected.serves_earlier_value { "earlier value" } else { "nothing" }.to_owned()),
        TableColumn::new("REASON", |rejected| rejected.reason.clone()),
    ],
    name: |rejected| rejected.key.clone(),
};

/// Returns the number of bytes that a text in base64 encodes.
fn decoded_bytes(base64: &str) -> usize {
    base64.trim_end_matches('=').len() * 3 / 4
}

/// Prints the raw entries, or the bytes of one.
pub(in crate::cli) async fn run(options: &EntriesOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let client = ApiClient::new(server)?;
    if let Some(key) = options.prefix.as_deref().filter(|_| options.value) {
        let value = client.fetch(&format!("/v1/entries/{}", encoded(key)), &[]).await?;
        if io::stdout().is_terminal() {
            print(&String::from_utf8_lossy(&value))?;
        } else {
            print_document(|out| out.write_all(&value))?;
        }
        return Ok(ExitStatus::Success);
    }
    let mut query = clusters_query(&options.cluster);
    query.extend(options.prefix.iter().map(|prefix| ("prefix", prefix.as_str())));
    let items = client.list("/v1/entries", &query).await?;
    options.list.print_list(&ENTRIES, items)?;
    Ok(ExitStatus::Success)
}

/// Prints the rejected values.
pub(in crate::cli) async fn run_rejected(options: &RejectedOptions, server: &ServerOptions) -> Result<ExitStatus, Failure> {
    let items = ApiClient::new(server)?.list("/v1/rejected", &clusters_query(&options.cluster)).await?;
    options.list.print_list(&REJECTED, items)?;
    Ok(ExitStatus::Success)
}

fn clusters_query(clusters: &[String]) -> Vec<(&str, &str)> {
    clusters.iter().map(|name| ("cluster", name.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_bytes_is_that_of_the_value() {
        assert_eq!(["", "YQ==", "YWI=", "YWJj", "YWJjZA=="].map(decoded_bytes), [0, 1, 2, 3, 4]);
    }
}

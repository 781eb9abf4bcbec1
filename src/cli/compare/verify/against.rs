//! Compares the mirrors of two meshkeeps: keys, raw values, and the sources' revisions if both read
//! the same etcd.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::vec;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

use crate::cli::compare::list_names;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::queries::api_client::ApiClient;
use crate::cli::queries::api_client::lists::{ListMembers, PageOf, PageReader};
use crate::cli::terminal::list_output::ListOptions;
use crate::cli::terminal::output::{TableColumn, TableShape};
use crate::dto::raw::Entry;
use crate::dto::status::Cluster;

/// Number of differing keys that are compared again together, and number of confirmed ones after
/// which the comparison stops. More are a sign of two different meshes.
const DIFFERENCES_MAX: usize = 1_000;

/// Number of later comparisons of a key that differs: changes reach two meshkeeps at different
/// moments.
const REPETITIONS: usize = 3;

/// Time between two comparisons of a key.
const REPETITION_PAUSE: Duration = Duration::from_secs(1);

/// A key that differs between the two mirrors.
#[derive(Debug, Serialize, Deserialize)]
struct MirrorDifference {
    key: String,
    difference: String,
}

const SHAPE: TableShape<MirrorDifference> = TableShape {
    columns: &[TableColumn::new("KEY", |one| one.key.clone()), TableColumn::new("DIFFERENCE", |one| one.difference.clone())],
    name: |one| one.key.clone(),
};

/// Entries of one meshkeep in key order, page by page.
struct EntryReader<'a> {
    pages: PageReader<'a>,
    /// Maximum number of entries of a page.
    limit: usize,
    page: vec::IntoIter<Entry>,
}

impl<'a> EntryReader<'a> {
    fn new(client: &'a ApiClient, query: &[(&'a str, &'a str)], limit: usize) -> Self {
        Self { pages: PageReader::new(client, "/v1/entries", query), limit, page: Vec::new().into_iter() }
    }

    /// Returns the next entry.
    async fn next(&mut self) -> Result<Option<Entry>, Failure> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(PageOf { items, .. }) = self.pages.next::<Entry, ListMembers>(self.limit).await? else { return Ok(None) };
            self.page = items.into_iter();
        }
    }
}

/// Entries of two meshkeeps side by side, in key order.
struct EntryPairs<'a> {
    readers: [EntryReader<'a>; 2],
    next: [Option<Entry>; 2],
    /// True if either meshkeep has an entry.
    has_entries: bool,
}

impl EntryPairs<'_> {
    /// Returns the next key that differs, with the difference. `None` after the last key.
    async fn next_difference(&mut self, same_etcd: &BTreeSet<String>) -> Result<Option<(String, String)>, Failure> {
        loop {
            for (reader, next) in self.readers.iter_mut().zip(&mut self.next) {
                if next.is_none() {
                    *next = reader.next().await?;
                }
            }
            let [one, other] = &mut self.next;
            let order = match (&one, &other) {
                (Some(one), Some(other)) => one.key.cmp(&other.key),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => return Ok(None),
            };
            self.has_entries = true;
            let (one, other) = (one.take_if(|_| order.is_le()), other.take_if(|_| order.is_ge()));
            if let Some(difference) = describe(one.as_ref(), other.as_ref(), same_etcd) {
                return Ok(one.or(other).map(|entry| (entry.key, difference)));
            }
        }
    }
}

/// Compares two mirrors and prints the differences. Returns [`ExitStatus::Failed`] if there are
/// any. Fails if neither has an entry.
pub(super) async fn compare(
    here: &ApiClient,
    there: &ApiClient,
    clusters: &[(&str, &str)],
    list: &ListOptions,
) -> Result<ExitStatus, Failure> {
    let ids = [etcd_cluster_ids(here).await?, etcd_cluster_ids(there).await?];
    check_names(&ids, clusters)?;
    let same_etcd = clusters_of_one_etcd(&ids);
    let readers = [here, there].map(|client| EntryReader::new(client, clusters, usize::MAX));
    let mut pairs = EntryPairs { readers, next: [None, None], has_entries: false };
    let (mut differing, mut confirmed) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let next = pairs.next_difference(&same_etcd).await?;
        let is_end = next.is_none();
        differing.extend(next);
        if !is_end && differing.len() < DIFFERENCES_MAX {
            continue;
        }
        let last = differing.last_key_value().map(|(key, _)| key.clone()).unwrap_or_default();
        confirmed.append(&mut confirm(here, there, std::mem::take(&mut differing), &same_etcd).await?);
        if is_end {
            break;
        }
        let count = confirmed.len();
        if count >= DIFFERENCES_MAX {
            crate::cli::print_to_stderr(format!("stopped after {count} differing keys: the keys after {last} were not compared\n"));
            break;
        }
    }
    if !pairs.has_entries {
        let names: Vec<String> = clusters.iter().map(|(_, name)| (*name).to_owned()).collect();
        let of_clusters = if names.is_empty() { String::new() } else { format!(" of {}", list_names(&names, false)) };
        return Err(Failure::new(format!("nothing was compared: neither meshkeep has an entry{of_clusters}")));
    }
    let is_equal = confirmed.is_empty();
    let differences = confirmed.into_iter().map(|(key, difference)| serde_json::to_value(MirrorDifference { key, difference }));
    list.print_list(&SHAPE, differences.collect::<Result<Vec<Value>, _>>()?)?;
    Ok(ExitStatus::from_success(is_equal))
}

/// Compares keys again, several times, and returns the ones that differ each time.
async fn confirm(
    here: &ApiClient,
    there: &ApiClient,
    mut differing: BTreeMap<String, String>,
    same_etcd: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    for _ in 0..REPETITIONS {
        if differing.is_empty() {
            break;
        }
        sleep(REPETITION_PAUSE).await;
        differing = compare_again(here, there, differing, same_etcd).await?;
    }
    Ok(differing)
}

/// Compares keys again, and returns the ones that still differ.
async fn compare_again(
    here: &ApiClient,
    there: &ApiClient,
    differing: BTreeMap<String, String>,
    same_etcd: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut still = BTreeMap::new();
    for key in differing.into_keys() {
        let (one, other) = (entry(here, &key).await?, entry(there, &key).await?);
        still.extend(describe(one.as_ref(), other.as_ref(), same_etcd).map(|difference| (key, difference)));
    }
    Ok(still)
}

/// Returns the entry of a key.
async fn entry(client: &ApiClient, key: &str) -> Result<Option<Entry>, Failure> {
    let first = EntryReader::new(client, &[("prefix", key)], 1).next().await?;
    Ok(first.filter(|entry| entry.key == key))
}

/// Describes how two entries of a key differ. Revisions are compared only within one etcd.
fn describe(here: Option<&Entry>, there: Option<&Entry>, same_etcd: &BTreeSet<String>) -> Option<String> {
    match (here, there) {
        (Some(_), None) => Some("only in the first meshkeep".to_owned()),
        (None, Some(_)) => Some("only in the meshkeep of --against".to_owned()),
        (Some(one), Some(other)) if one.value != other.value => Some("the value".to_owned()),
        (Some(one), Some(other)) if one.source_revision != other.source_revision && same_etcd.contains(&one.cluster) => {
            let text = |revision: Option<i64>| revision.map_or_else(|| "none".to_owned(), |revision| revision.to_string());
            Some(format!("the revision: {} and {}", text(one.source_revision), text(other.source_revision)))
        }
        _ => None,
    }
}

/// Id of the etcd cluster that each cluster of a meshkeep is read from.
type EtcdClusterIds = BTreeMap<String, Option<String>>;

async fn etcd_cluster_ids(client: &ApiClient) -> Result<EtcdClusterIds, Failure> {
    let clusters: Vec<Cluster> = client.list_as("/v1/clusters", &[]).await?;
    Ok(clusters.into_iter().map(|cluster| (cluster.name, cluster.etcd_cluster_id)).collect())
}

/// Fails if neither meshkeep has a cluster that the user names.
fn check_names(ids: &[EtcdClusterIds; 2], clusters: &[(&str, &str)]) -> Result<(), Failure> {
    let Some((_, missing)) = clusters.iter().find(|(_, name)| ids.iter().all(|ids| !ids.contains_key(*name))) else { return Ok(()) };
    let names: BTreeSet<&String> = ids.iter().flat_map(BTreeMap::keys).collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    let existing = if names.is_empty() { "they have none".to_owned() } else { format!("there are {}", list_names(&names, false)) };
    Err(Failure::new(format!("neither meshkeep has a cluster {missing}: {existing}")))
}

/// Returns the clusters that both meshkeeps read from the same etcd.
fn clusters_of_one_etcd([here, there]: &[EtcdClusterIds; 2]) -> BTreeSet<String> {
    let same = here.iter().filter(|(name, id)| id.is_some() && there.get(*name) == Some(id));
    same.map(|(name, _)| name.clone()).collect()
}

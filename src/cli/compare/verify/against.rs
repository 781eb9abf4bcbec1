//! Compares the mirror with another copy of the mesh: keys and raw values. The other copy is in
//! another meshkeep or in an etcd (`MeshCopy`). The sources' revisions are compared where two
//! meshkeeps read the same etcd.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use std::vec;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::sleep;

use super::etcd_copy::{EtcdCopy, EtcdEntries};
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

/// A copy of the mesh to compare.
pub(super) enum MeshCopy<'a> {
    /// The mirror of a meshkeep.
    Meshkeep(&'a ApiClient),
    /// The keys below `cilium/cache` of an etcd.
    Etcd(&'a EtcdCopy),
}

/// Entries of one copy in key order, page by page.
struct EntryReader<'a> {
    pages: Pages<'a>,
    page: vec::IntoIter<Entry>,
}

enum Pages<'a> {
    Meshkeep {
        pages: PageReader<'a>,
        /// Maximum number of entries of a page.
        limit: usize,
    },
    Etcd(Box<EtcdEntries<'a>>),
}

impl Pages<'_> {
    async fn next(&mut self) -> Result<Option<Vec<Entry>>, Failure> {
        match self {
            Self::Meshkeep { pages, limit } => {
                let page = pages.next::<Entry, ListMembers>(*limit).await?;
                Ok(page.map(|PageOf { items, .. }| items))
            }
            Self::Etcd(entries) => entries.next_page().await,
        }
    }
}

impl<'a> EntryReader<'a> {
    fn of_meshkeep(client: &'a ApiClient, query: &[(&'a str, &'a str)], limit: usize) -> Self {
        let pages = Pages::Meshkeep { pages: PageReader::new(client, "/v1/entries", query), limit };
        Self { pages, page: Vec::new().into_iter() }
    }

    /// Returns the next entry.
    async fn next(&mut self) -> Result<Option<Entry>, Failure> {
        loop {
            if let Some(entry) = self.page.next() {
                return Ok(Some(entry));
            }
            let Some(items) = self.pages.next().await? else { return Ok(None) };
            self.page = items.into_iter();
        }
    }
}

impl<'a> MeshCopy<'a> {
    /// Returns all entries of the clusters, or of every cluster if none is named.
    fn entries(&self, clusters: &[(&'a str, &'a str)]) -> EntryReader<'a> {
        match *self {
            Self::Meshkeep(client) => EntryReader::of_meshkeep(client, clusters, usize::MAX),
            Self::Etcd(etcd) => EntryReader { pages: Pages::Etcd(Box::new(etcd.entries())), page: Vec::new().into_iter() },
        }
    }

    /// Returns the entry of a key.
    async fn entry(&self, key: &str) -> Result<Option<Entry>, Failure> {
        match self {
            Self::Meshkeep(client) => {
                let first = EntryReader::of_meshkeep(client, &[("prefix", key)], 1).next().await?;
                Ok(first.filter(|entry| entry.key == key))
            }
            Self::Etcd(etcd) => etcd.entry(key).await,
        }
    }

    /// Returns the clusters, each with the id of the etcd that it is read from, if it is known.
    async fn etcd_cluster_ids(&self) -> Result<EtcdClusterIds, Failure> {
        match self {
            Self::Meshkeep(client) => {
                let clusters: Vec<Cluster> = client.list_as("/v1/clusters", &[]).await?;
                Ok(clusters.into_iter().map(|cluster| (cluster.name, cluster.etcd_cluster_id)).collect())
            }
            Self::Etcd(etcd) => Ok(etcd.known_clusters().map(|name| (name.clone(), None)).collect()),
        }
    }

    /// Returns what the copy is called in a difference.
    const fn name(&self) -> &'static str {
        match self {
            Self::Meshkeep(_) => "the meshkeep of --against",
            Self::Etcd(_) => "the etcd of --against-etcd",
        }
    }
}

/// Entries of two copies side by side, in key order.
struct EntryPairs<'a> {
    readers: [EntryReader<'a>; 2],
    next: [Option<Entry>; 2],
    /// True if either copy has an entry.
    has_entries: bool,
    /// Name of the second copy in a difference.
    other_name: &'static str,
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
            if let Some(difference) = describe([one.as_ref(), other.as_ref()], self.other_name, same_etcd) {
                return Ok(one.or(other).map(|entry| (entry.key, difference)));
            }
        }
    }
}

/// Compares two copies and prints the differences. Returns [`ExitStatus::Failed`] if there are any.
/// Fails if neither has an entry.
pub(super) async fn compare(
    here: &ApiClient,
    there: &MeshCopy<'_>,
    clusters: &[(&str, &str)],
    list: &ListOptions,
) -> Result<ExitStatus, Failure> {
    let copies = [&MeshCopy::Meshkeep(here), there];
    let ids = [copies[0].etcd_cluster_ids().await?, there.etcd_cluster_ids().await?];
    check_names(&ids, clusters, there.name())?;
    let same_etcd = clusters_of_one_etcd(&ids);
    let readers = copies.map(|copy| copy.entries(clusters));
    let mut pairs = EntryPairs { readers, next: [None, None], has_entries: false, other_name: there.name() };
    let (mut differing, mut confirmed) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let next = pairs.next_difference(&same_etcd).await?;
        let is_end = next.is_none();
        differing.extend(next);
        if !is_end && differing.len() < DIFFERENCES_MAX {
            continue;
        }
        let last = differing.last_key_value().map(|(key, _)| key.clone()).unwrap_or_default();
        confirmed.append(&mut confirm(copies, std::mem::take(&mut differing), &same_etcd).await?);
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
        return Err(Failure::new(format!(
            "nothing was compared: neither the meshkeep of --server nor {} has an entry{of_clusters}",
            there.name()
        )));
    }
    let is_equal = confirmed.is_empty();
    let differences = confirmed.into_iter().map(|(key, difference)| serde_json::to_value(MirrorDifference { key, difference }));
    list.print_list(&SHAPE, differences.collect::<Result<Vec<Value>, _>>()?)?;
    Ok(ExitStatus::from_success(is_equal))
}

/// Compares keys again, several times, and returns the ones that differ each time.
async fn confirm(
    copies: [&MeshCopy<'_>; 2],
    mut differing: BTreeMap<String, String>,
    same_etcd: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    for _ in 0..REPETITIONS {
        if differing.is_empty() {
            break;
        }
        sleep(REPETITION_PAUSE).await;
        differing = compare_again(copies, differing, same_etcd).await?;
    }
    Ok(differing)
}

/// Compares keys again, and returns the ones that still differ.
async fn compare_again(
    [here, there]: [&MeshCopy<'_>; 2],
    differing: BTreeMap<String, String>,
    same_etcd: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut still = BTreeMap::new();
    for key in differing.into_keys() {
        let (one, other) = (here.entry(&key).await?, there.entry(&key).await?);
        still.extend(describe([one.as_ref(), other.as_ref()], there.name(), same_etcd).map(|difference| (key, difference)));
    }
    Ok(still)
}

/// Describes how two entries of a key differ. Revisions are compared only within one etcd.
fn describe([here, there]: [Option<&Entry>; 2], other_name: &str, same_etcd: &BTreeSet<String>) -> Option<String> {
    match (here, there) {
        (Some(_), None) => Some("only in the meshkeep of --server".to_owned()),
        (None, Some(_)) => Some(format!("only in {other_name}")),
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

/// Fails if neither copy has a cluster that the user names.
fn check_names(ids: &[EtcdClusterIds; 2], clusters: &[(&str, &str)], other_name: &str) -> Result<(), Failure> {
    let Some((_, missing)) = clusters.iter().find(|(_, name)| ids.iter().all(|ids| !ids.contains_key(*name))) else { return Ok(()) };
    let names: BTreeSet<&String> = ids.iter().flat_map(BTreeMap::keys).collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    let existing = if names.is_empty() { "they have none".to_owned() } else { format!("there are {}", list_names(&names, false)) };
    Err(Failure::new(format!("neither the meshkeep of --server nor {other_name} has a cluster {missing}: {existing}")))
}

/// Returns the clusters that both meshkeeps read from the same etcd.
fn clusters_of_one_etcd([here, there]: &[EtcdClusterIds; 2]) -> BTreeSet<String> {
    let same = here.iter().filter(|(name, id)| id.is_some() && there.get(*name) == Some(id));
    same.map(|(name, _)| name.clone()).collect()
}

//! The copy of a mesh that `meshkeep reflect` or a KVStoreMesh writes into an etcd.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use tokio_util::sync::CancellationToken;

use crate::cli::etcd::target::{connected, failure};
use crate::cli::failure::{Failure, ResultExt as _};
use crate::cli::queries::api_client::ApiClient;
use crate::client_file::ClientFile;
use crate::config::KvstoreOptions;
use crate::dto::raw::Entry;
use crate::dto::status::Cluster;
use crate::files::{SMALL_FILE_BYTES_MAX, read_argument};
use crate::model::{ClusterName, EntryKey, Kind, redacted_path};
use crate::runtime::client_options;
use cilium_kvstore::{KeyValue, KvstoreError, PagedList, Session, SessionOptions};

/// Maximum time to wait for a connection.
const CONNECTION_WAIT_MAX: Duration = Duration::from_secs(30);

/// Prefix of the cluster configs in the etcd. The rest of each key is the name of a cluster.
const CONFIG_PREFIX: &str = "cilium/cluster-config/";

/// Option that names the etcd.
const OPTION: &str = "--against-etcd";

/// An etcd with copies of clusters below `cilium/cache`.
pub(super) struct EtcdCopy {
    session: Session,
    /// Clusters that the meshkeep has, or of which the etcd has a config.
    known: BTreeSet<String>,
    /// Clusters to compare.
    compared: BTreeSet<ClusterName>,
}

impl EtcdCopy {
    /// Connects to the etcd of a client file. Without names, all known clusters are compared.
    pub(super) async fn connect(client: &ApiClient, file: &Path, names: &[String]) -> Result<Self, Failure> {
        let bytes = read_argument(file, SMALL_FILE_BYTES_MAX).or_fail(format!("cannot read {OPTION} {}", redacted_path(file)))?;
        let parsed = ClientFile::parse(&bytes).or_fail(format!("{OPTION} {}", redacted_path(file)))?;
        let options = SessionOptions { client: client_options(&KvstoreOptions::with(&[])), ..SessionOptions::default() };
        let session = Session::start(parsed.config, options, CancellationToken::new());
        connected(&session, CONNECTION_WAIT_MAX).await.map_err(|error| error.in_context(OPTION))?;
        let clusters: Vec<Cluster> = client.list_as("/v1/clusters", &[]).await?;
        let mut known: BTreeSet<String> = clusters.into_iter().map(|cluster| cluster.name).collect();
        let mut pages = session.list_pages(CONFIG_PREFIX.as_bytes()).await.map_err(|error| option_failure(&error))?;
        while let Some(page) = pages.next_page().await.map_err(|error| option_failure(&error))? {
            let keys = page.key_values.iter().filter_map(|config| std::str::from_utf8(&config.key).ok());
            known.extend(keys.filter_map(|key| key.strip_prefix(CONFIG_PREFIX)).map(str::to_owned));
        }
        let parse = |name: &String| ClusterName::parse(name).ok();
        let compared = if names.is_empty() { known.iter().filter_map(parse).collect() } else { names.iter().filter_map(parse).collect() };
        Ok(Self { session, known, compared })
    }

    /// Returns the names of the known clusters.
    pub(super) fn known_clusters(&self) -> impl Iterator<Item = &String> {
        self.known.iter()
    }

    /// Returns a reader of all entries in key order.
    pub(super) fn entries(&self) -> EtcdEntries<'_> {
        let prefixes = Kind::ALL.into_iter().flat_map(|kind| self.compared.iter().map(move |name| EntryKey::new(kind, name.clone(), "")));
        let mut prefixes: Vec<EntryKey> = prefixes.collect();
        prefixes.sort_by(|one, other| other.cmp(one));
        EtcdEntries { session: &self.session, prefixes, pages: None }
    }

    /// Returns the entry of a key.
    pub(super) async fn entry(&self, key: &str) -> Result<Option<Entry>, Failure> {
        let found = self.session.get(key.as_bytes()).await.map_err(|error| option_failure(&error))?;
        Ok(found.as_ref().map(entry_of))
    }
}

/// Reader of the entries of an etcd, one kind of one cluster after the other.
pub(super) struct EtcdEntries<'a> {
    session: &'a Session,
    /// Prefixes that are still to be read, the next one last.
    prefixes: Vec<EntryKey>,
    pages: Option<PagedList>,
}

impl EtcdEntries<'_> {
    /// Returns the next page. `None` after the last entry.
    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<Entry>>, Failure> {
        loop {
            if let Some(pages) = &mut self.pages
                && let Some(page) = pages.next_page().await.map_err(|error| option_failure(&error))?
            {
                return Ok(Some(page.key_values.iter().map(entry_of).collect()));
            }
            let Some(prefix) = self.prefixes.pop() else { return Ok(None) };
            let pages = self.session.list_pages(prefix.to_string().as_bytes()).await;
            self.pages = Some(pages.map_err(|error| option_failure(&error))?);
        }
    }
}

/// Converts an error of the etcd. The command also reads from a meshkeep, so the text names the
/// option.
fn option_failure(error: &KvstoreError) -> Failure {
    failure(error).in_context(OPTION)
}

/// Converts a key of the etcd. Its cluster and its revisions are not compared.
fn entry_of(found: &KeyValue) -> Entry {
    Entry {
        key: String::from_utf8_lossy(&found.key).into_owned(),
        value: BASE64.encode(&found.value),
        create_revision: 0,
        mod_revision: 0,
        version: 0,
        source_revision: None,
        cluster: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_etcd_names_the_option() {
        let error = KvstoreError::Malformed { reason: "a negative count".into() };
        assert_eq!(option_failure(&error).to_string(), format!("--against-etcd: {error}"));
    }
}

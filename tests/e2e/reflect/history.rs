//! Checks of a target's complete history, as etcd recorded it. Unlike samples, it contains every
//! change.

use std::collections::{BTreeMap, BTreeSet};

use etcd_client::{Client, EventType, WatchOptions};

use crate::harness::mesh::MeshCluster;

/// Key outside of all reflected prefixes. Its put marks the end of a history.
const END: &str = "end-of-history";

pub(super) struct Event {
    pub(super) key: String,
    pub(super) value: Option<Vec<u8>>,
}

/// Start of a history: a revision, and the values by key at that revision.
#[derive(Default)]
pub(super) struct Mark {
    pub(super) revision: i64,
    pub(super) entries: BTreeMap<String, Vec<u8>>,
}

/// Returns all events below `cilium/` after a revision.
pub(super) async fn events_since(mut target: Client, revision: i64) -> Vec<Event> {
    let end = target.put(END, "", None).await.unwrap().header().unwrap().revision();
    let options = WatchOptions::new().with_all_keys().with_start_revision(revision + 1);
    let mut stream = target.watch("", Some(options)).await.unwrap();
    let mut events = Vec::new();
    loop {
        let reply = stream.message().await.unwrap().unwrap();
        assert!(!reply.canceled(), "the history since {revision} is gone: {}", reply.cancel_reason());
        for event in reply.events() {
            let kv = event.kv().unwrap();
            if kv.mod_revision() == end {
                return events;
            }
            let value = (event.event_type() == EventType::Put).then(|| kv.value().to_vec());
            events.push(Event { key: String::from_utf8(kv.key().to_vec()).unwrap(), value });
        }
    }
}

/// All contents that the sources ever had.
#[derive(Default)]
pub(super) struct SourceContents {
    values: BTreeMap<String, BTreeSet<Vec<u8>>>,
    /// Keys that were deleted at their source, or removed with their cluster.
    deleted: BTreeSet<String>,
}

/// Allowed deviations from the sources' contents.
#[derive(Default)]
pub(super) struct AllowedDeviations {
    /// Keys that other clients wrote or deleted.
    pub(super) by_others: BTreeSet<String>,
    /// True if a value may be written again. An answer may be lost with the connection or the
    /// server, and a key may change while it is compared.
    pub(super) may_be_rewritten: bool,
}

impl SourceContents {
    /// Records the current contents of the reflected clusters.
    pub(super) fn record_contents<'a>(&mut self, clusters: impl IntoIterator<Item = &'a MeshCluster>) {
        let mut present = BTreeSet::new();
        for (key, value) in clusters.into_iter().flat_map(|cluster| &cluster.entries) {
            self.values.entry(key.clone()).or_default().insert(value.clone());
            present.insert(key);
        }
        self.deleted.extend(self.values.keys().filter(|key| !present.contains(key)).cloned());
    }

    /// Records the current contents of a cluster as allowed from now on.
    pub(super) fn record_contents_of(&mut self, cluster: &MeshCluster) {
        for (key, value) in &cluster.entries {
            self.values.entry(key.clone()).or_default().insert(value.clone());
        }
        let is_of_cluster = |key: &str| key.split('/').nth(4) == Some(&cluster.name);
        let deleted = self.values.keys().filter(|key| is_of_cluster(key) && !cluster.entries.contains_key(*key));
        self.deleted.extend(deleted.cloned().collect::<Vec<_>>());
    }

    /// Checks that entries only had values that their sources had, that no entry was deleted while
    /// its source had it, and that no canary was written before all entries in `lasting`.
    pub(super) fn check(&self, mark: Mark, events: &[Event], lasting: &BTreeSet<String>, allowed: &AllowedDeviations, during: &str) {
        let mut entries = mark.entries;
        for Event { key, value } in events {
            if let Some(path) = key.strip_prefix("cilium/synced/").filter(|_| value.is_some()) {
                let (cluster, prefix) = path.split_once('/').unwrap();
                let prefix = format!("{prefix}/{cluster}/");
                let lacking = lasting.iter().find(|key| key.starts_with(&prefix) && !entries.contains_key(*key));
                assert_eq!(lacking, None, "during {during}: missing when {key} was written");
            }
            if !key.starts_with("cilium/cache/") {
                continue;
            }
            let is_by_others = allowed.by_others.contains(key);
            match value {
                Some(value) => {
                    let known = self.values.get(key).is_some_and(|values| values.contains(value));
                    assert!(
                        is_by_others || known,
                        "during {during}: {key} got a value that its source never had: {}",
                        String::from_utf8_lossy(value)
                    );
                    let before = entries.insert(key.clone(), value.clone());
                    assert!(
                        is_by_others || allowed.may_be_rewritten || before.as_ref() != Some(value),
                        "during {during}: {key} was written again unchanged"
                    );
                }
                None => {
                    assert!(is_by_others || self.deleted.contains(key), "during {during}: {key} was deleted, and its source has it");
                    entries.remove(key);
                }
            }
        }
    }
}

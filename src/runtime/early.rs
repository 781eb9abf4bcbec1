//! Answers while the store loads: for each query, a small mirror of only the chunks that the answer
//! needs.
//!
//! It reads in two steps, because the identity and the host of an ipcache entry are known only
//! after the entry was read. The store finds the chunks for a query.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::plan::{EpochSeed, StartPlan};
use super::restore::{RecordDecoder, restore_changed};
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention, SequenceTimes};
use crate::handle::EarlyLookup;
use crate::model::{ClusterName, MaxConnectedClusters, Object, Record, RecordQuery};
use crate::store::PartialStore;
use crate::view::{DERIVATION_VERSION, View};

/// State from which a mirror is built for each query.
#[derive(Debug)]
pub(super) struct PartialMirror {
    partial: PartialStore,
    decoder: RecordDecoder,
    plan: StartPlan,
    /// View without entries.
    view: View,
    feed: Feed,
}

/// Prepares early answers from a store whose entries were not read. Returns `None` if the start
/// must first derive something from all entries, or if the store has a cluster of `unmirrored`,
/// whose entries are removed once the store is loaded.
pub(super) fn prepare(
    partial: PartialStore,
    max_connected_clusters: MaxConnectedClusters,
    retention: Retention,
    unmirrored: &BTreeSet<ClusterName>,
) -> Option<(PartialMirror, StartPlan)> {
    let contents = &partial.contents;
    let scope_clusters = contents.cursors.iter().map(|(scope, _)| &scope.cluster);
    let clusters: BTreeSet<ClusterName> = contents.clusters.iter().map(|(name, _)| name).chain(scope_clusters).cloned().collect();
    if contents.derivation_version != Some(DERIVATION_VERSION) || !partial.clusters.is_subset(&clusters) {
        return None;
    }
    if !unmirrored.is_disjoint(&clusters) {
        return None;
    }
    let plan = StartPlan::new(contents, clusters, EpochSeed::draw(SystemTime::now()));
    let mut feed = Feed::starting_at(plan.head, retention);
    feed.restore_floor(contents.floor);
    feed.restore_times(SequenceTimes::from_runs(contents.times.iter().copied()));
    let (decoder, view) = (RecordDecoder::new(contents, max_connected_clusters), plan.view(contents));
    Some((PartialMirror { partial, decoder, plan: plan.clone(), view, feed }, plan))
}

impl EarlyLookup for PartialMirror {
    fn snapshot_for(&self, query: &RecordQuery) -> Option<MirrorSnapshot> {
        let mut queries = vec![query.clone()];
        let mut view = self.read(&queries)?;
        let referenced = referenced_objects(query, &view);
        if !referenced.is_empty() {
            queries.extend(referenced);
            view = self.read(&queries)?;
        }
        Some(MirrorSnapshot { view, feed: self.feed.clone(), epoch: self.plan.seed.epoch, earlier_runs: self.plan.accepted_epochs() })
    }
}

impl PartialMirror {
    fn read(&self, queries: &[RecordQuery]) -> Option<View> {
        let mut contents = self.partial.read(queries)?;
        self.decoder.decode_all(&mut contents.changed);
        let mut view = self.view.clone();
        view.restore_chunks(contents.chunks);
        restore_changed(&mut view, contents.changed);
        Some(view)
    }
}

/// Returns further queries for objects that the answer refers to: identities, nodes by their
/// addresses, and nodes from which entries are derived.
fn referenced_objects(query: &RecordQuery, view: &View) -> Vec<RecordQuery> {
    let mut queries = Vec::new();
    match query {
        RecordQuery::Covering(ip) => {
            // every match; the order of their precedence does not matter here
            for lookup_match in view.lookup(*ip, None) {
                if let Some(Object::Ip(entry)) = lookup_match.record.object.as_deref() {
                    queries.push(RecordQuery::Identity(entry.identity));
                    queries.extend(entry.host_ip.map(RecordQuery::NodeAt));
                }
                queries.extend(origin(&lookup_match.record));
            }
        }
        RecordQuery::Network(net) => queries.extend(view.ips_at(*net).filter_map(|record| origin(&record))),
        RecordQuery::Identity(_) | RecordQuery::NodeAt(_) | RecordQuery::Key(_) => {}
    }
    queries
}

fn origin(record: &Record) -> Option<RecordQuery> {
    let origin = record.key.origin();
    (origin != record.key).then_some(RecordQuery::Key(origin))
}

#[cfg(test)]
mod tests;

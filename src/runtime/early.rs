//! Answers while the store loads: for each question, a small mirror of only the chunks that the
//! answer needs.
//!
//! It reads in two steps, because the identity and the host of an ipcache entry are known only
//! after the entry was read. The store finds the chunks of a question.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::plan::{EpochSeed, StartPlan};
use super::restore::{RecordDecoder, restore_changed};
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention};
use crate::handle::EarlyLookup;
use crate::model::{ClusterName, MaxConnectedClusters, Object, Record, RecordQuery};
use crate::store::PartialStore;
use crate::view::{DERIVATION, View};

/// State from which a mirror is built for each question.
#[derive(Debug)]
pub(super) struct PartialMirror {
    partial: PartialStore,
    decoder: RecordDecoder,
    plan: StartPlan,
    /// View without entries.
    view: View,
    feed: Feed,
}

/// Prepares early answers from the marks of the store. Returns `None` if the start must first
/// derive something from all entries.
pub(super) fn prepare(partial: PartialStore, max: MaxConnectedClusters, retention: Retention) -> Option<(PartialMirror, StartPlan)> {
    let known = &partial.metadata;
    let of_scopes = known.cursors.iter().map(|(scope, _)| &scope.cluster);
    let clusters: BTreeSet<ClusterName> = known.clusters.iter().map(|(name, _)| name).chain(of_scopes).cloned().collect();
    if known.derived != Some(DERIVATION) || !partial.clusters.is_subset(&clusters) {
        return None;
    }
    let plan = StartPlan::new(known, clusters, EpochSeed::draw(SystemTime::now()));
    let mut feed = Feed::starting_at(plan.head, retention);
    feed.restore_floor(known.floor);
    let (decoder, view) = (RecordDecoder::new(known, max), plan.view(known));
    Some((PartialMirror { partial, decoder, plan: plan.clone(), view, feed }, plan))
}

impl EarlyLookup for PartialMirror {
    fn snapshot_for(&self, question: &RecordQuery) -> Option<MirrorSnapshot> {
        let mut questions = vec![question.clone()];
        let mut view = self.read(&questions)?;
        let referenced = referenced_objects(question, &view);
        if !referenced.is_empty() {
            questions.extend(referenced);
            view = self.read(&questions)?;
        }
        Some(MirrorSnapshot { view, feed: self.feed.clone(), epoch: self.plan.seed.epoch, earlier: self.plan.accepted_epochs() })
    }
}

impl PartialMirror {
    fn read(&self, questions: &[RecordQuery]) -> Option<View> {
        let mut found = self.partial.read(questions)?;
        self.decoder.decode_all(&mut found.changed);
        let mut view = self.view.clone();
        view.restore_chunks(found.chunks);
        restore_changed(&mut view, found.changed);
        Some(view)
    }
}

/// Returns further questions for objects that the answer refers to: identities, nodes by their
/// addresses, and nodes from which entries are derived.
fn referenced_objects(question: &RecordQuery, view: &View) -> Vec<RecordQuery> {
    let mut questions = Vec::new();
    match question {
        RecordQuery::Covering(ip) => {
            // every match; the order of their precedence does not matter here
            for found in view.lookup(*ip, None) {
                if let Some(Object::Ip(entry)) = found.record.object.as_deref() {
                    questions.push(RecordQuery::Identity(entry.identity));
                    questions.extend(entry.host_ip.map(RecordQuery::NodeAt));
                }
                questions.extend(origin(&found.record));
            }
        }
        RecordQuery::Network(net) => questions.extend(view.ips_at(*net).filter_map(|record| origin(&record))),
        RecordQuery::Identity(_) | RecordQuery::NodeAt(_) | RecordQuery::Key(_) => {}
    }
    questions
}

fn origin(record: &Record) -> Option<RecordQuery> {
    let origin = record.key.origin();
    (origin != record.key).then_some(RecordQuery::Key(origin))
}

#[cfg(test)]
mod tests;

//! Answers while the store loads: for each question, a small mirror of only the chunks that the
//! answer needs.
//!
//! It reads in two steps, because the identity and the host of an ipcache entry are known only
//! after the entry was read. The store finds the chunks of a question.

use std::collections::BTreeSet;
use std::time::SystemTime;

use super::plan::{Plan, StartSeed};
use super::restore::{Decoder, restore_changed};
use crate::commit::Published;
use crate::feed::{Feed, Retention};
use crate::handle::Early;
use crate::model::{ClusterName, MaxConnectedClusters, Object, Record, RecordQuery};
use crate::store::PartialStore;
use crate::view::{DERIVATION, View};

/// State from which a mirror is built for each question.
#[derive(Debug)]
pub(super) struct EarlyMirror {
    partial: PartialStore,
    decoder: Decoder,
    plan: Plan,
    /// View without entries.
    view: View,
    feed: Feed,
}

/// Prepares early answers from the marks of the store. Returns `None` if the start must first
/// derive something from all entries.
pub(super) fn begin(partial: PartialStore, max: MaxConnectedClusters, retention: Retention) -> Option<(EarlyMirror, Plan)> {
    let known = &partial.known;
    let of_scopes = known.cursors.iter().map(|(scope, _)| &scope.cluster);
    let clusters: BTreeSet<ClusterName> = known.clusters.iter().map(|(name, _)| name).chain(of_scopes).cloned().collect();
    if known.derived != Some(DERIVATION) || !partial.clusters.is_subset(&clusters) {
        return None;
    }
    let plan = Plan::new(known, clusters, StartSeed::draw(SystemTime::now()));
    let mut feed = Feed::starting_at(plan.head, retention);
    feed.restore_floor(known.floor);
    let (decoder, view) = (Decoder::new(known, max), plan.view(known));
    Some((EarlyMirror { partial, decoder, plan: plan.clone(), view, feed }, plan))
}

impl Early for EarlyMirror {
    fn published(&self, question: &RecordQuery) -> Option<Published> {
        let mut questions = vec![question.clone()];
        let mut view = self.read(&questions)?;
        let named = named(question, &view);
        if !named.is_empty() {
            questions.extend(named);
            view = self.read(&questions)?;
        }
        Some(Published { view, feed: self.feed.clone(), epoch: self.plan.seed.epoch, earlier: self.plan.honoured() })
    }
}

impl EarlyMirror {
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
fn named(question: &RecordQuery, view: &View) -> Vec<RecordQuery> {
    let mut named = Vec::new();
    match question {
        RecordQuery::Covering(ip) => {
            // every match; the order of their precedence does not matter here
            for found in view.lookup(*ip, None) {
                if let Some(Object::Ip(entry)) = found.record.object.as_deref() {
                    named.push(RecordQuery::Identity(entry.identity));
                    named.extend(entry.host_ip.map(RecordQuery::NodeAt));
                }
                named.extend(origin(&found.record));
            }
        }
        RecordQuery::Network(net) => named.extend(view.ips_at(*net).filter_map(|record| origin(&record))),
        RecordQuery::Identity(_) | RecordQuery::NodeAt(_) | RecordQuery::Key(_) => {}
    }
    named
}

fn origin(record: &Record) -> Option<RecordQuery> {
    let origin = record.key.origin();
    (origin != record.key).then_some(RecordQuery::Key(origin))
}

#[cfg(test)]
mod tests;

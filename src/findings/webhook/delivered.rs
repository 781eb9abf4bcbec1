//! Findings that the receiver has accepted, and the difference to the current ones. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Standing;
use crate::findings::{TOLD_BYTES_MAX, TOLD_COUNT_MAX};
use crate::model::{EntryKey, Object, Severity};

/// Finding to post.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PendingPost {
    pub(super) key: EntryKey,
    /// The current finding, or its last state if it was resolved.
    pub(super) object: Arc<Object>,
    /// Set if the finding appeared; otherwise it was resolved.
    pub(super) is_there: bool,
}

/// Findings that the receiver has accepted and that are not resolved for it, and failed posts. It
/// has at most as many findings and bytes as the change stream, however the receiver answers.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    told: Standing,
    told_bytes: usize,
    /// Number of failed attempts of each pending post.
    tries: BTreeMap<EntryKey, u32>,
}

impl Outstanding {
    /// Returns the next post: the one with the fewest failed attempts, so that a finding that the
    /// receiver cannot process does not block others; then resolved findings, then the most severe.
    pub(super) fn next(&mut self, now: &Standing) -> Option<PendingPost> {
        let told = &self.told;
        self.tries.retain(|key, _| told.contains_key(key) != now.contains_key(key));
        let gone = told.iter().filter(|(key, _)| !now.contains_key(key)).map(|(key, object)| (key, object, false));
        let has_room = told.len() < TOLD_COUNT_MAX && self.told_bytes < TOLD_BYTES_MAX;
        let appeared = now.iter().filter(|(key, _)| has_room && !told.contains_key(key)).map(|(key, object)| (key, object, true));
        let rank = |(key, object, is_there): &(&EntryKey, &Arc<Object>, bool)| {
            (self.tries.get(key).copied().unwrap_or_default(), *is_there, severity(object))
        };
        let (key, object, is_there) = gone.chain(appeared).min_by_key(rank)?;
        Some(PendingPost { key: key.clone(), object: Arc::clone(object), is_there })
    }

    /// Returns the number of pending posts.
    pub(super) fn count(&self, now: &Standing) -> u64 {
        let gone = self.told.keys().filter(|key| !now.contains_key(key)).count();
        let appeared = now.keys().filter(|key| !self.told.contains_key(key)).count();
        (gone + appeared) as u64
    }

    /// Records that the receiver has accepted a post.
    pub(super) fn settle(&mut self, change: PendingPost) {
        let PendingPost { key, object, is_there } = change;
        self.tries.remove(&key);
        let bytes = |object: &Arc<Object>| object.as_finding().map_or(0, |finding| finding.text_bytes());
        if is_there {
            self.told_bytes += bytes(&object);
            self.told.insert(key, object);
        } else if let Some(told) = self.told.remove(&key) {
            self.told_bytes -= bytes(&told);
        }
    }

    /// Records a failed attempt.
    pub(super) fn fail(&mut self, change: PendingPost) {
        let tries = self.tries.entry(change.key).or_default();
        *tries = tries.saturating_add(1);
    }
}

fn severity(object: &Object) -> Severity {
    object.as_finding().map_or(Severity::Info, |finding| finding.severity)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::finding;

    fn standing<'a>(findings: impl IntoIterator<Item = (&'static str, &'a str)>) -> Standing {
        let one = |(kind, cluster): (&'static str, &str)| {
            let told = finding(kind, cluster, [cluster], "", "");
            (told.stream_key(), Arc::new(Object::Finding(told.into())))
        };
        findings.into_iter().map(one).collect()
    }

    fn named(change: Option<&PendingPost>) -> String {
        let sign = |change: &PendingPost| if change.is_there { "+" } else { "-" };
        change.map(|change| format!("{}{}", sign(change), change.key)).unwrap_or_default()
    }

    #[test]
    fn what_is_over_before_it_is_told_is_left_out_and_the_rest_ends_with_what_is_there() {
        let mut outstanding = Outstanding::default();
        let now = standing([("sourceLost", "a"), ("sourceLost", "b")]);
        let first = outstanding.next(&now).unwrap();
        assert_eq!((named(Some(&first)), outstanding.count(&now)), ("+problem/sourceLost/a".to_owned(), 2));
        outstanding.settle(first);
        assert_eq!(outstanding.next(&standing([("sourceLost", "a")])), None);
        let gone = outstanding.next(&standing([])).unwrap();
        assert_eq!(named(Some(&gone)), "-problem/sourceLost/a");
        outstanding.settle(gone);
        assert_eq!((outstanding.next(&standing([])), outstanding.told_bytes), (None, 0));
    }

    #[test]
    fn what_the_receiver_chokes_on_holds_up_no_other_and_the_worst_comes_first() {
        let mut outstanding = Outstanding::default();
        let now = standing([("staleFile", "a"), ("duplicateClusterID", "b"), ("sourceLost", "c")]);
        let mut told = Vec::new();
        for _ in 0..5 {
            let change = outstanding.next(&now).unwrap();
            told.push(change.key.to_string());
            if change.key.to_string().contains("duplicateClusterID") { outstanding.fail(change) } else { outstanding.settle(change) }
        }
        assert_eq!(told[0], "problem/duplicateClusterID/b");
        assert!(told[3..].iter().all(|key| key == &told[0]), "{told:?}");
        assert_eq!(outstanding.tries.len(), 1);
        assert_eq!((outstanding.next(&standing([("staleFile", "a"), ("sourceLost", "c")])), outstanding.tries.len()), (None, 0));
    }

    /// A receiver that accepts new findings but never that one was resolved.
    #[test]
    fn what_is_held_is_bounded_however_the_receiver_answers() {
        let mut outstanding = Outstanding::default();
        let names: Vec<String> = (0..TOLD_COUNT_MAX + 50).map(|number| number.to_string()).collect();
        let early = standing(names[..TOLD_COUNT_MAX].iter().map(|name| ("staleFile", name.as_str())));
        for (key, object) in &early {
            outstanding.settle(PendingPost { key: key.clone(), object: Arc::clone(object), is_there: true });
        }
        let late = standing(names[TOLD_COUNT_MAX..].iter().map(|name| ("staleFile", name.as_str())));
        for (key, object) in &early {
            outstanding.fail(PendingPost { key: key.clone(), object: Arc::clone(object), is_there: false });
        }
        // a new finding would come first if there were capacity
        let gone = outstanding.next(&late).unwrap();
        assert!(!gone.is_there);
        outstanding.settle(gone);
        let appeared = outstanding.next(&late).unwrap();
        assert!(appeared.is_there);
        outstanding.settle(appeared);
        assert!(!outstanding.next(&late).unwrap().is_there);
    }
}

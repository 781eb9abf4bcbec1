//! Times of changes, as exactly as meshkeep observed them.

use std::time::{Duration, SystemTime};

use super::Reading;
use crate::model::{ChangeTime, ClusterStatus, EntryKey, EpochSpan, ObservationGap, Position, Scope, Sequence};

/// Precision of [`ChangeTime::At`]. Times of older changes are less exact.
const PRECISION: Duration = Duration::from_secs(1);

impl Reading {
    /// Returns the time of a key's change with this sequence. `None` if it is not known: the change
    /// is from a dump, or older than the index of times. Reads files if the reading has exact times
    /// ([`PastReading::with_exact_times`](super::PastReading::with_exact_times)).
    #[must_use]
    pub fn change_time(&self, key: &EntryKey, sequence: Sequence) -> Option<ChangeTime> {
        if let Some(history) = &self.exact_times
            && self.observation_gap(key, sequence).is_none()
            && let Some(time) = history.time_of(sequence)
        {
            return Some(ChangeTime::At(time));
        }
        let (from, to) = self.published.feed.times().times_of(sequence).filter(|_| !self.is_dump)?;
        Some(match self.observation_gap(key, sequence) {
            Some(ObservationGap { from: None, .. }) => ChangeTime::FirstSeen(latest(from, to)),
            Some(ObservationGap { from: Some(last_contact), .. }) => {
                // a clock that was set back must not turn the period round
                let observed = latest(from, to);
                ChangeTime::Between(last_contact.min(observed), last_contact.max(observed))
            }
            None if is_exact(from, to) => ChangeTime::At(from),
            None => ChangeTime::Between(from, to),
        })
    }

    /// Returns the observation gap of a key's scope that contains a sequence. An entry that is
    /// derived from a node is in the gaps of the nodes.
    pub(super) fn observation_gap(&self, key: &EntryKey, sequence: Sequence) -> Option<ObservationGap> {
        let scope = Scope { cluster: key.cluster.clone(), kind: key.origin_kind() };
        self.published.view.observation_gaps(&scope).iter().rev().find(|gap| gap.contains(sequence)).copied()
    }

    /// Returns the periods in which the changes of a scope were not observed when they happened,
    /// oldest first. The period before the first list has no start. The last one has no end while
    /// meshkeep does not follow the scope.
    pub(super) fn observation_gaps(&self, scope: &Scope) -> Vec<ObservationGap> {
        let view = &self.published.view;
        let mut gaps = view.observation_gaps(scope).to_vec();
        let followed = |status: &ClusterStatus| {
            let resource = status.resource(scope.kind);
            (resource.synced, resource.observed_until)
        };
        let (is_followed, observed_until) = self.statuses.get(&scope.cluster).map_or((false, None), |status| followed(&status.borrow()));
        // the mirror records a gap only once meshkeep is connected again
        if !is_followed && gaps.last().is_none_or(|newest| newest.end.is_some()) {
            let stored = || view.cluster(&scope.cluster)?.last_contact.filter(|_| self.is_complete(&scope.cluster, scope.kind));
            let first = self.position().sequence.next();
            gaps.push(ObservationGap { from: observed_until.or_else(stored), first, end: None });
        }
        gaps
    }

    /// Returns a position before all changes that are newer than a time. `None` if it is not known,
    /// because the time is before the index of times.
    pub(super) fn position_before(&self, time: SystemTime) -> Option<Position> {
        let (feed, head) = (&self.published.feed, self.position());
        let sequence = feed.times().sequence_before(time)?.min(head.sequence);
        let has_sequence = |span: &&EpochSpan| span.start <= sequence && span.accepted_up_to.is_some_and(|last| sequence <= last);
        let earlier = || self.published.earlier_runs.iter().find(has_sequence).map(|span| span.epoch);
        let epoch = if sequence >= feed.start() { head.epoch } else { earlier()? };
        Some(Position { epoch, sequence })
    }
}

fn is_exact(from: SystemTime, to: SystemTime) -> bool {
    to.duration_since(from).unwrap_or_default() <= PRECISION
}

/// Returns the time at which the changes of a run had been seen, to the second.
fn latest(from: SystemTime, to: SystemTime) -> SystemTime {
    if is_exact(from, to) { from } else { to }
}

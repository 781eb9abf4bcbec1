//! Observation gaps: periods in which the changes of a scope were not seen when they happened.

use std::sync::Arc;
use std::time::SystemTime;

use imbl::OrdMap;

use crate::model::{GapEnd, ObservationGap, Scope};
use crate::view::{ChangeSet, View};

/// Maximum number of gaps of a scope. Above it the two oldest are joined, so that times become less
/// exact but not wrong.
const GAPS_MAX: usize = 32;

/// Observation gaps by scope, oldest first. Each has a higher first sequence than the one before.
pub(in crate::view) type ObservationGaps = OrdMap<Scope, Arc<[ObservationGap]>>;

impl View {
    /// Returns the observation gaps of a scope, oldest first.
    #[must_use]
    pub fn observation_gaps(&self, scope: &Scope) -> &[ObservationGap] {
        self.observation_gaps.get(scope).map_or(&[], |gaps| gaps)
    }

    /// Restores the observation gaps of a scope from the store.
    pub fn restore_observation_gaps(&mut self, scope: Scope, gaps: &[ObservationGap]) {
        self.observation_gaps.insert(scope, gaps.into());
    }

    pub(super) fn begin_observation_gap(&mut self, scope: Scope, last_contact: Option<SystemTime>, change_set: &mut ChangeSet) {
        let mut gaps = self.observation_gaps(&scope).to_vec();
        if gaps.last().is_some_and(|newest| newest.end.is_none()) {
            return;
        }
        if let [oldest, second, ..] = *gaps.as_slice()
            && gaps.len() >= GAPS_MAX
        {
            gaps.splice(..2, [oldest.join(second)]);
        }
        gaps.push(ObservationGap { from: last_contact, first: self.sequence.next(), end: None });
        self.set_observation_gaps(scope, gaps, change_set);
    }

    pub(super) fn end_observation_gap(&mut self, scope: Scope, now: SystemTime, change_set: &mut ChangeSet) {
        let mut gaps = self.observation_gaps(&scope).to_vec();
        let Some(newest) = gaps.last_mut().filter(|newest| newest.end.is_none()) else { return };
        // a gap without changes ends before it begins: no sequence is in it
        newest.end = Some(GapEnd { time: now, last: self.sequence });
        self.set_observation_gaps(scope, gaps, change_set);
    }

    pub(super) fn remove_observation_gaps(&mut self, scope: &Scope, change_set: &mut ChangeSet) {
        if self.observation_gaps.remove(scope).is_some() {
            change_set.gaps.insert(scope.clone(), None);
        }
    }

    fn set_observation_gaps(&mut self, scope: Scope, gaps: Vec<ObservationGap>, change_set: &mut ChangeSet) {
        let gaps: Arc<[ObservationGap]> = gaps.into();
        change_set.gaps.insert(scope.clone(), Some(Arc::clone(&gaps)));
        self.observation_gaps.insert(scope, gaps);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::{Change, ClusterName, Command, EntryKey, Identity, IdentityLabels, Kind, Object, Sequence, SourceStamp};

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn scope() -> Scope {
        Scope { cluster: ClusterName::parse("paris").unwrap(), kind: Kind::Identity }
    }

    fn put(name: &str) -> Command {
        let key = EntryKey::new(Kind::Identity, scope().cluster, name);
        let decoded = Ok(Arc::new(Object::Identity(Identity { id: 7, labels: IdentityLabels::default() })));
        let change = Change::Put { key, value: name.as_bytes().into(), decoded, source: SourceStamp::default() };
        Command::Apply { scope: scope(), changes: vec![change], cursor: None }
    }

    fn begin(last_contact: Option<SystemTime>) -> Command {
        Command::BeginObservationGap { scope: scope(), last_contact }
    }

    #[test]
    fn a_gap_contains_the_changes_up_to_its_end() {
        let mut view = View::starting_at(Sequence(10));
        view.apply_all(vec![begin(None), put("a"), put("b")], at(1));
        // the next connection continues the gap of an interrupted list
        let unchanged = view.apply(begin(Some(at(2))), at(2));
        assert_eq!(unchanged.gaps.len(), 0);
        let ended = view.apply_all(vec![put("c"), Command::EndObservationGap(scope()), put("d")], at(3));
        let first = ObservationGap { from: None, first: Sequence(11), end: Some(GapEnd { time: at(3), last: Sequence(13) }) };
        assert_eq!(ended.gaps.into_values().flatten().collect::<Vec<_>>(), [Arc::from([first])]);
        view.apply_all(vec![begin(Some(at(4))), Command::EndObservationGap(scope()), put("e")], at(9));
        let empty = ObservationGap { from: Some(at(4)), first: Sequence(15), end: Some(GapEnd { time: at(9), last: Sequence(14) }) };
        assert_eq!(view.observation_gaps(&scope()), [first, empty]);
        let contained = |sequence: u64| view.observation_gaps(&scope()).iter().any(|gap| gap.contains(Sequence(sequence)));
        assert_eq!([10, 11, 13, 14, 15].map(contained), [false, true, true, false, false]);
        let removed = view.apply(Command::Remove { cluster: scope().cluster, reason: crate::model::DeleteReason::ClusterRemoved }, at(10));
        assert_eq!(removed.gaps, [(scope(), None)].into());
        assert_eq!(view.observation_gaps(&scope()), []);
    }

    #[test]
    fn the_oldest_gaps_are_joined() {
        let mut view = View::starting_at(Sequence(0));
        for number in 0..GAPS_MAX as u64 + 2 {
            let name = number.to_string();
            view.apply_all(vec![begin(Some(at(number * 10))), put(&name), Command::EndObservationGap(scope())], at(number * 10 + 5));
        }
        let gaps = view.observation_gaps(&scope());
        assert_eq!(gaps.len(), GAPS_MAX);
        let joined = ObservationGap { from: Some(at(0)), first: Sequence(1), end: Some(GapEnd { time: at(25), last: Sequence(3) }) };
        assert_eq!(gaps[0], joined);
    }
}

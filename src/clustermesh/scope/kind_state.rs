//! The state of one kind that outlives connections, with the commands that wait for the committer.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime};

use crate::clustermesh::connection_error::ConnectionError;
use crate::clustermesh::resync::Resync;
use crate::commit::CommandSender;
use crate::model::{Change, Command, Scope};

/// Number of puts of a list that are sent to the committer at once: the records of a full chunk.
const JOINED_PUTS: usize = 1_024;

/// Bytes of values above which puts of a list are not joined, so that little is decoded at a time.
const JOINED_BYTES: usize = 1 << 20;

/// State of one kind that outlives connections.
#[derive(Debug)]
pub(in crate::clustermesh) struct KindState {
    pub(super) resync: Resync,
    /// Commands that the committer has not accepted yet. They outlive the connection, because the
    /// state machine relies on all of its commands being applied.
    pub(super) outbox: VecDeque<Command>,
    /// Time since which keys are held; `None` while no key is held.
    pub(super) held_since: Option<Instant>,
    /// Time up to which the committer has received all changes of the source; `None` if the kind
    /// was never complete.
    pub(super) observed_until: Option<SystemTime>,
}

impl KindState {
    pub(in crate::clustermesh) fn new(resync: Resync, observed_until: Option<SystemTime>) -> Self {
        Self { resync, outbox: VecDeque::new(), held_since: None, observed_until }
    }

    /// Resets the state after the cluster was removed from the mirror.
    pub(in crate::clustermesh) fn forget(&mut self) {
        self.resync.forget();
        self.outbox.clear();
        (self.held_since, self.observed_until) = (None, None);
    }

    /// Begins an observation gap. It includes the commands of an earlier connection that were not
    /// sent. If one of them ends a gap, it must not end this one.
    pub(super) fn begin_observation_gap(&mut self, scope: &Scope) {
        self.outbox.retain(|command| !matches!(command, Command::EndObservationGap(_)));
        let begin = Command::BeginObservationGap { scope: scope.clone(), last_contact: self.observed_until };
        if self.outbox.front() != Some(&begin) {
            self.outbox.push_front(begin);
        }
    }

    /// Resets the state and removes the kind from the mirror (`--cache-ttl`), as an empty list
    /// would.
    pub(in crate::clustermesh) fn revoke(&mut self, scope: &Scope) {
        self.resync.forget();
        self.held_since = None;
        self.outbox.extend([Command::BeginList(scope.clone()), Command::Prune(scope.clone())]);
    }

    /// Adds commands to the outbox. Joins the puts of a list until [`JOINED_PUTS`], so that the
    /// mirror packs them into full chunks.
    pub(super) fn push(&mut self, commands: Vec<Command>) {
        for command in commands {
            match (self.outbox.back_mut(), command) {
                (Some(Command::Apply { changes: joined, cursor: None, .. }), Command::Apply { changes, cursor: None, .. })
                    if !is_full(joined) =>
                {
                    joined.extend(changes)
                }
                (_, command) => self.outbox.push_back(command),
            }
        }
    }

    /// Returns whether the newest command has room for more puts of a list.
    pub(super) fn can_join_puts(&self) -> bool {
        matches!(self.outbox.back(), Some(Command::Apply { changes, cursor: None, .. }) if !is_full(changes))
    }

    /// Sends the outbox to the committer. Cancelling it is safe at any await: unsent commands stay
    /// in the outbox.
    pub(in crate::clustermesh) async fn deliver(&mut self, commands: &CommandSender) -> Result<(), ConnectionError> {
        while let Some(next) = self.outbox.front() {
            let permit = commands.reserve(next).await.map_err(|_| ConnectionError::Stopping)?;
            if let Some(command) = self.outbox.pop_front() {
                permit.send(command);
            }
        }
        Ok(())
    }
}

/// Returns whether puts are enough to be applied on their own.
fn is_full(puts: &[Change]) -> bool {
    let byte_count = |put: &Change| if let Change::Put { value, .. } = put { value.len() } else { 0 };
    puts.len() >= JOINED_PUTS || puts.iter().map(byte_count).sum::<usize>() >= JOINED_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterName, EntryKey, Kind};

    #[test]
    fn an_unsent_command_of_an_earlier_connection_does_not_end_the_gap() {
        let scope = Scope { cluster: ClusterName::parse("paris").unwrap(), kind: Kind::Identity };
        let mut state = KindState::new(Resync::new(scope.clone(), None), None);
        let begin = Command::BeginObservationGap { scope: scope.clone(), last_contact: None };
        let (confirm, end) = (Command::Confirm(scope.clone()), Command::EndObservationGap(scope.clone()));
        for _ in 0..2 {
            state.push(vec![end.clone()]);
            state.begin_observation_gap(&scope);
            state.push(vec![confirm.clone()]);
        }
        assert_eq!(state.outbox, [begin, confirm.clone(), confirm]);
    }

    #[test]
    fn puts_of_a_list_are_joined_until_they_fill_a_chunk() {
        let scope = Scope { cluster: ClusterName::parse("paris").unwrap(), kind: Kind::Identity };
        let mut state = KindState::new(Resync::new(scope.clone(), None), None);
        let page = |first: usize| {
            let key = |number: usize| EntryKey::new(scope.kind, scope.cluster.clone(), number.to_string());
            let changes = (first..first + 256).map(|number| Change::Delete { key: key(number) }).collect();
            Command::Apply { scope: scope.clone(), changes, cursor: None }
        };
        let mut pushed = |commands: Vec<Command>| {
            state.push(commands);
            let count = |command: &Command| if let Command::Apply { changes, .. } = command { changes.len() } else { 0 };
            (state.outbox.iter().map(count).collect::<Vec<_>>(), state.can_join_puts())
        };
        assert_eq!(pushed(vec![Command::BeginList(scope.clone()), page(1_000)]), (vec![0, 256], true));
        assert_eq!(pushed(vec![page(2_000)]), (vec![0, 512], true));
        assert_eq!(pushed(vec![page(3_000), page(4_000)]), (vec![0, 1_024], false));
        assert_eq!(pushed(vec![page(5_000)]), (vec![0, 1_024, 256], true));
        assert_eq!(pushed(vec![Command::Confirm(scope.clone())]), (vec![0, 1_024, 256, 0], false));
    }
}

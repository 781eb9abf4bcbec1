//! The backlog of a new watch: changes that happened before the watch was created. Their times are
//! not known, so they belong to an observation gap.

use std::time::SystemTime;

use crate::model::{Command, Revision, Scope};
use cilium_kvstore::WatchMessage;

/// Progress of a watch through its backlog.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Time up to which all changes were seen before the watch.
    observed_until: Option<SystemTime>,
    /// Revision after which the watch starts.
    after: Revision,
    /// Newest revision of the etcd when the watch was created.
    created: Option<Revision>,
    is_over: bool,
}

/// Begin or end of the observation gap, next to a message of the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GapChange {
    Begin { last_contact: Option<SystemTime> },
    End,
}

impl GapChange {
    pub(super) fn into_command(self, scope: &Scope) -> Command {
        match self {
            Self::Begin { last_contact } => Command::BeginObservationGap { scope: scope.clone(), last_contact },
            Self::End => Command::EndObservationGap(scope.clone()),
        }
    }
}

impl Backlog {
    /// Creates the backlog of a watch that starts after a revision. A gap exists already.
    pub(super) const fn new(after: Revision, observed_until: Option<SystemTime>) -> Self {
        Self { observed_until, after, created: None, is_over: false }
    }

    /// Records a message. Returns the changes of the gap before and after the changes in the
    /// message.
    ///
    /// A progress message ends the backlog. Some releases of etcd send it too early
    /// ([`WatchMessage::Progress`]), so changes that are older than the watch begin the gap again.
    pub(super) fn record(&mut self, message: &WatchMessage) -> [Option<GapChange>; 2] {
        let created = self.created.unwrap_or(self.after);
        let was_over = self.is_over;
        let end = Some(GapChange::End);
        match message {
            WatchMessage::Created { revision } => {
                self.created = Some(*revision);
                self.is_over = *revision <= self.after;
                [None, end.filter(|_| self.is_over)]
            }
            WatchMessage::Progress { .. } => {
                self.is_over = true;
                [None, end.filter(|_| !was_over)]
            }
            WatchMessage::Events { revision, events } => {
                let has_backlog = events.first().is_some_and(|first| first.mod_revision() <= created);
                self.is_over = *revision >= created;
                match (was_over, has_backlog) {
                    (true, false) => [None, None],
                    (false, false) => [end.filter(|_| self.is_over), None],
                    (true, true) => [Some(GapChange::Begin { last_contact: self.observed_until }), end.filter(|_| self.is_over)],
                    (false, true) => [None, end.filter(|_| self.is_over)],
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Revision;
    use cilium_kvstore::Event;

    fn events(revisions: &[i64]) -> WatchMessage {
        let event = |revision: &i64| Event::Delete { key: b"a".to_vec(), mod_revision: Revision(*revision) };
        WatchMessage::Events { revision: Revision(*revisions.last().unwrap()), events: revisions.iter().map(event).collect() }
    }

    #[test]
    fn the_gap_ends_with_the_last_change_from_before_the_watch() {
        let begin = Some(GapChange::Begin { last_contact: Some(SystemTime::UNIX_EPOCH) });
        let end = Some(GapChange::End);
        let created = |revision| WatchMessage::Created { revision: Revision(revision) };
        let progress = || WatchMessage::Progress { revision: Revision(14) };
        for (messages, expected) in [
            (vec![created(10), events(&[12])], vec![[None, end], [None, None]]),
            (
                vec![created(14), events(&[11, 12]), events(&[14]), events(&[15])],
                vec![[None, None], [None, None], [None, end], [None, None]],
            ),
            (vec![created(14), events(&[13, 15]), events(&[16])], vec![[None, None], [None, end], [None, None]]),
            (vec![created(14), events(&[16])], vec![[None, None], [end, None]]),
            (vec![created(14), progress(), events(&[15])], vec![[None, None], [None, end], [None, None]]),
            // progress before the backlog
            (vec![created(14), progress(), events(&[13]), events(&[15])], vec![[None, None], [None, end], [begin, None], [end, None]]),
            (vec![created(14), progress(), events(&[13, 14])], vec![[None, None], [None, end], [begin, end]]),
        ] {
            let mut backlog = Backlog::new(Revision(10), Some(SystemTime::UNIX_EPOCH));
            let changes: Vec<_> = messages.iter().map(|message| backlog.record(message)).collect();
            assert_eq!(changes, expected, "{messages:?}");
        }
    }
}

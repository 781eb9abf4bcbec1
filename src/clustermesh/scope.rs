//! One kind of one cluster over one connection: performs the requests of the resync state machine
//! and feeds it the answers.
//!
//! [`Attempt`](super::cluster) runs a [`ScopeTask`] for each kind. The task sends commands to the
//! committer and ends only with an error, after which the caller reconnects.

mod progress;
mod signs;
mod size;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use self::progress::Progress;
use self::size::decoded_bytes;
use super::bounds::Holdings;
use super::failure::AttemptError;
use super::gate::Gates;
use super::reporter::Reporter;
use super::resync::{HistoryLost, Input, Request, Resync, Source};
use super::timing::{HOLD_CHECK_INTERVAL_MIN, HOLD_CHECKS_PER_MARGIN, SILENCE_CHECKS, Timing};
use crate::commit::{CommandSender, DecodedBudget, Published, Subscriber};
use crate::instruments::{LogLimiter, LogPermit};
use crate::model::{Command, EntryKey, LeaseId, Revision, Scope};
use crate::wire::cluster_config::Reading;
use crate::wire::keys;
use cilium_kvstore::{ChangedKeys, Connection, Disposition, Event, KeyValue, WatchMessage};

/// Clusters and kinds for which a key that was omitted was logged recently.
static LEFT_OUT: LogLimiter = LogLimiter::new();

/// State that all kinds of a cluster share.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) commands: CommandSender,
    pub(super) mirror: Subscriber,
    pub(super) reporter: Reporter,
    pub(super) timing: Timing,
    pub(super) gates: Gates,
    /// Size of the cluster, compared with its limits.
    pub(super) holdings: Holdings,
    pub(super) decoded: DecodedBudget,
}

/// Connection to the source and its properties, shared by all kinds.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) connection: Connection,
    pub(super) source: Source,
    /// Arrival of the last heartbeat over this connection.
    pub(super) heartbeat: watch::Receiver<Option<Instant>>,
}

/// State of one kind that outlives connections.
#[derive(Debug)]
pub(super) struct KindMemory {
    resync: Resync,
    /// Commands that the committer has not accepted yet. They outlive the connection, because the
    /// state machine relies on all of its commands being applied.
    outbox: VecDeque<Command>,
    /// Time since which keys are held. `None` while none are.
    held_since: Option<Instant>,
}

impl KindMemory {
    pub(super) fn new(resync: Resync) -> Self {
        Self { resync, outbox: VecDeque::new(), held_since: None }
    }

    /// Resets the state after the cluster was removed from the mirror.
    pub(super) fn forget(&mut self) {
        self.resync.forget();
        self.outbox.clear();
        self.held_since = None;
    }

    /// Resets the state and removes the kind from the mirror (`--cache-ttl`), as an empty list
    /// would.
    pub(super) fn revoke(&mut self, scope: &Scope) {
        self.resync.forget();
        self.held_since = None;
        self.outbox.extend([Command::BeginList(scope.clone()), Command::Prune(scope.clone())]);
    }

    /// Sends the outbox to the committer. Cancelling it is safe at any await: unsent commands stay
    /// in the outbox.
    pub(super) async fn deliver(&mut self, commands: &CommandSender) -> Result<(), AttemptError> {
        while let Some(next) = self.outbox.front() {
            let place = commands.reserve(next).await.map_err(|_| AttemptError::Stopping)?;
            if let Some(command) = self.outbox.pop_front() {
                place.send(command);
            }
        }
        Ok(())
    }
}

/// Task that reads one kind over one connection.
pub(super) struct ScopeTask<'a> {
    pub(super) scope: Scope,
    pub(super) memory: &'a mut KindMemory,
    pub(super) link: Link,
    pub(super) canary: watch::Receiver<Option<KeyValue>>,
    pub(super) surroundings: &'a Surroundings,
    /// Result of the last differential list, for a list of keys that may follow.
    pub(super) changed: Option<ChangedKeys>,
    /// True if this kind was reported as synced.
    pub(super) told_synced: bool,
    /// Change count of the unreadable keys that was reported last.
    pub(super) told_unreadable: u64,
    /// Way in which the cluster publishes this kind.
    pub(super) reading: Reading,
    /// Leases that do not exist in this etcd any more. A lease id is never used again.
    pub(super) gone_leases: BTreeSet<LeaseId>,
}

impl ScopeTask<'_> {
    /// Runs until the connection fails.
    pub(super) async fn run(mut self) -> Result<std::convert::Infallible, AttemptError> {
        self.surroundings.holdings.resume(self.scope.kind);
        self.expect();
        if self.reading == Reading::Absent {
            return self.stay_away().await;
        }
        self.memory.deliver(&self.surroundings.commands).await?;
        let mut request = self.feed(Input::Connected(self.link.source.clone())).await?;
        loop {
            request = match request.take() {
                Some(Request::AwaitCanary) => self.await_canary().await?,
                Some(Request::ReadTogether(keys)) => {
                    let (found, revision) = self.link.connection.get_together(&keys).await?;
                    self.feed(Input::Together(found, revision)).await?
                }
                Some(Request::ReadAt(key, revision)) => {
                    let found = match self.link.connection.get(&key, Some(revision)).await {
                        Ok((found, _)) => Ok(found),
                        Err(error) if error.disposition() == Disposition::Resync => Err(HistoryLost),
                        Err(error) => return Err(error.into()),
                    };
                    self.feed(Input::At(found)).await?
                }
                Some(Request::ListChanges(after)) => self.list_changes(after).await?,
                Some(Request::ListKeys(_)) => self.list_keys().await?,
                Some(Request::List) => self.list().await?,
                Some(Request::Compare) => self.compare().await?,
                Some(Request::Watch(after)) => self.watch(after).await?,
                None => return Err(AttemptError::Cluster(format!("{}: the resync makes no progress", self.scope))),
            };
            self.surroundings.reporter.contact();
        }
    }

    /// Removes a kind that the cluster does not publish, and reports it as complete (Cilium's
    /// disabled reflectors).
    async fn stay_away(self) -> Result<std::convert::Infallible, AttemptError> {
        self.memory.revoke(&self.scope);
        self.expect();
        self.surroundings.holdings.settle(self.scope.kind);
        self.memory.deliver(&self.surroundings.commands).await?;
        self.surroundings.reporter.holds(self.scope.kind, 0);
        self.surroundings.reporter.refused(self.scope.kind, []);
        self.surroundings.reporter.kind_is(self.scope.kind, true, false);
        std::future::pending().await
    }

    async fn await_canary(&mut self) -> Result<Option<Request>, AttemptError> {
        let canary = self.canary.wait_for(Option::is_some).await.map_err(|_| AttemptError::Stopping)?.clone();
        match canary {
            Some(canary) => self.feed(Input::Canary(canary)).await,
            None => Ok(Some(Request::AwaitCanary)),
        }
    }

    /// Reads the puts since a revision. Counts the entries of the mirror once the committer has
    /// applied all earlier commands.
    async fn list_changes(&mut self, after: Revision) -> Result<Option<Request>, AttemptError> {
        let prefix = self.watched_prefix();
        let place = self.place_to_list().await;
        let changed = self.link.connection.changes_since(&prefix, after).await?;
        drop(place);
        let mirror = self.settled_mirror().await;
        let held = mirror.view.scope(&self.scope).map_or(0, |state| u64::from(state.entry_count));
        self.add_unjudged(changed.as_ref()).await;
        let puts = changed.iter().flat_map(|changed| &changed.puts);
        let is_held = |put: &&KeyValue| self.entry_key(&put.key).is_some_and(|key| mirror.view.contains(&key));
        let new = puts.filter(|put| !is_held(put)).count();
        self.changed.clone_from(&changed);
        self.feed(Input::Changes { changed, held_count: held + new as u64 }).await
    }

    /// Lists only the keys, at the revision of the changes that were read before.
    async fn list_keys(&mut self) -> Result<Option<Request>, AttemptError> {
        let Some(changed) = self.changed.take() else { return self.feed(Input::HistoryLost).await };
        let place = self.place_to_list().await;
        let mut pages = self.link.connection.list_keys(&self.watched_prefix(), &changed);
        let mut listed = Vec::new();
        loop {
            match pages.next_page().await {
                Ok(Some(page)) => listed.extend(page.key_values.into_iter().map(|key_value| key_value.key)),
                Ok(None) => break,
                Err(error) if error.disposition() == Disposition::Resync => return self.feed(Input::HistoryLost).await,
                Err(error) => return Err(error.into()),
            }
        }
        drop(place);
        let mirror = self.settled_mirror().await;
        let held: Vec<EntryKey> = mirror.view.keys_in_scope(&self.scope).collect();
        let existing: BTreeSet<EntryKey> = listed.iter().filter_map(|key| self.entry_key(key)).collect();
        let gone: Vec<&EntryKey> = held.iter().filter(|key| !existing.contains(*key)).collect();
        let signs = self.signs_for(&gone).await?;
        self.feed(Input::Keys { listed, held, signs }).await
    }

    /// Finds the keys that the complete list did not confirm.
    async fn compare(&mut self) -> Result<Option<Request>, AttemptError> {
        let mirror = self.settled_mirror().await;
        let keys: Vec<EntryKey> = mirror.view.unconfirmed_in(&self.scope).collect();
        let signs = self.signs_for(&keys.iter().collect::<Vec<_>>()).await?;
        self.feed(Input::Absent { keys, signs }).await
    }

    /// Waits until the committer has applied every command of this kind, and returns that snapshot.
    async fn settled_mirror(&self) -> Arc<Published> {
        let expected = self.memory.resync.cursor();
        self.surroundings.mirror.wait_for(|published| published.view.cursor(&self.scope) == expected).await
    }

    /// Waits for a slot for a list at this connection's etcd.
    async fn place_to_list(&self) -> Option<OwnedSemaphorePermit> {
        self.surroundings.gates.list(self.link.connection.etcd_cluster_id()).await
    }

    fn watched_prefix(&self) -> Vec<u8> {
        keys::watched_prefix(self.scope.kind, &self.scope.cluster, self.link.source.cached).into_bytes()
    }

    async fn list(&mut self) -> Result<Option<Request>, AttemptError> {
        let _place = self.place_to_list().await;
        let mut pages = self.link.connection.list(&self.watched_prefix());
        self.surroundings.holdings.list(self.scope.kind);
        // the mirror has too many keys from earlier lists: keep the pages back until the list is
        // complete, which removes those keys
        let mut waiting = Vec::new();
        let mut progress = Progress::begin(Instant::now());
        loop {
            match pages.next_page().await {
                Ok(Some(page)) => {
                    let (total, revision) = (page.total_count, page.revision);
                    progress.page(&self.scope, page.key_values.len(), total, Instant::now());
                    self.report(|resource| {
                        resource.expected_count = Some(resource.expected_count.map_or(total, |known| known.max(total)));
                        resource.revision = Some(revision);
                    });
                    if self.admit_page(&page).await? || !waiting.is_empty() {
                        waiting.push(page);
                    } else {
                        self.feed_page(page).await?;
                    }
                }
                Ok(None) => {
                    for page in waiting {
                        self.feed_page(page).await?;
                    }
                    progress.end(&self.scope, Instant::now());
                    return self.feed(Input::ListEnd).await;
                }
                Err(error) if error.disposition() == Disposition::Resync => {
                    self.report(|resource| resource.expected_count = None);
                    return self.feed(Input::HistoryLost).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn watch(&mut self, after: Revision) -> Result<Option<Request>, AttemptError> {
        let prefix = self.watched_prefix();
        let end = cilium_kvstore::prefix_end(&prefix);
        let mut watch = match self.link.connection.watch(&prefix, Some(&end), after).await {
            Ok(watch) => watch,
            Err(error) if error.disposition() == Disposition::Resync => return self.feed(Input::HistoryLost).await,
            Err(error) => return Err(error.into()),
        };
        self.surroundings.holdings.settle(self.scope.kind);
        self.admit_changes(&[]).await?;
        self.settle();
        let silence_max = self.surroundings.timing.cluster.watch_silence;
        let mut listen = interval(silence_max / SILENCE_CHECKS);
        listen.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut quiet_since, stalls) = (Instant::now(), watch.stalls());
        let mut vigil = interval((self.surroundings.timing.cluster.hold_margin / HOLD_CHECKS_PER_MARGIN).max(HOLD_CHECK_INTERVAL_MIN));
        vigil.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let quiet_until = quiet_since + self.surroundings.timing.cluster.legacy_quiet;
            tokio::select! {
                message = watch.next() => match message {
                    Ok(message) => {
                        if self.touches_restored(&message) {
                            quiet_since = Instant::now();
                        }
                        if let Some(request) = self.message(message).await? {
                            return Ok(Some(request));
                        }
                        if watch.stalls() != stalls {
                            // older etcds may have omitted events: compare the keys
                            return self.feed(Input::HistoryLost).await;
                        }
                    }
                    Err(error) if error.disposition() == Disposition::Resync => return self.feed(Input::HistoryLost).await,
                    Err(error) => return Err(error.into()),
                },
                changed = self.canary.changed() => {
                    changed.map_err(|_| AttemptError::Stopping)?;
                    let canary = self.canary.borrow_and_update().clone();
                    if let Some(canary) = canary {
                        self.feed(Input::Canary(canary)).await?;
                    }
                }
                () = sleep_until(quiet_until.into()), if self.memory.resync.owes_prune() => {
                    // a heartbeat must have arrived, otherwise another quiet time is needed
                    // (invariant 3)
                    if self.link.heartbeat.borrow().is_some() {
                        return self.feed(Input::Quiet).await;
                    }
                    quiet_since = Instant::now();
                }
                _ = vigil.tick(), if self.memory.resync.held_count() > 0 => {
                    if let Some(request) = self.keep_vigil().await? {
                        return Ok(Some(request));
                    }
                }
                _ = listen.tick() => if watch.silence() > silence_max {
                    return Err(AttemptError::Cluster(format!("{}: the watch was silent for {silence_max:?}", self.scope)));
                },
            }
        }
    }

    /// Checks the signs of a source with held keys, and whether the hold is over.
    async fn keep_vigil(&mut self) -> Result<Option<Request>, AttemptError> {
        let timing = &self.surroundings.timing;
        let (margin, ttl) = (timing.cluster.hold_margin, timing.cache_ttl.filter(|_| self.scope.kind.is_revocable()));
        if ttl.is_some_and(|ttl| self.memory.held_since.is_some_and(|since| since.elapsed() >= ttl)) {
            return self.feed(Input::Revoke).await;
        }
        let signs = self.signs(true).await?;
        self.feed(Input::Vigil { signs, now: Instant::now(), margin }).await
    }

    async fn message(&mut self, message: WatchMessage) -> Result<Option<Request>, AttemptError> {
        let input = match message {
            WatchMessage::Created { .. } | WatchMessage::Progress => {
                self.surroundings.reporter.contact();
                return Ok(None);
            }
            WatchMessage::Events { revision, events } => {
                self.report(|resource| {
                    resource.last_event_time = Some(SystemTime::now());
                    resource.revision = Some(revision);
                });
                self.admit_changes(&events).await?;
                let signs = self.signs_of_events(&events).await?;
                Input::Events { events, revision, signs }
            }
        };
        self.surroundings.reporter.contact();
        self.feed(input).await
    }

    /// Returns whether a message puts a key that is in the mirror but not confirmed, which means
    /// that the source is still being filled.
    fn touches_restored(&self, message: &WatchMessage) -> bool {
        let WatchMessage::Events { events, .. } = message else { return false };
        if !self.memory.resync.owes_prune() {
            return false;
        }
        let published = self.surroundings.mirror.current();
        let generation = published.view.scope(&self.scope).map_or(0, |state| state.generation.into());
        events.iter().any(|event| match event {
            Event::Put(put) => {
                self.entry_key(&put.key).and_then(|key| published.view.generation(&key)).is_some_and(|held| held < generation)
            }
            Event::Delete { .. } => false,
        })
    }

    fn entry_key(&self, key: &[u8]) -> Option<EntryKey> {
        keys::entry_key(self.scope.kind, &self.scope.cluster, self.link.source.cached, key).ok()
    }

    /// Gives one input to the state machine and its commands to the committer. Waits while the
    /// queue is full, which pauses reading.
    async fn feed(&mut self, input: Input) -> Result<Option<Request>, AttemptError> {
        let room = self.surroundings.decoded.hold(decoded_bytes(&input)).await;
        let step = self.memory.resync.step(input);
        for reason in &step.unreadable_keys {
            let Scope { cluster, kind } = &self.scope;
            if let Some(LogPermit { more }) = LEFT_OUT.permit(&format!("{cluster} {kind}")) {
                tracing::warn!(%cluster, %kind, reason, more, "rejected a key of cluster {cluster}: /v1/rejected lists all");
            }
        }
        self.tell_unreadable();
        self.memory.outbox.extend(step.commands);
        self.expect();
        self.memory.deliver(&self.surroundings.commands).await?;
        drop(room);
        let synced = self.memory.resync.is_synced();
        if self.memory.resync.held_count() > 0 {
            self.memory.held_since.get_or_insert_with(Instant::now);
        } else if synced {
            // keys that an earlier connection held are known again only when everything is read:
            // until then their time continues
            self.memory.held_since = None;
        }
        if synced && !self.told_synced {
            // a client that sees `synced` must find all entries in the mirror
            self.settled_mirror().await;
        }
        self.told_synced = synced;
        self.settle();
        Ok(step.request)
    }

    /// Reports the keys that are not entries, if they have changed.
    fn tell_unreadable(&mut self) {
        let unreadable = self.memory.resync.unreadable();
        if std::mem::replace(&mut self.told_unreadable, unreadable.change_count()) != unreadable.change_count() {
            let refused = unreadable.iter().map(|(key, unreadable)| (key, &*unreadable.value, unreadable.reason.as_str()));
            self.surroundings.reporter.refused(self.scope.kind, refused);
        }
    }

    /// Reports the state of this kind.
    fn settle(&self) {
        let kind = self.scope.kind;
        let awaits_canary = self.memory.resync.awaits_canary();
        // it depends on the release whether a cluster that says "off" writes the canary
        // (docs/develop/protocol.md §12)
        let is_off = awaits_canary && self.reading == Reading::Off;
        let (synced, awaits_canary) = (is_off || self.memory.resync.is_synced(), awaits_canary && !is_off);
        // keys that an earlier connection or process held are known again only when everything is
        // read: until then they stay counted
        if synced {
            self.surroundings.reporter.holds(kind, self.memory.resync.held_count());
        }
        self.surroundings.reporter.kind_is(kind, synced, awaits_canary);
    }

    fn report(&self, change: impl FnOnce(&mut crate::model::ResourceStatus)) {
        self.surroundings.reporter.resource(self.scope.kind, change);
    }
}

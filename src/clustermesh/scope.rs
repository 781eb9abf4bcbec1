//! One kind of one cluster over one connection: performs the requests of the resync state machine
//! and feeds it the answers.
//!
//! [`ClusterConnection`](super::cluster) runs a [`ScopeTask`] for each kind. The task sends
//! commands to the committer and ends only with an error, after which the caller reconnects.

mod backlog;
mod batched_watch;
mod evidence;
mod kind_state;
mod list_progress;
mod progress;
mod size;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use self::backlog::Backlog;
use self::batched_watch::BatchedWatch;
pub(super) use self::kind_state::KindState;
use self::list_progress::ListProgress;
pub(super) use self::progress::ScopeProgress;
use self::size::decoded_bytes;
use super::bounds::SizeTracker;
use super::concurrency::ListLimiter;
use super::connection_error::ConnectionError;
use super::reporter::Reporter;
use super::resync::{HistoryLost, Input, Request, SourceInfo};
use super::timing::{HOLD_CHECK_INTERVAL_MIN, HOLD_CHECKS_PER_MARGIN, SILENCE_CHECKS, Timing};
use crate::commit::{CommandSender, DecodedBudget, MirrorSnapshot, SnapshotReceiver};
use crate::instruments::{LogLimiter, LogPermit, VerificationRequests};
use crate::model::{EntryKey, LeaseId, Revision, Scope};
use crate::wire::cluster_config::KindPublication;
use crate::wire::keys;
use cilium_kvstore::{ChangedKeys, Connection, Disposition, Event, KeyValue, KvstoreError, Page, PagedList, WatchMessage};

/// Limit on how often rejected keys are logged, per cluster and kind.
static REJECTED_KEY_LOG: LogLimiter = LogLimiter::new();

/// Maximum time for which puts of a list wait for the next page.
const JOIN_TIME_MAX: Duration = Duration::from_millis(500);

/// State that all kinds of a cluster share.
#[derive(Debug)]
pub(super) struct ClusterContext {
    pub(super) commands: CommandSender,
    pub(super) mirror: SnapshotReceiver,
    pub(super) reporter: Reporter,
    pub(super) timing: Timing,
    pub(super) list_limiter: ListLimiter,
    /// Size of the cluster, compared with its limits.
    pub(super) size_tracker: SizeTracker,
    pub(super) decoded: DecodedBudget,
    /// Requests of clients to verify clusters.
    pub(super) verification_requests: VerificationRequests,
}

/// Connection to the source and its properties, shared by all kinds.
#[derive(Clone)]
pub(super) struct SourceConnection {
    pub(super) connection: Connection,
    pub(super) info: SourceInfo,
    /// Arrival of the last heartbeat over this connection.
    pub(super) heartbeat: watch::Receiver<Option<Instant>>,
}

/// Task that reads one kind over one connection.
pub(super) struct ScopeTask<'a> {
    pub(super) scope: Scope,
    pub(super) state: &'a mut KindState,
    pub(super) source: SourceConnection,
    pub(super) canary: watch::Receiver<Option<KeyValue>>,
    pub(super) context: &'a ClusterContext,
    /// Result of the last differential list, for a list of keys that may follow.
    pub(super) last_changes: Option<ChangedKeys>,
    /// True if this kind was reported as synced.
    pub(super) reported_synced: bool,
    /// Change count of the unreadable keys that was reported last.
    pub(super) reported_unreadable: u64,
    /// Form in which the cluster publishes this kind.
    pub(super) publication: KindPublication,
    /// Progress of the watch, for the verification of the kind.
    pub(super) progress: Arc<ScopeProgress>,
    /// Leases that do not exist in this etcd any more. A lease id is never reused.
    pub(super) expired_leases: BTreeSet<LeaseId>,
}

impl ScopeTask<'_> {
    /// Runs until the connection fails.
    pub(super) async fn run(mut self) -> Result<std::convert::Infallible, ConnectionError> {
        self.context.size_tracker.mark_resuming(self.scope.kind);
        self.update_expected_revision();
        if self.publication == KindPublication::Absent {
            return self.remove_absent_kind().await;
        }
        self.state.begin_observation_gap(&self.scope);
        self.state.deliver(&self.context.commands).await?;
        let mut request = self.feed(Input::Connected(self.source.info.clone())).await?;
        loop {
            request = match request.take() {
                Some(Request::AwaitCanary) => self.await_canary().await?,
                Some(Request::ReadTogether(keys)) => {
                    let (key_values, revision) = self.source.connection.get_many(&keys).await?;
                    self.feed(Input::CurrentValues(key_values, revision)).await?
                }
                Some(Request::ReadAt(key, revision)) => {
                    let past_value = match self.source.connection.get(&key, Some(revision)).await {
                        Ok((key_value, _)) => Ok(key_value),
                        Err(error) if error.disposition() == Disposition::Resync => Err(HistoryLost),
                        Err(error) => return Err(error.into()),
                    };
                    self.feed(Input::PastValue(past_value)).await?
                }
                Some(Request::ListChanges(after)) => self.list_changes(after).await?,
                Some(Request::ListKeys(_)) => self.list_keys().await?,
                Some(Request::List) => self.list().await?,
                Some(Request::Compare) => self.compare().await?,
                Some(Request::Watch(after)) => {
                    let next = self.watch(after).await?;
                    // no watch reports the changes until the next one
                    self.state.begin_observation_gap(&self.scope);
                    self.progress.end_watch();
                    next
                }
                None => return Err(ConnectionError::Cluster(format!("{}: the resync makes no progress", self.scope))),
            };
            self.context.reporter.record_contact();
        }
    }

    /// Removes a kind that the cluster does not publish, and reports it as complete (Cilium's
    /// disabled reflectors).
    async fn remove_absent_kind(self) -> Result<std::convert::Infallible, ConnectionError> {
        self.state.revoke(&self.scope);
        self.update_expected_revision();
        self.context.size_tracker.mark_synced(self.scope.kind);
        self.state.deliver(&self.context.commands).await?;
        self.context.reporter.set_held_count(self.scope.kind, 0);
        self.context.reporter.set_refused_keys(self.scope.kind, []);
        self.context.reporter.set_kind_state(self.scope.kind, true, false);
        std::future::pending().await
    }

    async fn await_canary(&mut self) -> Result<Option<Request>, ConnectionError> {
        let canary = self.canary.wait_for(Option::is_some).await.map_err(|_| ConnectionError::Stopping)?.clone();
        match canary {
            Some(canary) => self.feed(Input::Canary(canary)).await,
            None => Ok(Some(Request::AwaitCanary)),
        }
    }

    /// Reads the puts since a revision. Counts the entries of the mirror once the committer has
    /// applied all earlier commands.
    async fn list_changes(&mut self, after: Revision) -> Result<Option<Request>, ConnectionError> {
        let prefix = self.watched_prefix();
        let permit = self.list_permit().await;
        let changed = self.source.connection.changes_since(&prefix, after).await?;
        drop(permit);
        let mirror = self.applied_mirror().await;
        let entry_count = mirror.view.scope(&self.scope).map_or(0, |state| u64::from(state.entry_count));
        self.add_unchecked(changed.as_ref()).await;
        let puts = changed.iter().flat_map(|changed| &changed.puts);
        let is_entry = |put: &&KeyValue| self.entry_key(&put.key).is_some_and(|key| mirror.view.contains(&key));
        let new_count = puts.filter(|put| !is_entry(put)).count();
        self.last_changes.clone_from(&changed);
        self.feed(Input::Changes { changed, entry_count: entry_count + new_count as u64 }).await
    }

    /// Lists only the keys, at the revision of the changes that were read before.
    async fn list_keys(&mut self) -> Result<Option<Request>, ConnectionError> {
        let Some(changed) = self.last_changes.take() else { return self.feed(Input::HistoryLost).await };
        let permit = self.list_permit().await;
        let mut pages = self.source.connection.list_keys(&self.watched_prefix(), &changed);
        let mut listed = Vec::new();
        loop {
            match pages.next_page().await {
                Ok(Some(page)) => listed.extend(page.key_values.into_iter().map(|key_value| key_value.key)),
                Ok(None) => break,
                Err(error) if error.disposition() == Disposition::Resync => return self.feed(Input::HistoryLost).await,
                Err(error) => return Err(error.into()),
            }
        }
        drop(permit);
        let mirror = self.applied_mirror().await;
        let entries: Vec<EntryKey> = mirror.view.keys_in_scope(&self.scope).collect();
        let existing: BTreeSet<EntryKey> = listed.iter().filter_map(|key| self.entry_key(key)).collect();
        let missing: Vec<&EntryKey> = entries.iter().filter(|key| !existing.contains(*key)).collect();
        let evidence = self.missing_key_evidence(&missing).await?;
        self.feed(Input::Keys { listed, entries, evidence }).await
    }

    /// Finds the keys that the complete list did not confirm.
    async fn compare(&mut self) -> Result<Option<Request>, ConnectionError> {
        let mirror = self.applied_mirror().await;
        let keys: Vec<EntryKey> = mirror.view.unconfirmed_in(&self.scope).collect();
        let evidence = self.missing_key_evidence(&keys.iter().collect::<Vec<_>>()).await?;
        self.feed(Input::UnconfirmedKeys { keys, evidence }).await
    }

    /// Waits until the committer has applied every command of this kind, and returns that snapshot.
    async fn applied_mirror(&self) -> Arc<MirrorSnapshot> {
        let expected = self.state.resync.cursor();
        self.context.mirror.wait_for(|published| published.view.cursor(&self.scope) == expected).await
    }

    /// Waits for a slot for a list at this connection's etcd.
    async fn list_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.context.list_limiter.acquire(self.source.connection.etcd_cluster_id()).await
    }

    fn watched_prefix(&self) -> Vec<u8> {
        keys::watched_prefix(self.scope.kind, &self.scope.cluster, self.source.info.cached).into_bytes()
    }

    /// Reads the next page. If that takes long, the joined puts are not held back any longer.
    async fn next_page(&mut self, pages: &mut PagedList) -> Result<Result<Option<Page>, KvstoreError>, ConnectionError> {
        let mut next = pin!(pages.next_page());
        if let Ok(page) = timeout(JOIN_TIME_MAX, &mut next).await {
            return Ok(page);
        }
        self.state.deliver(&self.context.commands).await?;
        Ok(next.await)
    }

    async fn list(&mut self) -> Result<Option<Request>, ConnectionError> {
        let _permit = self.list_permit().await;
        let mut pages = self.source.connection.list(&self.watched_prefix());
        self.context.size_tracker.mark_listing(self.scope.kind);
        // pages that are applied only when the list is complete: the mirror has too many keys from
        // earlier lists, and only a complete list removes those keys
        let mut postponed = Vec::new();
        let mut progress = ListProgress::new(Instant::now());
        loop {
            match self.next_page(&mut pages).await? {
                Ok(Some(page)) => {
                    let (total, revision) = (page.total_count, page.revision);
                    progress.add_page(&self.scope, page.key_values.len(), total, Instant::now());
                    self.change_status(|resource| {
                        resource.expected_count = Some(resource.expected_count.map_or(total, |known| known.max(total)));
                        resource.revision = Some(revision);
                    });
                    if self.check_page_size(&page).await? || !postponed.is_empty() {
                        postponed.push(page);
                    } else {
                        self.feed_page(page).await?;
                    }
                }
                Ok(None) => {
                    for page in postponed {
                        self.feed_page(page).await?;
                    }
                    progress.log_end(&self.scope, Instant::now());
                    return self.feed(Input::ListEnd).await;
                }
                Err(error) if error.disposition() == Disposition::Resync => {
                    self.change_status(|resource| resource.expected_count = None);
                    return self.feed(Input::HistoryLost).await;
                }
                Err(error) => {
                    self.state.deliver(&self.context.commands).await?;
                    return Err(error.into());
                }
            }
        }
    }

    async fn watch(&mut self, after: Revision) -> Result<Option<Request>, ConnectionError> {
        let prefix = self.watched_prefix();
        let end = cilium_kvstore::prefix_end(&prefix);
        let mut batched = match self.source.connection.watch(&prefix, Some(&end), after).await {
            Ok(watch) => BatchedWatch::new(watch),
            Err(error) if error.disposition() == Disposition::Resync => return self.feed(Input::HistoryLost).await,
            Err(error) => return Err(error.into()),
        };
        self.context.size_tracker.mark_synced(self.scope.kind);
        self.check_changes_size(&[]).await?;
        self.report_state();
        self.progress.start_watch(after);
        let silence_max = self.context.timing.cluster.watch_silence;
        let mut silence_check = interval(silence_max / SILENCE_CHECKS);
        silence_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut quiet_since, stalls) = (Instant::now(), batched.watch.stalls());
        let mut hold_check = interval((self.context.timing.cluster.hold_margin / HOLD_CHECKS_PER_MARGIN).max(HOLD_CHECK_INTERVAL_MIN));
        hold_check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut backlog = Backlog::new(after, self.state.observed_until);
        loop {
            let quiet_until = quiet_since + self.context.timing.cluster.legacy_quiet;
            tokio::select! {
                message = batched.next() => match message {
                    Ok(message) => {
                        if self.contains_put_of_unconfirmed_key(&message) {
                            quiet_since = Instant::now();
                        }
                        if let Some(request) = self.handle_watch_message(message, &mut backlog).await? {
                            return Ok(Some(request));
                        }
                        if batched.watch.stalls() != stalls {
                            // older etcds may have omitted events: compare the keys
                            return self.feed(Input::HistoryLost).await;
                        }
                    }
                    Err(error) if error.disposition() == Disposition::Resync => return self.feed(Input::HistoryLost).await,
                    Err(error) => return Err(error.into()),
                },
                changed = self.canary.changed() => {
                    changed.map_err(|_| ConnectionError::Stopping)?;
                    let canary = self.canary.borrow_and_update().clone();
                    if let Some(canary) = canary {
                        self.feed(Input::Canary(canary)).await?;
                    }
                }
                () = sleep_until(quiet_until.into()), if self.state.resync.has_pending_prune() => {
                    // a heartbeat must have arrived, otherwise another quiet time is needed
                    // (invariant 3)
                    if self.source.heartbeat.borrow().is_some() {
                        return self.feed(Input::QuietTimeOver).await;
                    }
                    quiet_since = Instant::now();
                }
                _ = hold_check.tick(), if self.state.resync.held_count() > 0 => {
                    if let Some(request) = self.check_holds().await? {
                        return Ok(Some(request));
                    }
                }
                () = self.progress.repair_requested() => {
                    if let Some(request) = self.feed(Input::Diverged).await? {
                        return Ok(Some(request));
                    }
                }
                _ = silence_check.tick() => if batched.watch.silence() > silence_max {
                    return Err(ConnectionError::Cluster(format!("{}: the watch was silent for {silence_max:?}", self.scope)));
                },
            }
        }
    }

    /// Reads the evidence of a source with held keys, and checks whether the hold is over.
    async fn check_holds(&mut self) -> Result<Option<Request>, ConnectionError> {
        let timing = &self.context.timing;
        let (margin, ttl) = (timing.cluster.hold_margin, timing.cache_ttl.filter(|_| self.scope.kind.is_revocable()));
        if ttl.is_some_and(|ttl| self.state.held_since.is_some_and(|since| since.elapsed() >= ttl)) {
            return self.feed(Input::Revoke).await;
        }
        let evidence = self.writer_key_evidence(true).await?;
        self.feed(Input::HoldCheck { evidence, now: Instant::now(), margin }).await
    }

    /// Handles a message of the watch, and begins or ends the observation gap around it.
    async fn handle_watch_message(&mut self, message: WatchMessage, backlog: &mut Backlog) -> Result<Option<Request>, ConnectionError> {
        let [before, after] = backlog.record(&message);
        self.state.push(before.map(|change| change.into_command(&self.scope)).into_iter().collect());
        let request = self.handle_message(message).await?;
        self.state.push(after.map(|change| change.into_command(&self.scope)).into_iter().collect());
        self.state.deliver(&self.context.commands).await?;
        self.state.observed_until = Some(SystemTime::now());
        Ok(request)
    }

    async fn handle_message(&mut self, message: WatchMessage) -> Result<Option<Request>, ConnectionError> {
        let (input, revision) = match message {
            WatchMessage::Created { .. } => {
                self.context.reporter.record_contact();
                return Ok(None);
            }
            WatchMessage::Progress { revision } => {
                self.context.reporter.record_contact();
                self.record_delivery(revision);
                return Ok(None);
            }
            WatchMessage::Events { revision, events } => {
                self.change_status(|resource| {
                    resource.last_event_time = Some(SystemTime::now());
                    resource.revision = Some(revision);
                });
                self.check_changes_size(&events).await?;
                let evidence = self.event_evidence(&events).await?;
                (Input::Events { events, revision, evidence }, revision)
            }
        };
        self.context.reporter.record_contact();
        let request = self.feed(input).await?;
        self.record_delivery(revision);
        Ok(request)
    }

    /// Records that the watch has delivered all changes up to a revision, for the verification.
    fn record_delivery(&self, revision: Revision) {
        if let Some(cursor) = self.state.resync.cursor() {
            self.progress.record_delivery(revision, cursor.revision);
        }
    }

    /// Returns whether a message puts a key that is in the mirror but not confirmed, which means
    /// that the source is still being filled.
    fn contains_put_of_unconfirmed_key(&self, message: &WatchMessage) -> bool {
        let WatchMessage::Events { events, .. } = message else { return false };
        if !self.state.resync.has_pending_prune() {
            return false;
        }
        let published = self.context.mirror.current();
        let generation = published.view.scope(&self.scope).map_or(0, |state| state.generation.into());
        events.iter().any(|event| match event {
            Event::Put(put) => {
                self.entry_key(&put.key).and_then(|key| published.view.generation(&key)).is_some_and(|confirmed| confirmed < generation)
            }
            Event::Delete { .. } => false,
        })
    }

    fn entry_key(&self, key: &[u8]) -> Option<EntryKey> {
        keys::entry_key(self.scope.kind, &self.scope.cluster, self.source.info.cached, key).ok()
    }

    /// Passes one input to the state machine and sends the resulting commands to the committer.
    /// Puts of a list are sent once there are enough for a chunk. Waits while the committer's queue
    /// is full, which pauses reading.
    async fn feed(&mut self, input: Input) -> Result<Option<Request>, ConnectionError> {
        let is_page = matches!(input, Input::Page(_));
        let budget = self.context.decoded.reserve(decoded_bytes(&input)).await;
        let step = self.state.resync.step(input);
        for reason in &step.unreadable_keys {
            let Scope { cluster, kind } = &self.scope;
            if let Some(LogPermit { more }) = REJECTED_KEY_LOG.permit(&format!("{cluster} {kind}")) {
                tracing::warn!(%cluster, %kind, reason, more, "rejected a key of cluster {cluster}: /v1/rejected lists all");
            }
        }
        self.report_unreadable();
        self.state.push(step.commands);
        self.update_expected_revision();
        if !is_page || !self.state.can_join_puts() {
            self.state.deliver(&self.context.commands).await?;
        }
        drop(budget);
        let synced = self.state.resync.is_synced();
        if self.state.resync.held_count() > 0 {
            self.state.held_since.get_or_insert_with(Instant::now);
        } else if synced {
            // after a reconnect, the held keys are known only once everything is read: until then
            // `held_since` stays set
            self.state.held_since = None;
        }
        if synced && !self.reported_synced {
            // a client that sees `synced` must find all entries in the mirror
            self.applied_mirror().await;
        }
        self.reported_synced = synced;
        self.report_state();
        Ok(step.request)
    }

    /// Reports the keys that are not entries, if they have changed.
    fn report_unreadable(&mut self) {
        let unreadable = self.state.resync.unreadable();
        if std::mem::replace(&mut self.reported_unreadable, unreadable.change_count()) != unreadable.change_count() {
            let refused = unreadable.iter().map(|(key, unreadable)| (key, &*unreadable.value, unreadable.reason.as_str()));
            self.context.reporter.set_refused_keys(self.scope.kind, refused);
        }
    }

    fn report_state(&self) {
        let kind = self.scope.kind;
        let awaits_canary = self.state.resync.awaits_canary();
        // some releases write no canary for a kind that their config disables
        // (docs/develop/protocol.md §12)
        let is_off = awaits_canary && self.publication == KindPublication::Disabled;
        let (synced, awaits_canary) = (is_off || self.state.resync.is_synced(), awaits_canary && !is_off);
        // after a reconnect or a restart, the held keys are known only once everything is read:
        // until then the last count stays
        if synced {
            self.context.reporter.set_held_count(kind, self.state.resync.held_count());
        }
        self.context.reporter.set_kind_state(kind, synced, awaits_canary);
    }

    fn change_status(&self, change: impl FnOnce(&mut crate::model::ResourceStatus)) {
        self.context.reporter.change_resource(self.scope.kind, change);
    }
}

//! One connection to one remote cluster, from opening it to the error that ends it.
//!
//! [`ClusterTask`] runs one [`ClusterConnection`] at a time. It reads the cluster config and then
//! runs one task per kind, as well as tasks for the heartbeat, the canaries and the status.

mod config;
mod missing;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{interval, interval_at, sleep};

use self::config::ReadConfig;
use super::{ClusterState, ClusterTask};
use crate::clustermesh::connection_error::ConnectionError;
use crate::clustermesh::resync::SourceInfo;
use crate::clustermesh::scope::{ScopeProgress, ScopeTask, SourceConnection};
use crate::clustermesh::timing::CONTACT_STORED_INTERVAL;
use crate::clustermesh::unknown::search_unknown_prefixes;
use crate::clustermesh::verification::Verifier;
use crate::instruments::OperationTrace;
use crate::model::{Command, Heartbeat, Kind, Phase, Scope, readable_error};
use crate::wire::{cluster_config, keys};
use cilium_kvstore::{Connection, Endpoint, EtcdConfig, Event, KeyValue, prefix_end};

/// Start of the intervals at which the clusters store the time of their last contact.
static CONTACT_STORED_FROM: LazyLock<Instant> = LazyLock::new(Instant::now);

#[derive(Debug)]
pub(super) struct ClusterConnection<'a> {
    pub(super) task: &'a ClusterTask,
    pub(super) file: &'a EtcdConfig,
    pub(super) endpoint: &'a Endpoint,
}

impl ClusterConnection<'_> {
    pub(super) async fn run(&self, state: &mut ClusterState) -> Result<Infallible, ConnectionError> {
        let reporter = &self.task.context.reporter;
        // set before the attempt, because users need it if the attempt fails
        reporter.change_status(|status| {
            status.endpoint = Some(self.endpoint.to_string());
            status.certificate_expiry = self.file.certificate_expiry();
        });
        // boxed, because this future is larger than all that follow
        let attempt = OperationTrace::start("connect to a cluster", || ("meshkeep.cluster", self.task.name.to_string()));
        let opened = Box::pin(Connection::open(self.file, self.endpoint, &self.task.options.client)).await;
        attempt.end(opened.as_ref().err().map(readable_error).as_ref());
        let connection = opened.inspect_err(|_| {
            reporter.forget_missing_config();
            reporter.enter_connecting();
        })?;
        reporter.record_contact();
        reporter.change_status(|status| status.etcd_cluster_id = Some(connection.etcd_cluster_id()));
        reporter.enter_phase(Phase::ReadingConfig);
        let (heartbeat_sender, heartbeat) = watch::channel(None);
        let heartbeat_task = self.watch_heartbeat(&connection, heartbeat_sender);
        let main = async {
            let read = self.read_config(&connection, state).await?;
            self.accept_config(read.config.as_ref(), state).await?;
            self.mirror(&connection, read, heartbeat, state).await
        };
        first_error([main.boxed(), heartbeat_task.boxed()]).await
    }

    /// Watches the heartbeat. If none arrives, the etcd or the connection to it is dead
    /// (docs/develop/protocol.md §3.10).
    async fn watch_heartbeat(
        &self,
        connection: &Connection,
        heartbeat_sender: watch::Sender<Option<Instant>>,
    ) -> Result<Infallible, ConnectionError> {
        // a prefix range, as Cilium's roles allow it: cilium/.heartbeat to cilium/.heartbeau
        let key = keys::HEARTBEAT.as_bytes();
        let (current, mut follow) = connection.follow(key, Some(&prefix_end(key))).await?;
        if !current.is_empty() {
            heartbeat_sender.send_replace(Some(Instant::now()));
        }
        let reporter = &self.task.context.reporter;
        let newest = current.iter().max_by_key(|key_value| key_value.mod_revision);
        reporter.record_writer_connection(newest.map(|key_value| heartbeat(connection, key_value)));
        if reporter.is_writer_silent() {
            self.report_etcd_errors(connection).await;
        }
        let silence = self.task.options.timing.cluster.heartbeat_silence;
        let mut listened_at_heartbeat = follow.listened();
        loop {
            // only time in which the stream was read counts: a heartbeat may be queued behind
            // changes while the committer's queue is full
            let remaining = silence.saturating_sub(follow.listened().saturating_sub(listened_at_heartbeat));
            tokio::select! {
                biased;
                events = follow.next() => {
                    reporter.record_contact();
                    let puts = events?.into_iter().filter_map(|event| if let Event::Put(put) = event { Some(put) } else { None });
                    if let Some(put) = puts.last() {
                        listened_at_heartbeat = follow.listened();
                        reporter.record_heartbeat(heartbeat(connection, &put));
                        heartbeat_sender.send_replace(Some(Instant::now()));
                    }
                }
                () = sleep(remaining) => if remaining.is_zero() {
                    self.report_etcd_errors(connection).await;
                    return Err(ConnectionError::Cluster(format!("no heartbeat for {silence:?}")));
                }
            }
        }
    }

    /// Reports the alarms and errors of a silent writer's etcd: an etcd with the alarm `NOSPACE` or
    /// `CORRUPT` answers reads and refuses every write.
    async fn report_etcd_errors(&self, connection: &Connection) {
        let reporter = &self.task.context.reporter;
        match connection.etcd_errors().await {
            Ok(errors) => reporter.set_etcd_errors(errors),
            Err(error) => {
                tracing::debug!(cluster = %self.task.name, %error, "the etcd of cluster {} does not report its status", self.task.name)
            }
        }
    }

    pub(super) async fn store_record(&self, state: &mut ClusterState) -> Result<(), ConnectionError> {
        state.record.last_contact = self.task.context.reporter.last_contact_time();
        self.send(Command::StoreCluster { cluster: self.task.name.clone(), record: state.record.clone() }).await
    }

    pub(super) async fn send(&self, command: Command) -> Result<(), ConnectionError> {
        self.task.context.commands.send(command).await.map_err(|_| ConnectionError::Stopping)
    }

    async fn mirror(
        &self,
        connection: &Connection,
        read: ReadConfig,
        heartbeat: watch::Receiver<Option<Instant>>,
        state: &mut ClusterState,
    ) -> Result<Infallible, ConnectionError> {
        self.task.context.reporter.enter_phase(Phase::Listing);
        let config = read.config.as_ref().map(|(config, _)| config.clone()).unwrap_or_default();
        let info = SourceInfo {
            etcd_cluster_id: connection.etcd_cluster_id(),
            cached: config.cached,
            canaries: config.synced_canaries,
            cluster_id: config.id,
            max_connected_clusters: self.task.options.max_connected_clusters,
        };
        let source = SourceConnection { connection: connection.clone(), info, heartbeat };
        let (canary_senders, canaries): (Vec<_>, Vec<_>) = Kind::ALL.iter().map(|_| watch::channel(None)).unzip();
        let scopes = Kind::ALL.map(|_| Arc::new(ScopeProgress::default()));
        let kinds = state.kinds.iter_mut().zip(canaries).zip(Kind::ALL).map(|((state, canary), kind)| {
            let scope = Scope { cluster: self.task.name.clone(), kind };
            ScopeTask {
                scope,
                state,
                source: source.clone(),
                canary,
                context: &self.task.context,
                last_changes: None,
                reported_synced: false,
                reported_unreadable: 0,
                publication: cluster_config::kind_publication(kind, &config),
                progress: Arc::clone(&scopes[kind.index()]),
                expired_leases: BTreeSet::new(),
            }
            .run()
            .boxed()
        });
        let publications = Kind::ALL.map(|kind| cluster_config::kind_publication(kind, &config));
        let (context, verification) = (&self.task.context, &mut state.verification);
        let verifier = Verifier::new(&self.task.name, source.clone(), context, scopes.to_vec(), publications, verification);
        let others = [
            verifier.run().boxed(),
            self.watch_canaries(&source, &canary_senders).boxed(),
            self.watch_config(read).boxed(),
            self.store_contact_time(state.record.clone()).boxed(),
            self.reduce_rate_when_synced(connection).boxed(),
            self.report_unanswered_progress(connection).boxed(),
            search_unknown_prefixes(&source, &self.task.context.reporter, self.task.options.timing.cluster.unknown_prefix_interval).boxed(),
        ];
        first_error(kinds.chain(others)).await
    }

    /// Passes each canary and its changes to the task of its kind. A deleted canary does not stop
    /// the mirroring (docs/develop/protocol.md §3.4), but deletes are no longer trusted
    /// (invariant 4).
    async fn watch_canaries(
        &self,
        source: &SourceConnection,
        canary_senders: &[watch::Sender<Option<KeyValue>>],
    ) -> Result<Infallible, ConnectionError> {
        if !source.info.canaries {
            return std::future::pending().await;
        }
        let prefix = keys::synced_prefix(&self.task.name).into_bytes();
        let reporter = &self.task.context.reporter;
        let kind_of = |key: &[u8]| keys::canary_kind(key, &self.task.name, source.info.cached);
        let publish = |canary: KeyValue| {
            let kind = kind_of(&canary.key);
            if let Some((kind, sender)) = kind.and_then(|kind| Some((kind, canary_senders.get(kind.index())?))) {
                sender.send_replace(Some(canary));
                reporter.set_writer_key_missing(Some(kind), false);
            }
        };
        let (current, mut follow) = source.connection.follow(&prefix, Some(&prefix_end(&prefix))).await?;
        current.into_iter().for_each(publish);
        loop {
            for event in follow.next().await? {
                match event {
                    Event::Put(canary) => publish(canary),
                    Event::Delete { key, .. } => {
                        if let Some(kind) = kind_of(&key) {
                            reporter.set_writer_key_missing(Some(kind), true);
                        }
                    }
                }
            }
        }
    }

    /// Reduces the request rate once every kind is synced (`etcd.bootstrapQps`).
    async fn reduce_rate_when_synced(&self, connection: &Connection) -> Result<Infallible, ConnectionError> {
        self.task.context.reporter.wait_until_synced().await;
        connection.end_bootstrap();
        std::future::pending().await
    }

    /// Reports whether progress requests are answered, at the interval at which they are sent.
    async fn report_unanswered_progress(&self, connection: &Connection) -> Result<Infallible, ConnectionError> {
        let mut tick = interval(self.task.options.client.progress_interval);
        loop {
            tick.tick().await;
            self.task.context.reporter.set_progress_unanswered(connection.progress_is_unanswered().await);
        }
    }

    /// Stores the time of the last contact at intervals, so that ages survive a restart. All
    /// clusters store it at the same moment, because each write of the log has a fixed cost.
    async fn store_contact_time(&self, mut record: crate::model::ClusterRecord) -> Result<Infallible, ConnectionError> {
        let first = next_common_tick(*CONTACT_STORED_FROM, Instant::now(), CONTACT_STORED_INTERVAL);
        let mut tick = interval_at(first.into(), CONTACT_STORED_INTERVAL);
        loop {
            tick.tick().await;
            record.last_contact = self.task.context.reporter.last_contact_time();
            self.send(Command::StoreCluster { cluster: self.task.name.clone(), record: record.clone() }).await?;
        }
    }
}

/// Returns the first time after `now` that is a multiple of the interval after `start`.
fn next_common_tick(start: Instant, now: Instant, interval: Duration) -> Instant {
    let elapsed = now.saturating_duration_since(start);
    let since_tick = elapsed.as_nanos() % interval.as_nanos();
    now + interval - Duration::from_nanos(u64::try_from(since_tick).unwrap_or_default())
}

/// Returns the heartbeat in a key. Its value is the time in RFC 3339 (`pkg/kvstore/heartbeat`).
fn heartbeat(connection: &Connection, key_value: &KeyValue) -> Heartbeat {
    let written = std::str::from_utf8(&key_value.value).ok().and_then(|text| text.trim().parse::<jiff::Timestamp>().ok());
    Heartbeat {
        etcd_cluster_id: connection.etcd_cluster_id(),
        revision: key_value.mod_revision,
        written: written.map(jiff::Timestamp::as_second),
    }
}

/// Runs all futures until one fails. Unlike a join, it polls a future only when that future is
/// woken: usually a dozen are idle while one has all the changes.
async fn first_error<'a>(
    all: impl IntoIterator<Item = BoxFuture<'a, Result<Infallible, ConnectionError>>>,
) -> Result<Infallible, ConnectionError> {
    let mut all: FuturesUnordered<_> = all.into_iter().collect();
    match all.next().await {
        Some(failed) => failed,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;

    #[test]
    fn connections_that_begin_at_different_times_have_common_ticks() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let ticks = [0.0, 1.0, 29.9, 30.0, 30.1, 95.0].map(|elapsed| {
            let next = next_common_tick(start, start + Duration::from_secs_f64(elapsed), 30 * second);
            next.duration_since(start).as_secs()
        });
        assert_eq!(ticks, [30, 30, 30, 60, 60, 120]);
    }

    #[tokio::test]
    async fn a_busy_task_does_not_wake_an_idle_task() {
        let polls = AtomicUsize::new(0);
        let idle = poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            Poll::Pending
        });
        let busy = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            Err(ConnectionError::Stopping)
        };
        assert!(matches!(first_error([idle.boxed(), busy.boxed()]).await, Err(ConnectionError::Stopping)));
        assert_eq!(polls.into_inner(), 1);
    }
}

//! One connection to one remote cluster, from the first byte to the error that ends it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Instant;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::watch;
use tokio::time::{interval, sleep, sleep_until};

use super::{ClusterTask, Memory};
use crate::clustermesh::failure::AttemptError;
use crate::clustermesh::resync::Source;
use crate::clustermesh::scope::{Link, ScopeTask};
use crate::clustermesh::timing::CONTACT_STORED_INTERVAL;
use crate::clustermesh::unknown::look_for_unknown_prefixes;
use crate::kvstore::{ClientFile, Connection, Endpoint, Event, Follow, KeyValue, prefix_end};
use crate::model::{ClusterConfig, Command, DeleteReason, Heartbeat, Kind, Phase, Scope};
use crate::wire::cluster_config::{validate_cluster_config, validate_own_config};
use crate::wire::{cluster_config, keys};

/// One connection attempt.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    pub(super) task: &'a ClusterTask,
    pub(super) file: &'a ClientFile,
    pub(super) endpoint: &'a Endpoint,
}

/// The cluster config as it was read, and how its key goes on.
struct ReadConfig {
    /// `None`: the cluster has none and is read as legacy.
    config: Option<(ClusterConfig, KeyValue)>,
    follow: Follow,
}

impl Attempt<'_> {
    /// Runs until something fails.
    pub(super) async fn run(&self, memory: &mut Memory) -> Result<Infallible, AttemptError> {
        let reporter = &self.task.surroundings.reporter;
        // before the attempt: where it fails, this is what people want to know
        reporter.change(|status| {
            status.endpoint = Some(self.endpoint.to_string());
            status.certificate_expiry = self.file.certificate_expiry();
        });
        // boxed, as it takes more room than all that follows
        let connection = Box::pin(Connection::open(self.file, self.endpoint, &self.task.options.client)).await?;
        reporter.contact();
        reporter.change(|status| status.etcd_cluster_id = Some(connection.etcd_cluster_id()));
        reporter.phase(Phase::ReadingConfig);
        let (heartbeat_sender, heartbeat) = watch::channel(None);
        let heartbeat_task = self.watch_heartbeat(&connection, heartbeat_sender);
        let main = async {
            let read = self.read_config(&connection, memory.record.config.is_some()).await?;
            self.accept(read.config.as_ref(), memory).await?;
            self.mirror(&connection, read, heartbeat, memory).await
        };
        first_error([main.boxed(), heartbeat_task.boxed()]).await
    }

    /// Follows the heartbeat; its silence means that the etcd, or the way to it, is dead (§3.10).
    async fn watch_heartbeat(&self, connection: &Connection, beat: watch::Sender<Option<Instant>>) -> Result<Infallible, AttemptError> {
        // a prefix range, as Cilium's roles allow it: cilium/.heartbeat to cilium/.heartbeau
        let key = keys::HEARTBEAT.as_bytes();
        let (found, mut follow) = connection.follow(key, Some(&prefix_end(key))).await?;
        if !found.is_empty() {
            beat.send_replace(Some(Instant::now()));
        }
        let reporter = &self.task.surroundings.reporter;
        let newest = found.iter().max_by_key(|found| found.mod_revision);
        reporter.writer_connected(newest.map(|found| heartbeat(connection, found)));
        if reporter.is_writer_silent() {
            self.report_etcd_errors(connection).await;
        }
        let silence = self.task.options.timing.heartbeat_silence;
        let mut heard = follow.listened();
        loop {
            // a heartbeat may wait behind changes that our writer has no time for
            let left = silence.saturating_sub(follow.listened().saturating_sub(heard));
            tokio::select! {
                biased;
                events = follow.next() => {
                    reporter.contact();
                    let puts = events?.into_iter().filter_map(|event| if let Event::Put(put) = event { Some(put) } else { None });
                    if let Some(put) = puts.last() {
                        heard = follow.listened();
                        reporter.heartbeat(heartbeat(connection, &put));
                        beat.send_replace(Some(Instant::now()));
                    }
                }
                () = sleep(left) => if left.is_zero() {
                    self.report_etcd_errors(connection).await;
                    return Err(AttemptError::Cluster(format!("no heartbeat for {silence:?}")));
                }
            }
        }
    }

    /// Asks the etcd of a silent writer what is wrong with it: an etcd in `NOSPACE` or `CORRUPT` answers reads and refuses every write.
    async fn report_etcd_errors(&self, connection: &Connection) {
        let reporter = &self.task.surroundings.reporter;
        match connection.etcd_errors().await {
            Ok(errors) => reporter.etcd_errors(errors),
            Err(error) => tracing::debug!(cluster = %self.task.name, %error, "the etcd does not report its status"),
        }
    }

    /// Waits for a usable cluster config. A cluster that never had one is read without after a while (invariant 3).
    async fn read_config(&self, connection: &Connection, had_config: bool) -> Result<ReadConfig, AttemptError> {
        let reporter = &self.task.surroundings.reporter;
        let key = keys::cluster_config_key(&self.task.name);
        let (found, mut follow) = connection.follow(key.as_bytes(), None).await?;
        // one that cannot be used is one all the same: such a cluster is not a legacy one
        let mut is_there = !found.is_empty();
        if let Some(config) = found.into_iter().next().and_then(|found| self.parse_config(found)) {
            return Ok(ReadConfig { config: Some(config), follow });
        }
        let wait = self.task.options.timing.legacy_wait;
        if !is_there {
            reporter.config_refused(None);
            let reason =
                if had_config { "its data is kept as it is until then" } else { "without one it is read as a legacy cluster in a while" };
            reporter.waiting(Phase::ReadingConfig, &format!("waiting for {key}: {reason}"));
            reporter.change(|status| {
                status.config_gone = had_config;
                status.connected = !had_config;
            });
        }
        let deadline = Instant::now() + wait;
        loop {
            tokio::select! {
                events = follow.next() => {
                    let events = events?;
                    is_there = events.last().map_or(is_there, |event| matches!(event, Event::Put(_)));
                    let newest = events.into_iter().filter_map(|event| match event {
                        Event::Put(put) => self.parse_config(put),
                        Event::Delete { .. } => {
                            reporter.config_refused(None);
                            None
                        }
                    });
                    if let Some(config) = newest.last() {
                        return Ok(ReadConfig { config: Some(config), follow });
                    }
                }
                () = sleep_until(deadline.into()) => {
                    if had_config || is_there {
                        let problem = if is_there { "could not be used for" } else { "did not come within" };
                        return Err(AttemptError::Cluster(format!("{key} {problem} {wait:?}: what is held of the cluster stays as it is")));
                    }
                    return Ok(ReadConfig { config: None, follow });
                }
            }
        }
    }

    fn parse_config(&self, found: KeyValue) -> Option<(ClusterConfig, KeyValue)> {
        match cluster_config::parse_cluster_config(&found.value) {
            Ok(config) => Some((config, found)),
            Err(reason) => {
                let key = keys::cluster_config_key(&self.task.name);
                self.task.surroundings.reporter.waiting(Phase::ReadingConfig, &format!("{key} cannot be used: {reason}"));
                self.task.surroundings.reporter.config_refused(Some((&found.value, &reason)));
                None
            }
        }
    }

    /// Validates the cluster config, takes its id, and drains what was held under another id (§3.3, step 6).
    async fn accept(&self, read: Option<&(ClusterConfig, KeyValue)>, memory: &mut Memory) -> Result<(), AttemptError> {
        let reporter = &self.task.surroundings.reporter;
        if let Some((config, found)) = read {
            let refuse = |reason: String| {
                reporter.config_refused(Some((&found.value, &reason)));
                reason
            };
            let options = &self.task.options;
            reporter.change(|status| {
                status.claimed_id = Some(config.id);
                status.config_gone = false;
            });
            let validate = if options.local.as_ref() == Some(&self.task.name) { validate_own_config } else { validate_cluster_config };
            validate(config, options.own_id, options.max_connected_clusters)
                .map_err(|reason| AttemptError::Cluster(format!("cluster config of {} refused: {}", self.task.name, refuse(reason))))?;
            let old_id = memory.record.config.as_ref().map(|config| config.id);
            if let Some(old_id) = old_id.filter(|old_id| *old_id != config.id) {
                tracing::warn!(cluster = %self.task.name, %old_id, new_id = %config.id, "the cluster id changed: removing what was held");
                reporter.phase(Phase::Draining);
                self.send(Command::Remove { cluster: self.task.name.clone(), reason: DeleteReason::Deleted }).await?;
                memory.forget();
                Kind::ALL.into_iter().for_each(|kind| reporter.holds(kind, 0));
                self.task.ids.release(&self.task.name);
                memory.record.config = None;
            }
            self.task.ids.reserve(config.id, &self.task.name).map_err(|error| AttemptError::Cluster(refuse(error.to_string())))?;
            memory.record.config = Some(config.clone());
        }
        reporter.change(|status| {
            status.config.clone_from(&memory.record.config);
            status.config_retrieved = read.is_some();
            status.connected = true;
        });
        reporter.config_refused(None);
        self.store_record(memory).await
    }

    async fn store_record(&self, memory: &mut Memory) -> Result<(), AttemptError> {
        memory.record.last_contact = self.task.surroundings.reporter.last_contact_time();
        self.send(Command::Remember { cluster: self.task.name.clone(), record: memory.record.clone() }).await
    }

    async fn send(&self, command: Command) -> Result<(), AttemptError> {
        self.task.surroundings.commands.send(command).await.map_err(|_| AttemptError::Stopping)
    }

    /// Reads every kind until something fails.
    async fn mirror(
        &self,
        connection: &Connection,
        read: ReadConfig,
        heartbeat: watch::Receiver<Option<Instant>>,
        memory: &mut Memory,
    ) -> Result<Infallible, AttemptError> {
        self.task.surroundings.reporter.phase(Phase::Listing);
        let config = read.config.as_ref().map(|(config, _)| config.clone()).unwrap_or_default();
        let source = Source {
            etcd_cluster_id: connection.etcd_cluster_id(),
            cached: config.cached,
            canaries: config.synced_canaries,
            cluster_id: config.id,
            max_connected_clusters: self.task.options.max_connected_clusters,
        };
        let link = Link { connection: connection.clone(), source, heartbeat };
        let (canary_senders, canaries): (Vec<_>, Vec<_>) = Kind::ALL.iter().map(|_| watch::channel(None)).unzip();
        let kinds = memory.kinds.iter_mut().zip(canaries).zip(Kind::ALL).map(|((memory, canary), kind)| {
            let scope = Scope { cluster: self.task.name.clone(), kind };
            ScopeTask {
                scope,
                memory,
                link: link.clone(),
                canary,
                surroundings: &self.task.surroundings,
                changed: None,
                told_synced: false,
                told_unreadable: 0,
                reading: cluster_config::reading_of(kind, &config),
                gone_leases: BTreeSet::new(),
            }
            .run()
            .boxed()
        });
        let others = [
            self.watch_canaries(&link, &canary_senders).boxed(),
            self.watch_config(read).boxed(),
            self.keep_record(memory.record.clone()).boxed(),
            self.slow_down(connection).boxed(),
            self.look_at_progress(connection).boxed(),
            look_for_unknown_prefixes(&link, &self.task.surroundings.reporter, self.task.options.timing.unknown_prefix_interval).boxed(),
        ];
        first_error(kinds.chain(others)).await
    }

    /// Tells each kind of its canary, and of each change of it. A canary that is deleted stops nothing (§3.4): it only means that deletes
    /// are not believed any more (invariant 4).
    async fn watch_canaries(&self, link: &Link, kinds: &[watch::Sender<Option<KeyValue>>]) -> Result<Infallible, AttemptError> {
        if !link.source.canaries {
            return std::future::pending().await;
        }
        let prefix = keys::synced_prefix(&self.task.name).into_bytes();
        let reporter = &self.task.surroundings.reporter;
        let kind_of = |key: &[u8]| keys::canary_kind(key, &self.task.name, link.source.cached);
        let tell = |canary: KeyValue| {
            let kind = kind_of(&canary.key);
            if let Some((kind, sender)) = kind.and_then(|kind| Some((kind, kinds.get(kind.place())?))) {
                sender.send_replace(Some(canary));
                reporter.sign(Some(kind), false);
            }
        };
        let (found, mut follow) = link.connection.follow(&prefix, Some(&prefix_end(&prefix))).await?;
        found.into_iter().for_each(tell);
        loop {
            for event in follow.next().await? {
                match event {
                    Event::Put(canary) => tell(canary),
                    Event::Delete { key, .. } => {
                        if let Some(kind) = kind_of(&key) {
                            reporter.sign(Some(kind), true);
                        }
                    }
                }
            }
        }
    }

    /// Any change of the cluster config means a new connection (`clustercfg.go`). Its deletion ends nothing; deletes are not believed
    /// any more (invariant 4).
    async fn watch_config(&self, mut read: ReadConfig) -> Result<Infallible, AttemptError> {
        let reporter = &self.task.surroundings.reporter;
        loop {
            for event in read.follow.next().await? {
                let Event::Put(put) = event else {
                    reporter.sign(None, read.config.is_some());
                    reporter.config_refused(None);
                    continue;
                };
                reporter.sign(None, false);
                let known = read.config.as_ref().is_some_and(|(_, known)| known.value == put.value);
                match cluster_config::parse_cluster_config(&put.value) {
                    Ok(_) if known => reporter.config_refused(None),
                    Ok(_) => return Err(AttemptError::Cluster("the cluster config changed".to_owned())),
                    // one that cannot be read changes nothing (`clustercfg.go`), and is told
                    Err(reason) => reporter.config_refused(Some((&put.value, &reason))),
                }
            }
        }
    }

    /// Tells the connection once everything is read (`etcd.bootstrapQps`).
    async fn slow_down(&self, connection: &Connection) -> Result<Infallible, AttemptError> {
        self.task.surroundings.reporter.all_read().await;
        connection.caught_up();
        std::future::pending().await
    }

    /// Tells whether questions for progress are answered, as often as they are asked.
    async fn look_at_progress(&self, connection: &Connection) -> Result<Infallible, AttemptError> {
        let mut tick = interval(self.task.options.client.progress_interval);
        loop {
            tick.tick().await;
            self.task.surroundings.reporter.progress_is(connection.progress_is_unanswered().await);
        }
    }

    /// Stores the time of the last contact now and then, so that ages survive a restart.
    async fn keep_record(&self, mut record: crate::model::ClusterRecord) -> Result<Infallible, AttemptError> {
        let mut tick = interval(CONTACT_STORED_INTERVAL);
        tick.tick().await;
        loop {
            tick.tick().await;
            record.last_contact = self.task.surroundings.reporter.last_contact_time();
            self.send(Command::Remember { cluster: self.task.name.clone(), record: record.clone() }).await?;
        }
    }
}

/// A heartbeat as it is compared with others; its value is the time in RFC 3339 (`pkg/kvstore/heartbeat`).
fn heartbeat(connection: &Connection, found: &KeyValue) -> Heartbeat {
    let written = std::str::from_utf8(&found.value).ok().and_then(|text| text.trim().parse::<jiff::Timestamp>().ok());
    Heartbeat {
        etcd_cluster_id: connection.etcd_cluster_id(),
        revision: found.mod_revision,
        written: written.map(jiff::Timestamp::as_second),
    }
}

/// Runs all until one fails. Each is polled only when something of its own has come, which joining them does not do: a dozen are idle while one
/// has all the changes.
async fn first_error<'a>(
    all: impl IntoIterator<Item = BoxFuture<'a, Result<Infallible, AttemptError>>>,
) -> Result<Infallible, AttemptError> {
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

    #[tokio::test]
    async fn an_idle_task_is_not_polled_for_what_comes_to_others() {
        let polls = AtomicUsize::new(0);
        let idle = poll_fn(|_| {
            polls.fetch_add(1, Ordering::Relaxed);
            Poll::Pending
        });
        let busy = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            Err(AttemptError::Stopping)
        };
        assert!(matches!(first_error([idle.boxed(), busy.boxed()]).await, Err(AttemptError::Stopping)));
        assert_eq!(polls.into_inner(), 1);
    }
}

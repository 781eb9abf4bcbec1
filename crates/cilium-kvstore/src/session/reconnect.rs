//! Connection loop of a session: connects, watches the heartbeat, checks the etcd's status, and
//! starts again when the connection ends.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use rand::Rng;
use tokio::time::{Instant, timeout};

use super::{CurrentConnection, EndpointStatus, Session, SessionState, SessionStatus, status_check_interval};
use crate::keys::{HEARTBEAT_PATH, INIT_LOCK_PATH};
use crate::{Backoff, Connection, Endpoint, EtcdClusterId, Event, FollowedRange, KvstoreError, Revision, prefix_end};

/// Wait after the first failed attempt to connect. Same as Cilium's wait after a failed list.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between attempts: the session uses a recovered etcd again within this time.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// Maximum time of one part of a status check (Cilium's `statusCheckTimeout`).
const CHECK_MAX: Duration = Duration::from_secs(10);
/// A connection that lasted this long resets the backoff.
const STABLE_CONNECTION: Duration = Duration::from_secs(10);

/// Etcd of the last connection, and its newest revision. Leases remain valid only if the next
/// connection reaches the same history.
#[derive(Default)]
struct EtcdHistory {
    id: Option<EtcdClusterId>,
    revision: Revision,
}

/// Keeps the session connected until it is closed.
pub(super) async fn run(shared: Arc<SessionState>) {
    let renew_keys = shared.key_leases.renew_until_dropped(|| shared.connection_state.borrow().connection.clone());
    let renew_locks = shared.lock_leases.renew_until_dropped(|| shared.connection_state.borrow().connection.clone());
    tokio::select! {
        () = shared.cancel.cancelled() => {}
        () = renew_keys => {}
        () = renew_locks => {}
        () = reconnect_forever(&shared) => {}
        () = shared.sweep_stale_locks() => {}
        () = shared.delete_abandoned_locks() => {}
    }
    shared.connection_state.send_replace(CurrentConnection::default());
}

async fn reconnect_forever(shared: &Arc<SessionState>) {
    let mut history = EtcdHistory::default();
    let mut backoff = Backoff::new(BACKOFF_MIN, BACKOFF_MAX);
    for attempt in 0_usize.. {
        let endpoints = shared.config.endpoints();
        let endpoint = &endpoints[attempt % endpoints.len()];
        let started = Instant::now();
        let error = connect_once(shared, endpoint, &mut history).await;
        shared.connection_state.send_replace(CurrentConnection { cause: Some(error.to_string()), ..CurrentConnection::default() });
        if started.elapsed() > STABLE_CONNECTION {
            backoff.reset();
        }
        let wait = backoff.next_wait();
        tracing::info!(endpoint = %endpoint, %error, wait_s = wait.as_secs_f64(), "lost the connection to etcd; reconnecting");
        tokio::time::sleep(wait).await;
    }
}

/// Opens one connection and uses it until it ends. Returns the error that ended it.
async fn connect_once(shared: &Arc<SessionState>, endpoint: &Endpoint, history: &mut EtcdHistory) -> KvstoreError {
    match open(shared, endpoint, history).await {
        Ok((connection, heartbeat)) => {
            let error = tokio::select! {
                error = follow_heartbeat(shared, heartbeat, history) => error,
                error = status_checks(shared, &connection, endpoint) => error,
            };
            history.revision = history.revision.max(connection.newest_revision());
            error
        }
        Err(error) => error,
    }
}

async fn open(shared: &SessionState, endpoint: &Endpoint, history: &mut EtcdHistory) -> Result<(Connection, FollowedRange), KvstoreError> {
    let connection = Connection::open(&shared.config, endpoint, &shared.options.client).await?;
    if shared.bootstrap_ended.load(Ordering::Relaxed) {
        connection.end_bootstrap();
    }
    history.compare(shared, &connection);
    let key = HEARTBEAT_PATH.as_bytes();
    let (key_values, heartbeat) = connection.follow(key, Some(&prefix_end(key))).await?;
    if !key_values.is_empty() {
        record_heartbeat(shared);
    }
    if shared.options.quorum_check {
        shared.lock_leases.lease_for(&connection, INIT_LOCK_PATH.as_bytes()).await?;
    }
    shared.connection_state.send_replace(CurrentConnection { connection: Some(connection.clone()), ready: true, cause: None });
    // a wiped etcd has none of the leases; the renewals show this at once
    shared.key_leases.renew_all();
    shared.lock_leases.renew_all();
    Ok((connection, heartbeat))
}

impl EtcdHistory {
    /// Checks whether this connection has the history of the last connection. If not, all leases
    /// are lost.
    fn compare(&mut self, shared: &SessionState, connection: &Connection) {
        let (id, revision) = (connection.etcd_cluster_id(), connection.newest_revision());
        if self.id.is_some_and(|last_id| last_id != id) || revision < self.revision {
            tracing::warn!(%id, revision = revision.0, before = self.revision.0, "this etcd has another history: all leases are lost");
            shared.key_leases.mark_all_lost();
            shared.lock_leases.mark_all_lost();
        }
        (self.id, self.revision) = (Some(id), revision);
    }
}

/// Follows the heartbeat. Its watch also reports a broken connection at once.
async fn follow_heartbeat(shared: &SessionState, mut heartbeat: FollowedRange, history: &mut EtcdHistory) -> KvstoreError {
    loop {
        match heartbeat.next().await {
            Ok(events) => {
                for event in &events {
                    history.revision = history.revision.max(event.mod_revision());
                    if matches!(event, Event::Put(_)) {
                        record_heartbeat(shared);
                    }
                }
            }
            Err(error) => return error,
        }
    }
}

fn record_heartbeat(shared: &SessionState) {
    update_status(shared, |status| status.heartbeat_at = Some(SystemTime::now()));
}

/// Repeats the status checks. Returns when the connection is unusable.
async fn status_checks(shared: &Arc<SessionState>, connection: &Connection, connected_endpoint: &Endpoint) -> KvstoreError {
    let mut quorum_errors = 0;
    loop {
        let endpoints =
            if shared.options.endpoint_check { check_endpoints(shared, connection, connected_endpoint).await } else { Vec::new() };
        let healthy = endpoints.iter().filter(|endpoint| endpoint.version.is_ok()).count();
        let all_healthy = healthy == endpoints.len();
        let quorum = if shared.options.quorum_check { check_quorum(shared).await } else { Ok(()) };
        quorum_errors = if quorum.is_ok() { 0 } else { quorum_errors + 1 };
        let quorum_error = quorum.err();
        update_status(shared, |status| {
            status.endpoints.clone_from(&endpoints);
            status.quorum_errors = quorum_errors;
            status.quorum_error.clone_from(&quorum_error);
        });
        if let Some(error) = quorum_error.filter(|_| quorum_errors > shared.options.quorum_errors_max) {
            return KvstoreError::NotConnected { operation: "checking etcd's quorum".into(), cause: Some(error) };
        }
        if healthy == 0 && shared.options.endpoint_check {
            let cause = endpoints.into_iter().find_map(|endpoint| endpoint.version.err());
            return KvstoreError::NotConnected { operation: "not able to connect to any etcd endpoints".into(), cause };
        }
        let nodes = shared.options.cluster_size.as_ref().map_or(0, |size| size());
        tokio::time::sleep(status_check_interval(nodes, all_healthy && quorum_errors == 0)).await;
    }
}

/// Requests the status of each endpoint, over the existing connection or, for the other endpoints,
/// over a temporary one.
async fn check_endpoints(shared: &SessionState, connection: &Connection, connected_endpoint: &Endpoint) -> Vec<EndpointStatus> {
    let mut statuses = Vec::new();
    for endpoint in shared.config.endpoints() {
        let request = async {
            if endpoint == connected_endpoint {
                return connection.member_status().await;
            }
            Connection::open(&shared.config, endpoint, &shared.options.client).await?.member_status().await
        };
        let answer = timeout(CHECK_MAX, request).await;
        let answer =
            answer.unwrap_or_else(|_| Err(KvstoreError::Timeout { operation: "reading the member's status".into(), limit: CHECK_MAX }));
        let endpoint = endpoint.to_string();
        statuses.push(match answer {
            Ok(status) => EndpointStatus {
                endpoint,
                is_leader: status.header.as_ref().is_some_and(|header| header.member_id == status.leader),
                database_bytes: u64::try_from(status.db_size).unwrap_or(0),
                version: Ok(status.version),
            },
            // a role that may write keys may not be allowed to request the status; the refusal
            // still proves that the endpoint answers
            Err(KvstoreError::PermissionDenied { .. }) => {
                EndpointStatus { endpoint, version: Ok("unknown (permission denied)".into()), is_leader: false, database_bytes: 0 }
            }
            Err(error) => EndpointStatus { endpoint, version: Err(error.to_string()), is_leader: false, database_bytes: 0 },
        });
    }
    statuses
}

/// Locks an unused path and unlocks it, which needs a quorum. If this is interrupted, the lock's
/// key is deleted like that of any dropped lock.
async fn check_quorum(shared: &Arc<SessionState>) -> Result<(), String> {
    let path = format!("{INIT_LOCK_PATH}/{:x}", rand::rng().random::<u64>());
    let session = Session { shared: Arc::clone(shared) };
    match timeout(CHECK_MAX, async { session.lock(path.as_bytes(), false).await?.unlock().await }).await {
        Ok(Ok(())) => Ok(()),
        // the role does not permit this key: etcd answers, but the quorum cannot be checked
        Ok(Err(KvstoreError::PermissionDenied { .. })) => Ok(()),
        Ok(Err(error)) => Err(format!("unable to acquire lock: {error}")),
        Err(_) => Err("lock timeout".into()),
    }
}

fn update_status(shared: &SessionState, change: impl FnOnce(&mut SessionStatus)) {
    change(&mut shared.status.lock().unwrap_or_else(PoisonError::into_inner));
}

//! Fixture of the API tests: the HTTP API over a mesh of two clusters. `paris` is live and read
//! from a KVStoreMesh. `tokyo` has no client file and is only restored.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::admission::{ScanExecutor, ScanLimits};
use crate::api::events::{ChangeRouter, ConflationPolicy};
use crate::api::guard::{AllowedHosts, Guard};
use crate::api::router::router;
use crate::api::state::ApiState;
use crate::commit::{
    CommandSender, Committer, DecodedBudget, MirrorSnapshot, PersistState, Persistence, SnapshotReceiver, command_queue, persister,
    snapshot_channel,
};
use crate::feed::{Feed, Retention};
use crate::findings::{self, FindingIndexHandle};
use crate::handle::{ClientFileLocation, ClusterStatuses, FindingIndex, FindingSender, Handle, Measurement, ProcessState, StoreReport};
use crate::history::{HistoryOptions, HistoryReader, history};
use crate::model::*;
use crate::store::{Group, StoreError};
use crate::view::{ChangeSet, View};

/// Sequence of the newest change of [`ApiFixture::new`].
pub(in crate::api) const HEAD: u64 = 113;

/// Epoch of the start, unless a test chooses one.
const EPOCH: Epoch = Epoch(0xfeed);

const RETENTION: Retention = Retention { age_max: Duration::from_secs(3600), count_max: 1000 };

/// The HTTP API over the mesh, and the command queue of its writer.
pub(in crate::api) struct ApiFixture {
    pub(in crate::api) handle: Handle,
    pub(in crate::api) stop: CancellationToken,
    pub(in crate::api) router: Router,
    pub(in crate::api) scans: ScanExecutor,
    commands: CommandSender,
    tasks: JoinSet<()>,
    loaded: watch::Sender<Option<SnapshotReceiver>>,
    statuses: watch::Sender<ClusterStatuses>,
    pub(in crate::api) directory: watch::Sender<DirectoryState>,
    pub(in crate::api) persistence: watch::Sender<PersistState>,
    history: Option<HistoryReader>,
}

/// An answer as a client sees it.
#[derive(Debug)]
pub(in crate::api) struct TestResponse {
    pub(in crate::api) status: StatusCode,
    pub(in crate::api) headers: HeaderMap,
    pub(in crate::api) bytes: Vec<u8>,
}

struct DiscardingStore;

impl Persistence for DiscardingStore {
    fn persist(&self, _: &Group) -> Result<(), StoreError> {
        Ok(())
    }
}

impl TestResponse {
    pub(in crate::api) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|_| String::from_utf8_lossy(&self.bytes).into_owned().into())
    }

    pub(in crate::api) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl ApiFixture {
    pub(in crate::api) fn new() -> Self {
        Self::with_view(mesh())
    }

    pub(in crate::api) fn with_view(view: View) -> Self {
        Self::with_own_cluster(view, None)
    }

    /// A meshkeep whose own cluster is this one.
    pub(in crate::api) fn with_own_cluster(view: View, own_cluster: Option<ClusterName>) -> Self {
        Self::build(view, own_cluster, paris_status(), EPOCH)
    }

    /// Builds a meshkeep with the usual mesh and this epoch.
    pub(in crate::api) fn of_start(epoch: Epoch) -> Self {
        Self::build(mesh(), None, paris_status(), epoch)
    }

    /// Builds a meshkeep in which the status of `paris` is changed.
    pub(in crate::api) fn with_paris_status(change: impl FnOnce(&mut ClusterStatus)) -> Self {
        let mut status = paris_status();
        change(&mut status);
        Self::build(mesh(), None, status, EPOCH)
    }

    /// A meshkeep that applied these commands, each at its time, and that has a history since then.
    pub(in crate::api) fn with_history(commands: impl IntoIterator<Item = (SystemTime, Command)>) -> Self {
        let mut view = View::starting_at(Sequence(0));
        view.collect_replaced();
        // without a thread that writes segments, all versions stay in memory
        let directory = tempfile::tempdir().unwrap();
        let options = HistoryOptions { age_max: Duration::from_hours(168), bytes_max: 1 << 30 };
        let (_, history) = history(directory.path(), options, |_| ());
        let mut feed = Feed::starting_at(view.sequence(), RETENTION);
        for (group, (time, command)) in (1..).zip(commands) {
            let after = view.sequence();
            let ChangeSet { announcements, replaced: records, .. } = view.apply(command, time);
            for announcement in announcements {
                feed.announce(announcement, time);
            }
            if view.sequence() > after {
                history.add_replaced(group, &ReplacedRecords { after, last: view.sequence(), times: vec![(after.next(), time)], records });
            }
        }
        let mut fixture = Self::build_with_feed((view, feed), None, paris_status(), EPOCH);
        fixture.handle.set_history(history.clone());
        fixture.history = Some(history);
        fixture
    }

    /// Deletes a key, as [`ApiFixture::change`] does, and adds its record to the history.
    pub(in crate::api) async fn delete_with_history(&self, key: &EntryKey, time: SystemTime) {
        let before = self.handle.try_reading().unwrap();
        let record = before.record(key).unwrap();
        self.change(Change::Delete { key: key.clone() }).await;
        self.add_end(record, (before.position().sequence, self.handle.try_reading().unwrap().position().sequence), time);
    }

    /// Adds the deletion of a key to the history only. The mirror still has the key, as a snapshot
    /// that was taken before the deletion.
    pub(in crate::api) fn delete_in_history(&self, key: &EntryKey, time: SystemTime) {
        let reading = self.handle.try_reading().unwrap();
        let head = reading.position().sequence;
        self.add_end(reading.record(key).unwrap(), (head, head.next()), time);
    }

    fn add_end(&self, record: Arc<Record>, (after, last): (Sequence, Sequence), time: SystemTime) {
        let records = [(last, ReplacedRecord { record, deleted: Some(DeleteReason::Deleted) })].into();
        self.history.as_ref().unwrap().add_replaced(last.0, &ReplacedRecords { after, last, times: vec![(last, time)], records });
    }

    fn build(view: View, own_cluster: Option<ClusterName>, status: ClusterStatus, epoch: Epoch) -> Self {
        let feed = Feed::starting_at(view.sequence(), RETENTION);
        Self::build_with_feed((view, feed), own_cluster, status, epoch)
    }

    fn build_with_feed((view, feed): (View, Feed), own_cluster: Option<ClusterName>, status: ClusterStatus, epoch: Epoch) -> Self {
        let reserved = Sequence(1 << 40);
        let (publisher, subscriber) =
            snapshot_channel(MirrorSnapshot { view: view.clone(), feed: feed.clone(), epoch, earlier_runs: Arc::default() });
        let (persister, _) = persister(DiscardingStore, watch::channel(PersistState::Healthy).0);
        let committer = Committer::new(MirrorSnapshot { view, feed, epoch, earlier_runs: Arc::default() }, publisher, persister, reserved);
        let (commands, receiver) = command_queue();
        std::thread::spawn(move || committer.run(receiver));
        let finding_sender = FindingSender::default();
        finding_sender.connect(commands.downgrade());
        let (loaded, loaded_receiver) = watch::channel(Some(subscriber));
        let status = watch::channel(status).1;
        let (statuses, statuses_receiver) = watch::channel(Arc::new(BTreeMap::from([(cluster("paris"), status)])));
        let (directory, directory_receiver) = watch::channel(DirectoryState { readable: true, ..DirectoryState::default() });
        let (persistence, persistence_receiver) = watch::channel(PersistState::Healthy);
        let handle = Handle::new(ProcessState {
            started: Instant::now(),
            loaded: loaded_receiver,
            clusters: statuses_receiver,
            directory: directory_receiver,
            own_cluster,
            max_connected_clusters: MaxConnectedClusters::Clusters255,
            persistence: persistence_receiver,
            store: watch::channel(StoreReport { restored_count: 3, ..StoreReport::default() }).1,
            lost_lines: Measurement::default(),
        })
        .with_finding_sender(finding_sender);
        let stop = CancellationToken::new();
        let state = ApiState::new(handle.clone(), stop.clone());
        let scans = state.scans.clone();
        let router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        Self { handle, stop, router, scans, commands, tasks: JoinSet::new(), loaded, statuses, directory, persistence, history: None }
    }

    /// Conflates changes in every tick: changes within some milliseconds are merged by key.
    pub(in crate::api) fn with_conflation(mut self) -> Self {
        let policy = ConflationPolicy { deliveries_min: 0, busy_deliveries_min: 0, delay_max: Duration::from_millis(10) };
        let change_router = ChangeRouter::new(self.handle.clone(), self.stop.clone(), policy);
        let state = ApiState::new(self.handle.clone(), self.stop.clone()).with(|shared| shared.change_router = change_router);
        self.router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        self
    }

    /// Uses this directory of client files.
    pub(in crate::api) fn with_cluster_files(mut self, files: ClientFileLocation) -> Self {
        self.handle = self.handle.with_cluster_files(files);
        let state = ApiState::new(self.handle.clone(), self.stop.clone());
        self.router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        self
    }

    /// Uses this budget for large decoded values.
    pub(in crate::api) fn with_decoded_budget(mut self, budget: DecodedBudget) -> Self {
        self.handle = self.handle.with_decoded_budget(budget);
        let state = ApiState::new(self.handle.clone(), self.stop.clone());
        self.router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        self
    }

    /// Exposes every metric.
    pub(in crate::api) fn with_all_metrics(mut self) -> Self {
        let state = ApiState::new(self.handle.clone(), self.stop.clone()).with(|shared| shared.all_metrics = true);
        self.router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        self
    }

    /// Uses slices and pages of this length.
    pub(in crate::api) fn with_scan_limits(mut self, limits: ScanLimits) -> Self {
        let state = ApiState::new(self.handle.clone(), self.stop.clone()).with(|shared| shared.scans = ScanExecutor::new(limits));
        self.scans = state.scans.clone();
        self.router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        self
    }

    /// Uses a finding index that the test sets.
    pub(in crate::api) fn with_finding_index(mut self) -> (Self, watch::Sender<Option<FindingIndex>>) {
        let (index, sender) = FindingIndexHandle::with_sender();
        let state = ApiState::new(self.handle.clone(), self.stop.clone()).with(|shared| shared.findings.index = index);
        self.router = router(state, Guard::new(AllowedHosts::new(&[], &[]), None));
        (self, sender)
    }

    /// Starts the task that publishes findings.
    pub(in crate::api) fn with_publisher(mut self) -> Self {
        let state = ApiState::new(self.handle.clone(), self.stop.clone());
        self.router = router(state.clone(), Guard::new(AllowedHosts::new(&[], &[]), None));
        self.tasks.spawn(findings::detect_findings(state.findings.clone()));
        self
    }

    /// Adds a history that begins two hours ago. Nothing has changed since.
    pub(in crate::api) fn add_history(&self) {
        // without a thread that writes segments, it stays in memory
        let directory = tempfile::tempdir().unwrap();
        let options = HistoryOptions { age_max: Duration::from_hours(24), bytes_max: 1 << 30 };
        let (_, reader) = history(directory.path(), options, |_| ());
        let mut replaced = ReplacedRecords::new(Sequence(0), Sequence(HEAD));
        replaced.times.push((Sequence(1), SystemTime::now() - Duration::from_hours(2)));
        reader.add_replaced(1, &replaced);
        self.handle.set_history(reader);
    }

    /// Sets the status of some clusters.
    pub(in crate::api) fn publish_statuses(&self, reported: impl IntoIterator<Item = (&'static str, ClusterStatus)>) {
        let reported = reported.into_iter().map(|(name, status)| (cluster(name), watch::channel(status).1));
        self.statuses.send_replace(Arc::new(reported.collect()));
    }

    /// Makes the store unavailable, as during loading.
    pub(in crate::api) fn unload(&self) {
        self.loaded.send_replace(None);
    }

    /// Changes the status of `paris`.
    pub(in crate::api) fn set_paris_status(&self, change: impl FnOnce(&mut ClusterStatus)) {
        let mut status = paris_status();
        change(&mut status);
        let status = watch::channel(status).1;
        self.statuses.send_replace(Arc::new(BTreeMap::from([(cluster("paris"), status)])));
    }

    pub(in crate::api) async fn send(&self, request: Request<Body>) -> TestResponse {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes().to_vec();
        TestResponse { status: parts.status, headers: parts.headers, bytes }
    }

    pub(in crate::api) async fn get(&self, uri: &str) -> TestResponse {
        self.send(Request::get(uri).body(Body::empty()).unwrap()).await
    }

    pub(in crate::api) async fn json(&self, uri: &str) -> Value {
        self.get(uri).await.json()
    }

    /// Sends the writer a change.
    pub(in crate::api) async fn send_change(&self, change: Change) {
        let key = match &change {
            Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key } => key,
        };
        let scope = Scope { cluster: key.cluster.clone(), kind: key.kind };
        self.command(Command::Apply { scope, changes: vec![change], cursor: None }).await;
    }

    /// Sends the writer a command.
    pub(in crate::api) async fn command(&self, command: Command) {
        self.commands.send(command).await.unwrap();
    }

    /// Sends the writer a change and waits until it is visible.
    pub(in crate::api) async fn change(&self, change: Change) {
        let mut signal = self.handle.signal().await.unwrap();
        signal.borrow_and_update();
        self.send_change(change).await;
        signal.changed().await.unwrap();
    }
}

pub(in crate::api) fn cluster(name: &str) -> ClusterName {
    ClusterName::parse(name).unwrap()
}

pub(in crate::api) fn key(kind: Kind, cluster_name: &str, name: &str) -> EntryKey {
    EntryKey::new(kind, cluster(cluster_name), name)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn labels(pairs: &[(&str, &str)]) -> LabelSet {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(in crate::api) fn node(name: &str, address: &str, zone: &str) -> Object {
    Object::Node(Box::new(Node {
        name: name.to_owned(),
        cluster_id: 1,
        addresses: vec![NodeAddress { address_type: "InternalIP".to_owned(), ip: ip(address) }],
        ipv4_pod_cidr: Some("10.1.2.0/24".parse().unwrap()),
        health_ips: vec![ip("10.1.2.134")],
        encryption_key: 7,
        labels: labels(&[("zone", zone)]),
        boot_id: "570d3fd1".to_owned(),
        ..Node::default()
    }))
}

pub(in crate::api) fn service() -> Object {
    let port = Port { name: "http".to_owned(), protocol: "TCP".to_owned(), port: 80 };
    let zone = BackendZone { zone: "a".to_owned(), for_zones: vec!["a".to_owned(), "b".to_owned()] };
    Object::Service(Service {
        namespace: "shop".to_owned(),
        name: "cart".to_owned(),
        cluster_id: 1,
        frontends: vec![Frontend { ip: ip("172.20.0.9"), ports: [port.clone()].into() }],
        backends: vec![Backend { ip: ip("10.1.2.40"), ports: [port].into(), hostname: "cart-0".to_owned(), zone: Some(zone) }],
        labels: labels(&[("app", "cart")]),
        selector: labels(&[("app", "cart")]),
        shared: true,
        include_external: true,
    })
}

pub(in crate::api) fn identity(id: u32, app: &str) -> Object {
    Object::Identity(Identity { id, labels: labels(&[("k8s:app", app), ("k8s:io.kubernetes.pod.namespace", "shop")]).into() })
}

pub(in crate::api) fn pod(address: &str, identity: u32, host: &str) -> Object {
    Object::Ip(IpEntry {
        prefix: ObjectPrefix { net: ip(address).into(), host: true },
        identity,
        host_ip: Some(ip(host)),
        encryption_key: 0,
        namespace: "shop".to_owned(),
        pod_name: "cart-0".to_owned(),
        pod_uid: String::new(),
        service_account: "cart".to_owned(),
        named_ports: vec![NamedPort { name: "http".to_owned(), port: 8080, protocol: "TCP".to_owned() }],
    })
}

fn range(net: &str, identity: u32) -> Object {
    Object::Ip(IpEntry::new(ObjectPrefix { net: net.parse().unwrap(), host: false }, identity))
}

pub(in crate::api) fn put(key: EntryKey, object: Object, revision: i64) -> Change {
    let source = SourceStamp { mod_revision: Revision(revision), lease: LeaseId(0), held: false };
    let value: Arc<[u8]> = format!("{object:?}").bytes().take(12).collect();
    Change::Put { key, value: [&*value, b" ", &revision.to_be_bytes()[7..]].concat().into(), decoded: Ok(Arc::new(object)), source }
}

/// Time of the last contact with both clusters: 2026-01-01 00:30 UTC.
fn contact_time() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_227_400)
}

fn paris_config() -> ClusterConfig {
    ClusterConfig { id: ClusterId(1), synced_canaries: true, cached: true, max_connected_clusters: 255, ..ClusterConfig::default() }
}

pub(in crate::api) fn paris_status() -> ClusterStatus {
    let now = Instant::now();
    let mut status = ClusterStatus::new(now);
    status.phase = Phase::Live;
    status.config = Some(paris_config());
    status.config_retrieved = true;
    status.etcd_cluster_id = Some(EtcdClusterId(0xabc));
    status.endpoint = Some("https://paris.mesh:2379".to_owned());
    status.last_contact = Some(now);
    status.last_contact_time = Some(contact_time());
    for kind in Kind::ALL {
        *status.resource_mut(kind) = ResourceStatus { synced: true, expected_count: Some(2), ..ResourceStatus::default() };
    }
    status
}

fn restored(key: EntryKey, object: Object, sequence: u64) -> Record {
    Record {
        key,
        value: b"restored".as_slice().into(),
        good_value: None,
        object: Some(Arc::new(object)),
        rejection: None,
        source: SourceStamp { mod_revision: Revision(5), lease: LeaseId(0), held: false },
        create_sequence: Sequence(sequence),
        last_sequence: Sequence(sequence),
        version: 1,
        generation: 0,
    }
}

pub(in crate::api) fn mesh() -> View {
    let mut view = View::starting_at(Sequence(99));
    view.apply(Command::Phase { cluster: cluster("paris"), phase: Phase::Live, cause: 0 }, SystemTime::now());
    view.restore_phase(cluster("tokyo"), Sequence(40));
    view.restore_cluster(cluster("tokyo"), ClusterRecord { config: None, last_contact: Some(contact_time()), ..ClusterRecord::default() });
    view.restore(restored(key(Kind::Node, "tokyo", "tokyo-worker-1"), node("tokyo-worker-1", "172.18.2.2", "b"), 41));
    view.restore(restored(key(Kind::Identity, "tokyo", "68352"), identity(68352, "cart"), 42));
    view.restore(restored(key(Kind::Ip, "tokyo", "10.1.2.40"), pod("10.1.2.40", 68352, "172.18.2.2"), 43));
    let nodes = view.keys_to_rederive();
    view.rederive(&nodes, SystemTime::now());
    let puts = [
        put(key(Kind::Identity, "paris", "68352"), identity(68352, "basket"), 11),
        put(key(Kind::Identity, "paris", "68353"), identity(68353, "till"), 12),
        put(key(Kind::Ip, "paris", "10.1.2.40"), pod("10.1.2.40", 68352, "172.18.1.2"), 13),
        put(key(Kind::Ip, "paris", "10.1.200.0/24"), range("10.1.200.0/24", 2), 14),
        put(key(Kind::Node, "paris", "paris-worker-1"), node("paris-worker-1", "172.18.1.2", "a"), 15),
        put(key(Kind::Service, "paris", "shop/cart"), service(), 16),
    ];
    let bad = Change::Put {
        key: key(Kind::Node, "paris", "paris-worker-2"),
        value: b"{".as_slice().into(),
        decoded: Err("not JSON: EOF while parsing an object".into()),
        source: SourceStamp { mod_revision: Revision(17), lease: LeaseId(0), held: false },
    };
    let now = SystemTime::now();
    for change in puts.into_iter().chain([bad]) {
        let scope = match &change {
            Change::Put { key, .. } | Change::Delete { key } | Change::Hold { key } => {
                Scope { cluster: key.cluster.clone(), kind: key.kind }
            }
        };
        let cursor = Cursor::new(EtcdClusterId(0xabc), Revision(20), true);
        view.apply(Command::Apply { scope: scope.clone(), changes: vec![change], cursor: Some(cursor) }, now);
        view.apply(Command::Confirm(scope), now);
    }
    // paris has no entries of these kinds, but both were read completely
    for kind in [Kind::EndpointSlice, Kind::ServiceExport] {
        view.apply(Command::Confirm(Scope { cluster: cluster("paris"), kind }), now);
    }
    let record = ClusterRecord { config: Some(paris_config()), last_contact: Some(contact_time()), ..ClusterRecord::default() };
    view.apply(Command::StoreCluster { cluster: cluster("paris"), record }, now);
    assert_eq!(view.sequence(), Sequence(HEAD));
    view
}

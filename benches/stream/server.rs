//! The server under test: the library's HTTP server with a committer that gets its changes from
//! this program, without etcd and store.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshkeep::internals::api::{ApiOptions, BoundApi};
use meshkeep::internals::commit::{
    CommandSender, Committer, MirrorSnapshot, PersistState, Persistence, command_queue, folder, persister, snapshot_channel,
};
use meshkeep::internals::feed::{Feed, Retention};
use meshkeep::internals::handle::{Handle, ProcessState};
use meshkeep::internals::model::{
    Change, ClusterName, Command, EntryKey, Epoch, IpEntry, Kind, ListenAddress, Object, ObjectPrefix, Revision, Scope, Sequence,
    SourceStamp,
};
use meshkeep::internals::store::{Group, StoreError};
use meshkeep::internals::view::View;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Outcome;
use super::child::{answer, now_us, number, orders};

struct DiscardingStore;

impl Persistence for DiscardingStore {
    fn persist(&self, _: &Group) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Sends consecutive changes of ipcache entries to the committer.
struct Feeder {
    commands: CommandSender,
    handle: Handle,
    cluster: ClusterName,
    /// Runtime that waits for capacity in the queue.
    queue_runtime: tokio::runtime::Runtime,
    /// Number of changes so far.
    count: u64,
}

/// Runs the server. It answers the orders `feed RATE SECONDS KEYS IDENTITIES` and `fill COUNT` with
/// the last position.
pub(crate) fn run() -> Outcome<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (handle, commands) = start_committer(runtime.handle().clone());
    let address = ListenAddress::parse("127.0.0.1:0")?;
    let bound = runtime.block_on(BoundApi::bind(&[address], &ApiOptions::default()))?;
    let url = bound.addresses().swap_remove(0);
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn_on(bound.serve(handle.clone(), CancellationToken::new(), Duration::ZERO), runtime.handle());
    let mut feeder =
        Feeder { commands, handle, cluster: ClusterName::parse("paris")?, queue_runtime: Builder::new_current_thread().build()?, count: 0 };
    answer(url.trim_start_matches("http://"));
    for words in orders() {
        match words.first().map(String::as_str) {
            Some("feed") => feeder.feed(number(&words, 1)?, number(&words, 2)?, number(&words, 3)?, number(&words, 4)?)?,
            Some("fill") => feeder.fill(number(&words, 1)?)?,
            _ => return Err(format!("unknown order {words:?}").into()),
        }
        answer(&feeder.reached());
    }
    Ok(())
}

fn start_committer(runtime: tokio::runtime::Handle) -> (Handle, CommandSender) {
    let retention = Retention { age_max: Duration::from_secs(86_400), count_max: 1_000_000 };
    let start = Sequence(1);
    let state = MirrorSnapshot {
        view: View::starting_at(start),
        feed: Feed::starting_at(start, retention),
        epoch: Epoch(0xbe),
        earlier_runs: std::sync::Arc::default(),
    };
    let (publisher, subscriber) = snapshot_channel(state.clone());
    let (persister, worker) = persister(DiscardingStore, watch::channel(PersistState::Healthy).0);
    std::thread::spawn(move || worker.run());
    let (fold, fold_worker) = folder();
    std::thread::spawn(move || fold_worker.run());
    let committer = Committer::new(state, publisher, persister, Sequence(1 << 40)).with_folder(fold, runtime);
    let (commands, receiver) = command_queue();
    std::thread::spawn(move || committer.run(receiver));
    let handle = Handle::new(ProcessState::without_clusters(watch::channel(Some(subscriber)).1));
    (handle, commands)
}

impl Feeder {
    fn change(&mut self, keys: u64, identities: u64) -> Change {
        self.count += 1;
        let index = u32::try_from(self.count % keys).unwrap_or(0);
        let address = std::net::Ipv4Addr::from((10 << 24) + index);
        let name = address.to_string();
        let object = Object::Ip(IpEntry {
            prefix: ObjectPrefix { net: std::net::IpAddr::from(address).into(), host: true },
            identity: 70_000 + index % u32::try_from(identities).unwrap_or(1).max(1),
            host_ip: Some(std::net::Ipv4Addr::new(172, 18, 1, 2).into()),
            encryption_key: 0,
            namespace: "shop".to_owned(),
            pod_name: format!("t{}", now_us()),
            pod_uid: String::new(),
            service_account: "cart".to_owned(),
            named_ports: Vec::new(),
        });
        let Object::Ip(entry) = &object else { unreachable!("it was made above") };
        // once the entry is packed, the object is decoded again from this value
        let value = format!(
            r#"{{"IP":"{address}","HostIP":"172.18.1.2","ID":{},"K8sNamespace":"shop","K8sPodName":"{}","K8sServiceAccount":"cart","Count":{}}}"#,
            entry.identity, entry.pod_name, self.count
        );
        let value: Arc<[u8]> = value.into_bytes().into();
        let source = SourceStamp { mod_revision: Revision(1 + i64::try_from(self.count).unwrap_or(0)), ..SourceStamp::default() };
        Change::Put { key: EntryKey::new(Kind::Ip, self.cluster.clone(), name), value, decoded: Ok(Arc::new(object)), source }
    }

    fn send(&self, changes: Vec<Change>) -> Outcome<()> {
        let scope = Scope { cluster: self.cluster.clone(), kind: Kind::Ip };
        Ok(self.queue_runtime.block_on(self.commands.send(Command::Apply { scope, changes, cursor: None }))?)
    }

    fn feed(&mut self, rate: u64, seconds: u64, keys: u64, identities: u64) -> Outcome<()> {
        let (began, first) = (Instant::now(), self.count);
        let total = rate * seconds;
        while self.count - first < total {
            let due = (u64::try_from(began.elapsed().as_micros())? * rate / 1_000_000).min(total);
            let missing = due.saturating_sub(self.count - first);
            if missing > 0 {
                let changes = (0..missing).map(|_| self.change(keys, identities)).collect();
                self.send(changes)?;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn fill(&mut self, count: u64) -> Outcome<()> {
        for _ in 0..count.div_ceil(256) {
            let changes = (0..256).map(|_| self.change(count, 1)).collect();
            self.send(changes)?;
        }
        Ok(())
    }

    /// Waits until all changes are visible, and returns the position.
    fn reached(&self) -> String {
        loop {
            let position = self.handle.try_reading().map(|reading| reading.position());
            if let Some(position) = position.filter(|position| position.sequence.0 > self.count) {
                return position.to_string();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

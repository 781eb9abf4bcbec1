//! Failures and restarts of the sidecar, its store and the etcds. Their order is random but seeded;
//! each action occurs once before any occurs again.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::sleep;

use super::checker::Target;
use super::churn::Sources;
use super::state::{LostEpochs, Position};
use crate::harness::eventually;
use crate::harness::meshkeep::{Home, Meshkeep, http};

/// Maximum number of tombstones. The churn deletes more keys than that (`DELETE_CHANCE`), so that a
/// client that stays away for long returns with an expired position.
pub(super) const TOMBSTONES_MAX: u32 = 300;

/// Time from the start of an action until the sidecar is killed or stopped, in milliseconds.
const INTERRUPT_DELAY_MS: std::ops::Range<u64> = 0..400;

/// Time that the sidecar stays down, in milliseconds.
const DOWN_MS: std::ops::Range<u64> = 0..300;

/// Number of keys that are put right before a kill, and deleted before the next start.
const FRESH_KEYS: u32 = 60;

/// A failure or restart in a soak run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Action {
    Kill,
    KillTwice,
    Restart,
    /// Kills the sidecar when it has announced new keys that it may not have stored, and deletes
    /// these keys at their source while it is down.
    KillAfterPut,
    /// Replaces the data directory by an earlier copy.
    LoseTail,
    /// Sends the checkers to a second sidecar with a copy of the data directory for a while.
    Clone,
    EtcdRestart,
    EtcdKill,
    EtcdWipe,
    /// Cuts the connection to an etcd for a while.
    WireCut,
    /// Cuts the connection to an etcd, and compacts its history meanwhile.
    Relist,
    RemoveCluster,
    ThousandAtOnce,
    /// Deletes more keys than there may be tombstones while some checkers are away.
    TrimTombstones,
}

pub(super) const ACTIONS: [Action; 14] = [
    Action::Kill,
    Action::KillTwice,
    Action::Restart,
    Action::KillAfterPut,
    Action::LoseTail,
    Action::Clone,
    Action::EtcdRestart,
    Action::EtcdKill,
    Action::EtcdWipe,
    Action::WireCut,
    Action::Relist,
    Action::RemoveCluster,
    Action::ThousandAtOnce,
    Action::TrimTombstones,
];

/// Number of open streams at which most checkers are connected: 24 of the 28 use a stream, and some
/// connect late.
const READERS_MIN: f64 = 12.0;

/// A copy of the data directory as a `kill -9` at the time of the copy would have left it.
struct DirectoryCopy {
    directory: TempDir,
    epoch: String,
    /// Upper bound on the sequences of `epoch` in the copy.
    sequence_max: u64,
    /// Epochs of the starts after the copy.
    later_epochs: Vec<String>,
}

/// The sidecar under test, and the addresses that the checkers use.
pub(super) struct Sidecar {
    pub(super) home: Home,
    meshkeep: Option<Meshkeep>,
    target: watch::Sender<Target>,
    /// Number of times that all checkers except the steady ones had to disconnect.
    away: watch::Sender<u32>,
    copy: Option<DirectoryCopy>,
    /// Epochs of which the current directory lacks the later sequences, each with the last sequence
    /// that it has.
    lost_epochs: LostEpochs,
    pub(super) starts: u32,
}

impl Sidecar {
    /// Starts a sidecar that mirrors the sources.
    pub(super) async fn start(sources: &Sources, target: watch::Sender<Target>, away: watch::Sender<u32>) -> Self {
        let mut sidecar =
            Self { home: new_home(sources), meshkeep: None, target, away, copy: None, lost_epochs: LostEpochs::new(), starts: 0 };
        sidecar.start_meshkeep().await;
        sidecar
    }

    pub(super) fn meshkeep(&self) -> &Meshkeep {
        self.meshkeep.as_ref().expect("must be running")
    }

    /// Waits until a key is served, or is no longer served if `wanted` is false.
    async fn wait_until_served(&self, key: &str, wanted: bool) {
        let path = format!("/v1/entries/{key}");
        let ask = || async { ((self.meshkeep().send_get(&path).await.0 == 200) == wanted).then_some(()) };
        eventually(&format!("{key} to be served: {wanted}"), ask).await;
    }

    async fn start_meshkeep(&mut self) {
        let meshkeep = self.home.start().await;
        self.starts += 1;
        if let Some(copy) = &mut self.copy {
            copy.later_epochs.push(head(meshkeep.url()).await.epoch);
        }
        self.meshkeep = Some(meshkeep);
        self.direct_checkers(false);
    }

    /// Directs the checkers to the sidecar if it runs, or to no server if `away` is true.
    fn direct_checkers(&self, away: bool) {
        let url = self.meshkeep.as_ref().filter(|_| !away).map(|meshkeep| meshkeep.url().to_owned());
        self.redirect(url, false, self.lost_epochs.clone());
    }

    fn redirect(&self, url: Option<String>, is_clone: bool, lost_epochs: LostEpochs) {
        self.target.send_modify(|target| *target = Target { number: target.number + 1, url, is_clone, lost_epochs });
    }

    fn kill(&mut self) {
        // no client may connect to the port once it is free
        self.direct_checkers(true);
        self.meshkeep.take().expect("must be running").kill();
    }

    async fn stop(&mut self) {
        self.direct_checkers(true);
        let ended = self.meshkeep.take().expect("must be running").stop().await;
        assert!(ended.status.success(), "meshkeep ends with {}:\n{}", ended.status, ended.log);
    }

    /// Kills or stops the sidecar at a random moment, and starts it again after a random time.
    async fn interrupt(&mut self, action: Action, random: &mut StdRng) {
        sleep(random_ms(random, INTERRUPT_DELAY_MS)).await;
        match action {
            Action::Restart => self.stop().await,
            Action::KillTwice => {
                self.kill();
                // kill it again while it loads, connects or lists
                self.start_meshkeep().await;
                sleep(random_ms(random, INTERRUPT_DELAY_MS)).await;
                self.kill();
            }
            _ => self.kill(),
        }
        sleep(random_ms(random, DOWN_MS)).await;
        self.start_meshkeep().await;
    }

    /// Copies the data directory while the process is paused with SIGSTOP. The copy is as a kill at
    /// this moment would leave it.
    pub(super) async fn take_copy(&mut self) {
        let meshkeep = self.meshkeep();
        signal(meshkeep, "STOP");
        let directory = tempfile::Builder::new().prefix("meshkeep-copy-").tempdir().unwrap();
        copy_directory(&self.home.data_directory(), directory.path());
        signal(meshkeep, "CONT");
        let Position { epoch, sequence, .. } = head(meshkeep.url()).await;
        self.copy = Some(DirectoryCopy { directory, epoch, sequence_max: sequence, later_epochs: Vec::new() });
    }

    /// Kills the sidecar and restores the copy. Later announcements are lost; no server with this
    /// directory may accept positions that include them.
    async fn lose_tail(&mut self) {
        self.kill();
        let DirectoryCopy { directory, epoch, sequence_max, later_epochs } = self.copy.take().expect("must have been copied before");
        let data = self.home.data_directory();
        std::fs::remove_dir_all(&data).unwrap();
        copy_directory(directory.path(), &data);
        let lowest = self.lost_epochs.get(&epoch).map_or(sequence_max, |earlier| sequence_max.min(*earlier));
        self.lost_epochs.insert(epoch, lowest);
        self.lost_epochs.extend(later_epochs.into_iter().map(|epoch| (epoch, 0)));
        self.start_meshkeep().await;
    }

    /// Directs the checkers to a second sidecar with a copy of the directory while the sources
    /// change, and then to the first one again.
    async fn clone_for_a_while(&mut self, sources: &mut Sources, burst: u64) {
        let twin_copy = self.copy.take();
        self.take_copy().await;
        let copy = std::mem::replace(&mut self.copy, twin_copy).expect("must exist: it was copied above");
        let mut twin_home = new_home(sources);
        copy_directory(copy.directory.path(), &twin_home.data_directory());
        sources.churn(burst / 4).await;
        let twin = twin_home.start().await;
        let twin_epoch = head(twin.url()).await.epoch;
        let mut lost_epochs = self.lost_epochs.clone();
        lost_epochs.entry(copy.epoch).or_insert(copy.sequence_max);
        self.redirect(Some(twin.url().to_owned()), true, lost_epochs);
        wait_for_readers(twin.url()).await;
        sources.churn(burst / 2).await;
        // the first one never learns of the twin's epoch
        self.lost_epochs.insert(twin_epoch, 0);
        self.redirect(None, false, LostEpochs::new());
        twin.kill();
        self.direct_checkers(false);
        sources.churn(burst / 4).await;
    }
}

/// Waits until most checkers are connected to a sidecar.
async fn wait_for_readers(url: &str) {
    let open = || async {
        let page = http().get(format!("{url}/metrics")).send().await.ok()?.text().await.ok()?;
        let counts = page.lines().filter(|line| line.starts_with("meshkeep_streams{"));
        let count: f64 = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        (count >= READERS_MIN).then_some(())
    };
    eventually(&format!("{READERS_MIN} streams at {url}"), open).await;
}

/// Runs one action while the sources change.
pub(super) async fn act(action: Action, sources: &mut Sources, sidecar: &mut Sidecar, random: &mut StdRng, burst: u64) {
    let index = random.random_range(0..sources.len());
    match action {
        Action::Kill | Action::KillTwice | Action::Restart => {
            tokio::join!(sources.churn(burst), sidecar.interrupt(action, random));
        }
        Action::KillAfterPut => kill_after_put(sources, sidecar).await,
        Action::LoseTail => {
            sidecar.take_copy().await;
            // otherwise no checker would know the changes that are about to be lost, for instance
            // right after a kill
            wait_for_readers(sidecar.meshkeep().url()).await;
            sources.churn(burst).await;
            tokio::join!(sources.churn(burst / 2), sidecar.lose_tail());
        }
        Action::Clone => sidecar.clone_for_a_while(sources, burst).await,
        Action::EtcdRestart | Action::EtcdKill => {
            sources.churn(burst / 2).await;
            sources.restart(index, action == Action::EtcdKill).await;
            sources.churn(burst / 2).await;
        }
        Action::EtcdWipe => {
            sources.churn(burst / 2).await;
            sources.wipe(index).await;
            sources.churn(burst / 2).await;
        }
        Action::WireCut | Action::Relist => {
            sources.remote(index).proxy.cut().await;
            sources.churn_one(index, burst / 2).await;
            if action == Action::Relist {
                sources.compact(index).await;
            }
            sources.remote(index).proxy.restore().await;
            sources.churn(burst / 2).await;
        }
        Action::RemoveCluster => remove_cluster(sources, sidecar, random, burst).await,
        Action::ThousandAtOnce => {
            sources.churn(burst / 2).await;
            sources.change_a_thousand_keys().await;
        }
        Action::TrimTombstones => trim_tombstones(sources, sidecar).await,
    }
}

/// Runs the hardest case (docs/develop/invariants.md, 6): the sidecar announces keys, is killed,
/// and finds them deleted at its next start.
async fn kill_after_put(sources: &mut Sources, sidecar: &mut Sidecar) {
    let fresh = sources.put_fresh(FRESH_KEYS).await;
    // a served key is announced, but it is stored about 40 ms later
    sidecar.wait_until_served(fresh.last().expect("there are some"), true).await;
    sidecar.kill();
    sources.delete(&fresh).await;
    sidecar.start_meshkeep().await;
}

/// Deletes more keys than there may be tombstones. A checker that is away meanwhile returns with a
/// position whose later deletes the sidecar has forgotten.
async fn trim_tombstones(sources: &mut Sources, sidecar: &mut Sidecar) {
    sidecar.direct_checkers(true);
    // connections end while there is no server, so that some checkers are certainly away
    sidecar.away.send_modify(|times| *times += 1);
    let fresh = sources.put_fresh(TOMBSTONES_MAX + 50).await;
    sidecar.wait_until_served(fresh.last().expect("there are some"), true).await;
    sources.delete(&fresh).await;
    sidecar.wait_until_served(fresh.last().expect("there are some"), false).await;
    sidecar.direct_checkers(false);
}

async fn remove_cluster(sources: &mut Sources, sidecar: &mut Sidecar, random: &mut StdRng, burst: u64) {
    let files = sources.client_files();
    let (name, file) = &files[random.random_range(0..files.len())];
    sidecar.home.remove_cluster(name);
    sources.churn(burst / 2).await;
    let path = format!("/v1/clusters/{name}");
    eventually("the cluster to be removed", || async { (sidecar.meshkeep().send_get(&path).await.0 == 404).then_some(()) }).await;
    sidecar.home.write_cluster(name, file);
    sources.churn(burst / 2).await;
}

/// Creates empty directories with every cluster's file.
fn new_home(sources: &Sources) -> Home {
    let tombstones = format!("--tombstone-max-count={TOMBSTONES_MAX}");
    let home = Home::new().with_flags(&[&tombstones, "--backoff-min=100ms", "--backoff-max=1s", "--config-rescan-interval=2s"]);
    for (name, file) in sources.client_files() {
        home.write_cluster(&name, &file);
    }
    home
}

/// Returns the newest position of a sidecar, once its store is loaded.
async fn head(url: &str) -> Position {
    let ask = || async {
        let status: Value = http().get(format!("{url}/v1/status")).send().await.ok()?.json().await.ok()?;
        Position::parse(status["position"].as_str()?)
    };
    eventually("a position", ask).await
}

fn random_ms(random: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random.random_range(range))
}

fn signal(meshkeep: &Meshkeep, name: &str) {
    let command = format!("kill -{name} {}", meshkeep.id());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success(), "{command}");
}

fn copy_directory(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(status.success(), "cannot copy {} to {}", from.display(), to.display());
}

//! Events that affect the sidecar, its store and the etcds: a seeded sequence in which each event
//! occurs at least once per round.

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
use super::state::{Lost, Position};
use crate::harness::eventually;
use crate::harness::meshkeep::{Home, Meshkeep, http};

/// Maximum number of tombstones. Usually there are more deleted keys, so that the positions of
/// clients that stay away for long are trimmed; see the chance of a delete in the churn.
pub(super) const TOMBSTONES_MAX: u32 = 300;

/// Time from the start of an action until the sidecar is hit.
const STRIKE_DELAY_MS: std::ops::Range<u64> = 0..400;

/// Time that the sidecar stays down.
const DOWN_MS: std::ops::Range<u64> = 0..300;

/// Number of keys that are put right before a kill and deleted before the next start.
const FRESH_KEYS: u32 = 60;

/// An event of a soak run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Action {
    Kill,
    KillTwice,
    Restart,
    /// Keys are announced and perhaps lost in a kill; while the sidecar is down they are deleted at
    /// their source.
    KillAfterPut,
    /// The directory is replaced by an earlier copy of itself.
    LoseTail,
    /// A second sidecar with a copy of the directory answers for a while, and then the first one
    /// again.
    Clone,
    EtcdRestart,
    EtcdKill,
    EtcdWipe,
    /// The connection is cut for a moment.
    WireCut,
    /// The connection is cut, and the history is compacted meanwhile.
    Relist,
    RemoveCluster,
    ThousandAtOnce,
    /// Some checkers are away while more keys are deleted than there may be tombstones.
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

/// Number of open streams that means "most checkers": 24 of the 28 have one, and some connect late.
const READERS_MIN: f64 = 12.0;

/// A copy of the data directory, as a `kill -9` at that moment would have left it.
struct Copy {
    directory: TempDir,
    epoch: String,
    /// A sequence of the epoch that is certainly at least as high as everything in the copy.
    bound: u64,
    /// Epochs that started since.
    later: Vec<String>,
}

/// The sidecar under test, and the addresses that the checkers use.
pub(super) struct Sidecar {
    pub(super) home: Home,
    meshkeep: Option<Meshkeep>,
    target: watch::Sender<Target>,
    /// Counts the times that some checkers had to disconnect.
    away: watch::Sender<u32>,
    copy: Option<Copy>,
    /// Last sequence of each epoch in the current directory, for epochs whose end it does not have.
    lost: Lost,
    pub(super) starts: u32,
}

impl Sidecar {
    /// Starts a sidecar that mirrors the sources.
    pub(super) async fn start(sources: &Sources, target: watch::Sender<Target>, away: watch::Sender<u32>) -> Self {
        let mut sidecar = Self { home: home(sources), meshkeep: None, target, away, copy: None, lost: Lost::new(), starts: 0 };
        sidecar.up().await;
        sidecar
    }

    pub(super) fn meshkeep(&self) -> &Meshkeep {
        self.meshkeep.as_ref().expect("must be running")
    }

    /// Waits until a key is served, or is no longer served.
    async fn serves(&self, key: &str, wanted: bool) {
        let path = format!("/v1/entries/{key}");
        let ask = || async { ((self.meshkeep().ask(&path).await.0 == 200) == wanted).then_some(()) };
        eventually(&format!("{key} to be served: {wanted}"), ask).await;
    }

    async fn up(&mut self) {
        let meshkeep = self.home.start().await;
        self.starts += 1;
        if let Some(copy) = &mut self.copy {
            copy.later.push(head(meshkeep.url()).await.epoch);
        }
        self.meshkeep = Some(meshkeep);
        self.point(false);
    }

    /// Directs the checkers to the sidecar if it runs.
    fn point(&self, away: bool) {
        let url = self.meshkeep.as_ref().filter(|_| !away).map(|meshkeep| meshkeep.url().to_owned());
        self.redirect(url, false, self.lost.clone());
    }

    fn redirect(&self, url: Option<String>, is_clone: bool, lost: Lost) {
        self.target.send_modify(|target| *target = Target { number: target.number + 1, url, is_clone, lost });
    }

    fn kill(&mut self) {
        // no client may connect to the port once it is free
        self.point(true);
        self.meshkeep.take().expect("must be running").kill();
    }

    async fn stop(&mut self) {
        self.point(true);
        let ended = self.meshkeep.take().expect("must be running").stop().await;
        assert!(ended.status.success(), "meshkeep ends with {}:\n{}", ended.status, ended.log);
    }

    /// Hits the sidecar at a random moment and starts it again after a random time.
    async fn strike(&mut self, action: Action, random: &mut StdRng) {
        sleep(random_ms(random, STRIKE_DELAY_MS)).await;
        match action {
            Action::Restart => self.stop().await,
            Action::KillTwice => {
                self.kill();
                // while it loads, connects or lists
                self.up().await;
                sleep(random_ms(random, STRIKE_DELAY_MS)).await;
                self.kill();
            }
            _ => self.kill(),
        }
        sleep(random_ms(random, DOWN_MS)).await;
        self.up().await;
    }

    /// Copies the data directory of the frozen process, as a kill at this moment would leave it.
    pub(super) async fn take_copy(&mut self) {
        let meshkeep = self.meshkeep();
        signal(meshkeep, "STOP");
        let directory = tempfile::Builder::new().prefix("meshkeep-copy-").tempdir().unwrap();
        copy_directory(&self.home.data_directory(), directory.path());
        signal(meshkeep, "CONT");
        let Position { epoch, sequence, .. } = head(meshkeep.url()).await;
        self.copy = Some(Copy { directory, epoch, bound: sequence, later: Vec::new() });
    }

    /// Restores the copy. Later announcements are lost, and positions that include them must be
    /// refused permanently.
    async fn lose_tail(&mut self) {
        self.kill();
        let Copy { directory, epoch, bound, later } = self.copy.take().expect("must have been made before");
        let data = self.home.data_directory();
        std::fs::remove_dir_all(&data).unwrap();
        copy_directory(directory.path(), &data);
        let lowest = self.lost.get(&epoch).map_or(bound, |earlier| bound.min(*earlier));
        self.lost.insert(epoch, lowest);
        self.lost.extend(later.into_iter().map(|epoch| (epoch, 0)));
        self.up().await;
    }

    /// Lets a second sidecar with a copy of the directory answer while the sources change, and then
    /// the first one again.
    async fn clone_for_a_while(&mut self, sources: &mut Sources, burst: u64) {
        let twin_copy = self.copy.take();
        self.take_copy().await;
        let copy = std::mem::replace(&mut self.copy, twin_copy).expect("was just made");
        let mut twin_home = home(sources);
        copy_directory(copy.directory.path(), &twin_home.data_directory());
        sources.churn(burst / 4).await;
        let twin = twin_home.start().await;
        let twin_epoch = head(twin.url()).await.epoch;
        let mut lost = self.lost.clone();
        lost.entry(copy.epoch).or_insert(copy.bound);
        self.redirect(Some(twin.url().to_owned()), true, lost);
        have_readers(twin.url()).await;
        sources.churn(burst / 2).await;
        // the first one never learns of the twin's epoch
        self.lost.insert(twin_epoch, 0);
        self.redirect(None, false, Lost::new());
        twin.kill();
        self.point(false);
        sources.churn(burst / 4).await;
    }
}

/// Waits until most checkers are connected to a sidecar.
async fn have_readers(url: &str) {
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
            tokio::join!(sources.churn(burst), sidecar.strike(action, random));
        }
        Action::KillAfterPut => kill_after_put(sources, sidecar).await,
        Action::LoseTail => {
            sidecar.take_copy().await;
            // otherwise no checker would know the changes that are about to be lost, for instance
            // right after a kill
            have_readers(sidecar.meshkeep().url()).await;
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
            sources.thousand().await;
        }
        Action::TrimTombstones => trim_tombstones(sources, sidecar).await,
    }
}

/// The hardest case (docs/develop/invariants.md, 6).
async fn kill_after_put(sources: &mut Sources, sidecar: &mut Sidecar) {
    let fresh = sources.put_fresh(FRESH_KEYS).await;
    // served means announced; it is stored about 40 ms later
    sidecar.serves(fresh.last().expect("there are some"), true).await;
    sidecar.kill();
    sources.delete(&fresh).await;
    sidecar.up().await;
}

/// A checker that is away when this starts returns with a position whose later deletes were
/// forgotten.
async fn trim_tombstones(sources: &mut Sources, sidecar: &mut Sidecar) {
    sidecar.point(true);
    // connections end while there is no server, so that some checkers are certainly away
    sidecar.away.send_modify(|times| *times += 1);
    let fresh = sources.put_fresh(TOMBSTONES_MAX + 50).await;
    sidecar.serves(fresh.last().expect("there are some"), true).await;
    sources.delete(&fresh).await;
    sidecar.serves(fresh.last().expect("there are some"), false).await;
    sidecar.point(false);
}

async fn remove_cluster(sources: &mut Sources, sidecar: &mut Sidecar, random: &mut StdRng, burst: u64) {
    let files = sources.client_files();
    let (name, file) = &files[random.random_range(0..files.len())];
    sidecar.home.remove_cluster(name);
    sources.churn(burst / 2).await;
    let gone = format!("/v1/clusters/{name}");
    eventually("a removed cluster to be gone", || async { (sidecar.meshkeep().ask(&gone).await.0 == 404).then_some(()) }).await;
    sidecar.home.write_cluster(name, file);
    sources.churn(burst / 2).await;
}

/// Creates empty directories with every cluster's file.
fn home(sources: &Sources) -> Home {
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

//! The history after `kill -9` at random moments under churn: it has every version that the stream
//! announced, or reports a gap. `MESHKEEP_HISTORY_KILLS` chooses the number of kills and
//! `MESHKEEP_HISTORY_SEED` another order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{SMALL, source_key};
use crate::harness::meshkeep::Meshkeep;
use crate::harness::scene::{Remote, Scene, wait_until_served};
use crate::harness::stream::{Follower, FollowerState};

/// Number of addresses that change.
const ADDRESSES: usize = 6;

/// Length of the label of a service that changes often. About ten versions fill the buffer of the
/// history (8 MiB), so that it is sealed during the churn.
const LABEL_BYTES: usize = 512 << 10;

/// Number of changes around each kill.
const CHANGES_PER_KILL: u32 = 80;

/// Slack between times with a precision of a second.
const SECOND: Duration = Duration::from_secs(1);

/// An address and everything that the test knows about its versions. A version is the number in the
/// name of its pod.
struct ChangingEntry {
    key: String,
    address: String,
    template: Value,
    newest: u32,
    exists: bool,
    /// Time of each put, by version.
    puts: BTreeMap<u32, Timestamp>,
    /// Versions that the stream announced.
    announced: BTreeSet<u32>,
    /// Time at which the stream had announced the newest change.
    settled_at: Option<Timestamp>,
    /// Moments between two changes, each with the version at that moment.
    moments: Vec<(Timestamp, Option<u32>)>,
}

/// Changes of the etcd.
struct Churn {
    entries: Vec<ChangingEntry>,
    random: StdRng,
    ballast_version: u32,
}

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

/// Returns the version in the name of a pod.
fn version_of(object: &Value) -> Option<u32> {
    object["podName"].as_str()?.strip_prefix("version-")?.parse().ok()
}

impl ChangingEntry {
    fn new(key: &str, value: &[u8]) -> Option<Self> {
        let address = key.strip_prefix("cilium/cache/ip/v1/c01/").filter(|name| name.parse::<std::net::Ipv4Addr>().is_ok())?;
        Some(Self {
            key: key.to_owned(),
            address: address.to_owned(),
            template: serde_json::from_slice(value).unwrap(),
            newest: 0,
            exists: true,
            puts: BTreeMap::new(),
            announced: BTreeSet::new(),
            settled_at: None,
            moments: Vec::new(),
        })
    }

    /// Puts the next version, or deletes the entry.
    async fn change(&mut self, remote: &mut Remote, is_deleted: bool) {
        let now = Timestamp::now();
        if let Some(settled) = self.settled_at.take()
            && now.duration_since(settled).as_millis() > 10
        {
            let moment = settled + (now.duration_since(settled) / 2);
            self.moments.push((moment, self.exists.then_some(self.newest)));
        }
        let source = source_key(remote.form, "c01", &self.key);
        if is_deleted && self.exists {
            remote.clusters[0].entries.remove(&self.key);
            remote.etcd.delete(source).await;
            self.exists = false;
            return;
        }
        self.newest += 1;
        (self.template["K8sPodName"], self.template["K8sNamespace"]) = (format!("version-{}", self.newest).into(), "churn".into());
        let value = serde_json::to_vec(&self.template).unwrap();
        self.puts.insert(self.newest, now);
        remote.clusters[0].entries.insert(self.key.clone(), value.clone());
        remote.etcd.put(source, value).await;
        self.exists = true;
    }

    /// Returns whether the follower has the newest change.
    fn is_announced(&self, followed: &FollowerState) -> bool {
        let object = followed.objects.get(&self.key);
        if self.exists { object.and_then(version_of) == Some(self.newest) } else { object.is_none() }
    }
}

impl Churn {
    fn new(remote: &Remote, seed: u64) -> Self {
        let entries = remote.clusters[0].entries.iter().filter_map(|(key, value)| ChangingEntry::new(key, value));
        Self { entries: entries.take(ADDRESSES).collect(), random: StdRng::seed_from_u64(seed), ballast_version: 0 }
    }

    /// Changes entries, and cancels `kill_due` on the way. Waits for the announcement of some
    /// changes, until meshkeep is killed.
    async fn change_entries(&mut self, remote: &mut Remote, follower: &Follower, kill_due: &CancellationToken, killed: &CancellationToken) {
        let kill_at = self.random.random_range(10..CHANGES_PER_KILL);
        for number in 0..CHANGES_PER_KILL {
            if number == kill_at {
                kill_due.cancel();
            }
            if self.random.random_bool(0.3) {
                self.change_ballast(remote).await;
            }
            let index = self.random.random_range(0..self.entries.len());
            let (is_deleted, is_awaited) = (self.random.random_bool(0.15), self.random.random_bool(0.4));
            let entry = &mut self.entries[index];
            entry.change(remote, is_deleted).await;
            if is_awaited {
                tokio::select! {
                    () = follower.wait("a change", |followed| entry.is_announced(followed).then_some(())) => entry.settled_at = Some(Timestamp::now()),
                    () = killed.cancelled() => {}
                }
            }
        }
    }

    async fn change_ballast(&mut self, remote: &mut Remote) {
        self.ballast_version += 1;
        let key = "cilium/cache/services/v1/c01/churn/ballast";
        let label = format!("{}-", self.ballast_version).repeat(LABEL_BYTES / 3);
        let value = format!(
            r#"{{"cluster":"c01","namespace":"churn","name":"ballast","frontends":{{}},"backends":{{}},"labels":{{"big":"{label}"}},"selector":{{}},"includeExternal":true,"shared":true,"clusterID":1}}"#
        );
        remote.etcd.put(source_key(remote.form, "c01", key), value.clone()).await;
        remote.clusters[0].entries.insert(key.to_owned(), value.into_bytes());
    }

    /// Adds the versions that a stream announced before it ended.
    fn add_announced(&mut self, followed: &FollowerState) {
        for event in followed.events_named("upsert", 0) {
            let entry = self.entries.iter_mut().find(|entry| event.data["key"] == *entry.key);
            if let Some((entry, version)) = entry.zip(version_of(&event.data["object"])) {
                entry.announced.insert(version);
            }
        }
    }
}

/// Returns all versions of a key, newest first, and the gaps of the history.
async fn history_of(meshkeep: &Meshkeep, key: &str) -> (Vec<Value>, Vec<Value>) {
    let (mut items, mut gaps, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = meshkeep.get(&format!("/v1/history?key={key}&limit=20{token}")).await;
        items.extend(page["items"].as_array().unwrap().iter().cloned());
        gaps.extend(page["gaps"].as_array().into_iter().flatten().filter(|gap| gap["cluster"].is_null()).cloned());
        match page["nextPageToken"].as_str() {
            Some(next) => token = format!("&pageToken={next}"),
            None => return (items, gaps),
        }
    }
}

/// Returns whether a gap of the history overlaps the lifetime of a version.
fn is_covered(gaps: &[Value], from: Timestamp, to: Timestamp) -> bool {
    let time = |gap: &Value, end: &str| gap[end].as_str().map(|text| text.parse::<Timestamp>().unwrap());
    gaps.iter()
        .any(|gap| time(gap, "from").is_none_or(|start| start <= to + SECOND) && time(gap, "to").is_none_or(|end| end + SECOND >= from))
}

impl ChangingEntry {
    async fn check_versions(&self, meshkeep: &Meshkeep) {
        let (items, gaps) = history_of(meshkeep, &self.key).await;
        let versions: Vec<u32> = items.iter().filter_map(|item| version_of(&item["object"])).collect();
        assert!(versions.is_sorted_by(|newer, older| newer > older), "{}: not in the order of the puts: {versions:?}", self.key);
        for version in self.announced.iter().filter(|version| !versions.contains(version)) {
            let ended = self.puts.get(&(version + 1)).copied().unwrap_or_else(Timestamp::now);
            let is_reported = is_covered(&gaps, self.puts[version], ended);
            assert!(is_reported, "{}: version {version} is silently absent from {versions:?}; gaps: {gaps:?}", self.key);
        }
    }

    /// Checks lookups at the moments. Without a gap in the history the answer is right even if it
    /// is not called complete, which it rarely is: after a kill, the time of the last contact may
    /// be up to 30 s older than the kill. Returns the number of checked answers.
    async fn check_moments(&self, meshkeep: &Meshkeep, has_gaps: bool) -> usize {
        let mut checked_count = 0;
        for (moment, version) in &self.moments {
            let answer = meshkeep.get(&format!("/v1/ipcache/lookup?ip={}&at={moment}", self.address)).await;
            if !has_gaps || answer["meta"]["complete"] == true {
                assert_eq!(version_of(&answer["match"]), *version, "{} at {moment}: {answer}", self.key);
                checked_count += 1;
            }
        }
        checked_count
    }
}

#[tokio::test]
async fn kills_lose_no_version_silently() {
    let seed = number_from_env("MESHKEEP_HISTORY_SEED", 1);
    let mut scene = Scene::without_meshkeep(&etcd_binaries()[0], 1, 0, SMALL).await;
    let mut churn = Churn::new(&scene.remotes[0], seed);
    for round in 0..number_from_env("MESHKEEP_HISTORY_KILLS", 5) {
        let meshkeep = scene.home.start().await;
        let follower = Follower::open(&meshkeep, "snapshot=true&kind=ipcache").await;
        meshkeep.wait_for_phase("c01", "live").await;
        let (kill_due, killed) = (CancellationToken::new(), CancellationToken::new());
        let delay = Duration::from_millis(churn.random.random_range(0..40));
        let kill = async {
            kill_due.cancelled().await;
            tokio::time::sleep(delay).await;
            meshkeep.kill();
            killed.cancel();
        };
        tokio::join!(churn.change_entries(&mut scene.remotes[0], &follower, &kill_due, &killed), kill);
        // the rest of what meshkeep wrote before the kill
        follower.wait("the end of the stream", |followed| followed.ended.then_some(())).await;
        churn.add_announced(&follower.state());
        if round % 2 == 0 {
            // and again while it starts
            scene.home.start_until_signals().await.kill();
        }
    }
    let meshkeep = scene.home.start().await;
    wait_until_served(&meshkeep, &scene.truth().expected(), "all kills").await;
    meshkeep.wait_for_phase("c01", "live").await;
    let status = meshkeep.get("/v1/status").await["history"].clone();
    assert!(status["segments"].as_u64() > Some(0), "nothing was sealed during the churn: {status}");
    let (mut checked_count, has_gaps) = (0, status["gaps"] != 0);
    for entry in &churn.entries {
        entry.check_versions(&meshkeep).await;
        checked_count += entry.check_moments(&meshkeep, has_gaps).await;
    }
    let announced_count: usize = churn.entries.iter().map(|entry| entry.announced.len()).sum();
    assert!(announced_count > 10 && (has_gaps || checked_count > 0), "{announced_count} versions, {checked_count} moments: {status}");
}

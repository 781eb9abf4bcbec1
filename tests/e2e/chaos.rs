//! Random events on a whole mesh, in an order given by a seed. `MESHKEEP_CHAOS_SEED` and
//! `MESHKEEP_CHAOS_ROUNDS` choose another order or a longer run.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{Shape, publish, put_canaries, put_config, put_leased, source_key};
use crate::harness::scene::Scene;

/// More entries than one page of a list.
const SHAPE: Shape = Shape { nodes: 6, identities: 20, endpoints: 300, services: 8, exports: 0 };

/// An event of a mesh and its sidecar.
#[derive(Debug, Clone, Copy)]
enum ChaosEvent {
    Change,
    Delete,
    Add,
    PutAgain,
    Cut,
    Restore,
    Compact,
    RestartEtcd,
    WipeEtcd,
    RefreshCanaries,
    RepublishConfig,
    LimitBytes,
    KillMeshkeep,
    RestartMeshkeep,
}

const EVENTS: [ChaosEvent; 17] = [
    // frequent events are listed several times
    ChaosEvent::Change,
    ChaosEvent::Change,
    ChaosEvent::Delete,
    ChaosEvent::Delete,
    ChaosEvent::Add,
    ChaosEvent::PutAgain,
    ChaosEvent::Cut,
    ChaosEvent::Restore,
    ChaosEvent::Restore,
    ChaosEvent::Compact,
    ChaosEvent::RestartEtcd,
    ChaosEvent::WipeEtcd,
    ChaosEvent::RefreshCanaries,
    ChaosEvent::RepublishConfig,
    ChaosEvent::LimitBytes,
    ChaosEvent::KillMeshkeep,
    ChaosEvent::RestartMeshkeep,
];

impl ChaosEvent {
    async fn apply(self, scene: &mut Scene, random: &mut StdRng) {
        let stamp = scene.next_stamp();
        let index = random.random_range(0..scene.remotes.len());
        let remote = &mut scene.remotes[index];
        match self {
            Self::Change => remote.change(|cluster| cluster.change_one_percent(random)).await,
            Self::Delete => remote.change(|cluster| cluster.delete_one_percent(random)).await,
            Self::Add => remote.change(|cluster| cluster.add_endpoints(10)).await,
            Self::PutAgain => {
                let cluster = &remote.clusters[0];
                let again =
                    cluster.entries.iter().step_by(7).map(|(key, value)| (source_key(remote.form, &cluster.name, key), value.clone()));
                put_leased(&remote.etcd, again).await;
            }
            Self::Cut => remote.proxy.cut().await,
            Self::Restore => remote.proxy.restore().await,
            Self::Compact => {
                let revision = remote.etcd.put("unrelated", "1").await;
                remote.etcd.compact(revision).await;
            }
            Self::RestartEtcd => remote.etcd.restart().await,
            Self::WipeEtcd => {
                remote.etcd.wipe();
                for cluster in &mut remote.clusters {
                    cluster.delete_one_percent(random);
                    cluster.change_one_percent(random);
                }
                remote.etcd.restart().await;
                publish(&remote.etcd, remote.form, &remote.clusters, &stamp).await;
            }
            Self::RefreshCanaries => put_canaries(&remote.etcd, remote.form, &remote.clusters[0], &stamp).await,
            Self::RepublishConfig => put_config(&remote.etcd, remote.form, &remote.clusters[0]).await,
            Self::LimitBytes => remote.proxy.allow_bytes(random.random_range(0..200_000)),
            Self::KillMeshkeep => {
                scene.kill_meshkeep();
                scene.start_meshkeep().await;
            }
            Self::RestartMeshkeep => {
                scene.follower = None;
                let ended = scene.meshkeep.take().unwrap().stop().await;
                assert_eq!(ended.status.code(), Some(0), "{}", ended.log);
                scene.start_meshkeep().await;
            }
        }
    }
}

fn number_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

#[tokio::test]
async fn the_mirror_is_right_after_random_events() {
    let seed = number_from_env("MESHKEEP_CHAOS_SEED", 1);
    let mut random = StdRng::seed_from_u64(seed);
    let mut scene = Scene::without_meshkeep(etcd_binaries().choose(&mut random).unwrap(), 1, 2, SHAPE).await;
    // short waits, because the run is short
    scene.home = scene.home.with_flags(&["--kvstore-opt=etcd.limit=40", "--backoff-min=50ms", "--backoff-max=500ms"]);
    scene.home = scene.home.with_flags(&["--verify-interval=2s", "--verify-round=1s", "--progress-interval=300ms"]);
    scene.start_meshkeep().await;
    for round in 0..number_from_env("MESHKEEP_CHAOS_ROUNDS", 6) {
        let mut events = Vec::new();
        for _ in 0..random.random_range(1..8) {
            let event = *EVENTS.choose(&mut random).unwrap();
            events.push(event);
            event.apply(&mut scene, &mut random).await;
        }
        for remote in &mut scene.remotes {
            remote.proxy.allow_bytes(u64::MAX);
            remote.proxy.restore().await;
        }
        let events = format!("round {round} of seed {seed}: {events:?}");
        scene.wait_until_settled(&events).await;
        let problems = scene.meshkeep().get("/v1/problems?kind=mirrorDiverged").await;
        assert_eq!(problems["items"], serde_json::json!([]), "the verification reports a difference in {events}");
    }
}

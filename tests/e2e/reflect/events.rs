//! The 14 kinds of events that affect a target, its writers and their entries.

use std::collections::BTreeSet;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, GetOptions, Permission, PutOptions, RoleRevokePermissionOptions,
};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::chaos::{ChaosMesh, problems};
use super::history::AllowedDeviations;
use crate::harness::eventually;
use crate::harness::mesh::publish;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChaosEvent {
    TargetRestarted,
    TargetKilled,
    TargetWiped,
    TargetCompacted,
    TargetFull,
    TargetForbidden,
    LeaseRevoked,
    LeaderDisconnected,
    MemberLost,
    LeaderKilled,
    SourceLost,
    ClusterRemoved,
    OtherClientWrites,
    SourcesUnreachable,
}

pub(super) const CHAOS_EVENTS: [ChaosEvent; 14] = [
    ChaosEvent::TargetRestarted,
    ChaosEvent::TargetKilled,
    ChaosEvent::TargetWiped,
    ChaosEvent::TargetCompacted,
    ChaosEvent::TargetFull,
    ChaosEvent::TargetForbidden,
    ChaosEvent::LeaseRevoked,
    ChaosEvent::LeaderDisconnected,
    ChaosEvent::MemberLost,
    ChaosEvent::LeaderKilled,
    ChaosEvent::SourceLost,
    ChaosEvent::ClusterRemoved,
    ChaosEvent::OtherClientWrites,
    ChaosEvent::SourcesUnreachable,
];

/// Log messages about failed writes. Each of them must be logged only once.
const COMPLAINTS: [&str; 3] = ["cannot write to etcd", "cannot compare the target", "cannot lock the target"];

impl ChaosEvent {
    /// Runs the event while the sources change. Returns the deviations that the target's history
    /// may have.
    pub(super) async fn run(self, mesh: &mut ChaosMesh) -> AllowedDeviations {
        let may_repeat = AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() };
        match self {
            Self::TargetRestarted => {
                mesh.change(true).await;
                mesh.target.restart().await;
                mesh.change(true).await;
                may_repeat
            }
            Self::TargetKilled => {
                mesh.change(true).await;
                mesh.target.kill();
                mesh.change(true).await;
                mesh.target.restart().await;
                may_repeat
            }
            Self::TargetWiped => {
                mesh.target.wipe();
                mesh.change(true).await;
                mesh.set_up_wiped_target().await;
                may_repeat
            }
            Self::TargetCompacted => compacted(mesh).await,
            Self::TargetFull => full(mesh).await,
            Self::TargetForbidden => forbidden(mesh).await,
            Self::LeaseRevoked => lease_revoked(mesh).await,
            Self::LeaderDisconnected => leader_disconnected(mesh).await,
            Self::MemberLost => {
                let leader = mesh.target.wait_for_leader().await;
                mesh.target.members[leader].kill();
                mesh.change(true).await;
                mesh.target.wait_for_quorum().await;
                mesh.record_contents();
                mesh.wait_for_contents("the loss of a member").await;
                mesh.target.members[leader].restart().await;
                mesh.change(true).await;
                may_repeat
            }
            Self::LeaderKilled => {
                let leader = mesh.wait_for_leader().await;
                mesh.writers[leader].kill();
                mesh.change(true).await;
                mesh.record_contents();
                mesh.wait_for_contents("the death of the leader").await;
                mesh.writers[leader].start().await;
                may_repeat
            }
            Self::SourceLost => source_lost(mesh).await,
            Self::ClusterRemoved => cluster_removed(mesh).await,
            Self::OtherClientWrites => other_client_writes(mesh).await,
            Self::SourcesUnreachable => sources_unreachable(mesh).await,
        }
    }
}

/// Compacts the history while the leader is briefly disconnected, so that its watch cannot
/// continue.
async fn compacted(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let (before, leader) = (mesh.keys(), mesh.wait_for_leader().await);
    mesh.change(true).await;
    mesh.record_contents();
    mesh.wait_for_contents("a change").await;
    let may_repeat = AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() };
    mesh.check(&before, &may_repeat, "the time before a compaction").await;
    mesh.writers[leader].cut().await;
    let mut client = mesh.client().await;
    // a delete that is compacted before a watch reports it
    let victim = some_entry(mesh).await;
    client.delete(victim.as_str(), None).await.unwrap();
    let revision = client.put("compacted-here", "", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await.unwrap();
    mesh.start_history().await;
    mesh.writers[leader].restore().await;
    for member in &mesh.target.members {
        member.client().await.defragment().await.unwrap();
    }
    mesh.change(true).await;
    AllowedDeviations { may_be_rewritten: true, by_others: [victim].into() }
}

/// Raises the alarm NOSPACE in the target, and clears it later.
async fn full(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let leader = mesh.wait_for_leader().await;
    let complaints_before = complaints(mesh, leader);
    let member = mesh.client().await.status().await.unwrap().header().unwrap().member_id();
    let mut options = AlarmOptions::new();
    options.with_member(member);
    let alarm = async |action: AlarmAction, mut client: Client| {
        client.alarm(action, AlarmType::Nospace, Some(options.clone())).await.unwrap();
    };
    alarm(AlarmAction::Activate, mesh.client().await).await;
    let before = mesh.contents().await;
    mesh.change(false).await;
    let writer = mesh.writers[leader].running();
    eventually("a full target to be reported", async || (problems(writer).await == 1).then_some(())).await;
    assert_eq!(mesh.contents().await, before, "nothing is removed from a full target");
    alarm(AlarmAction::Deactivate, mesh.client().await).await;
    assert_reported_once(mesh, leader, complaints_before).await;
    AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() }
}

/// Revokes the permission to write, and grants it again.
async fn forbidden(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let leader = mesh.wait_for_leader().await;
    let complaints_before = complaints(mesh, leader);
    let mut client = mesh.client().await;
    let prefix = RoleRevokePermissionOptions::new().with_prefix();
    client.role_revoke_permission("mesh", "cilium/", Some(prefix)).await.unwrap();
    client.role_grant_permission("mesh", Permission::read("cilium/").with_prefix()).await.unwrap();
    let before = mesh.contents().await;
    mesh.change(true).await;
    let writer = mesh.writers[leader].running();
    eventually("a target without rights to be reported", async || (problems(writer).await == 1).then_some(())).await;
    assert_eq!(mesh.contents().await, before);
    client.role_grant_permission("mesh", Permission::read_write("cilium/").with_prefix()).await.unwrap();
    assert_reported_once(mesh, leader, complaints_before).await;
    AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() }
}

/// Returns how often the leader has logged each message of [`COMPLAINTS`].
fn complaints(mesh: &ChaosMesh, leader: usize) -> [usize; 3] {
    COMPLAINTS.map(|words| mesh.writers[leader].running().log_lines_with(&[words]))
}

/// Waits until everything works again, and checks that each message was logged at most once.
async fn assert_reported_once(mesh: &mut ChaosMesh, leader: usize, before: [usize; 3]) {
    mesh.record_contents();
    mesh.wait_for_contents("the end of the failure").await;
    for (now, before) in complaints(mesh, leader).into_iter().zip(before) {
        assert!(now <= before + 1, "{}", mesh.writers[leader].running().log());
    }
}

/// Revokes a lease with all of its keys.
async fn lease_revoked(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let mut client = mesh.client().await;
    let victim = some_entry(mesh).await;
    let all = client.get("cilium/", Some(GetOptions::new().with_prefix())).await.unwrap();
    let lease = all.kvs().iter().find(|kv| kv.key() == victim.as_bytes()).unwrap().lease();
    let keys_of_lease = all.kvs().iter().filter(|kv| kv.lease() == lease).map(|kv| kv.key_str().unwrap().to_owned()).collect();
    client.lease_revoke(lease).await.unwrap();
    mesh.change(true).await;
    AllowedDeviations { by_others: keys_of_lease, may_be_rewritten: true }
}

/// Disconnects the leader from the target for longer than its lock lives, so that the other process
/// becomes the leader.
async fn leader_disconnected(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let leader = mesh.wait_for_leader().await;
    mesh.writers[leader].cut().await;
    mesh.change(true).await;
    mesh.record_contents();
    mesh.wait_for_contents("the disconnection of the leader").await;
    mesh.writers[leader].restore().await;
    mesh.change(true).await;
    AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() }
}

/// Restarts one source. Then kills another one for a while, and meanwhile wipes the first and
/// publishes changed contents in it.
async fn source_lost(mesh: &mut ChaosMesh) -> AllowedDeviations {
    mesh.sources[0].etcd.restart().await;
    mesh.change(true).await;
    mesh.record_contents();
    mesh.wait_for_contents("the restart of a source").await;
    mesh.sources[1].etcd.kill();
    let before = mesh.contents().await;
    let stamp = mesh.next_stamp();
    let source = &mut mesh.sources[0];
    source.etcd.wipe();
    let keys = source.clusters[0].keys_of("ip/v1");
    source.clusters[0].delete(&keys[0]);
    source.clusters[0].add_endpoints(3);
    source.etcd.restart().await;
    assert_eq!(mesh.contents().await, before, "the loss of a source removes nothing");
    mesh.record_contents();
    let source = &mesh.sources[0];
    publish(&source.etcd, source.form, &source.clusters, &stamp).await;
    mesh.wait_for_contents("the loss of two sources").await;
    mesh.sources[1].etcd.restart().await;
    mesh.change(true).await;
    AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() }
}

/// Removes the file of one cluster and adds that of another.
async fn cluster_removed(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let (removed, new) = if mesh.present.contains("c03") { ("c03", "c04") } else { ("c04", "c03") };
    let file = mesh.file_of(new);
    mesh.present.remove(removed);
    mesh.present.insert(new.to_owned());
    mesh.record_contents();
    for writer in &mesh.writers {
        writer.home.remove_cluster(removed);
        writer.home.write_cluster(new, &file);
    }
    mesh.change(true).await;
    AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() }
}

/// Writes and deletes some keys as another client.
async fn other_client_writes(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let mut client = mesh.client().await;
    let number: u32 = mesh.random.random();
    mesh.foreign.insert("cilium/foreign".into(), number.to_string());
    client.put("cilium/foreign", number.to_string(), None).await.unwrap();
    let (deleted, changed, moved) = (some_entry(mesh).await, some_entry(mesh).await, some_entry(mesh).await);
    let surplus = format!("cilium/cache/nodes/v1/c01/stranger-{number}");
    client.delete(deleted.as_str(), None).await.unwrap();
    client.delete("cilium/cluster-config/c01", None).await.unwrap();
    client.delete("cilium/synced/c01/cilium/cache/nodes/v1", None).await.unwrap();
    client.put(changed.as_str(), "nonsense", None).await.unwrap();
    client.put(surplus.as_str(), "{}", None).await.unwrap();
    // the right value, attached to a lease of another client that expires
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let reply = client.get(moved.as_str(), None).await.unwrap();
    let value = reply.kvs().first().map(|kv| kv.value().to_vec()).unwrap_or_default();
    client.put(moved.as_str(), value, Some(PutOptions::new().with_lease(lease))).await.unwrap();
    client.lease_revoke(lease).await.unwrap();
    mesh.change(true).await;
    AllowedDeviations { by_others: BTreeSet::from([deleted, changed, moved, surplus]), may_be_rewritten: true }
}

/// Disconnects all sources, kills and restarts both writers, and in half of the cases wipes the
/// target too.
async fn sources_unreachable(mesh: &mut ChaosMesh) -> AllowedDeviations {
    let wipes_target = mesh.random.random_bool(0.5);
    for source in &mut mesh.sources {
        source.proxy.cut().await;
    }
    mesh.writers.iter_mut().for_each(super::chaos::Writer::kill);
    if wipes_target {
        mesh.target.wipe();
        mesh.set_up_wiped_target().await;
    }
    for writer in &mut mesh.writers {
        writer.start().await;
    }
    mesh.wait_for_leader().await;
    mesh.wait_for_contents("a start without any source").await;
    // nothing changes, so no existing key may be written again
    let (keys, allowed) = (mesh.keys(), AllowedDeviations { may_be_rewritten: wipes_target, ..AllowedDeviations::default() });
    mesh.check(&keys, &allowed, "a start without any source").await;
    mesh.start_history().await;
    for source in &mut mesh.sources {
        source.proxy.restore().await;
    }
    mesh.change(true).await;
    AllowedDeviations { may_be_rewritten: true, ..AllowedDeviations::default() }
}

/// Returns the key of a random identity: it exists, and [`ChaosMesh::change`] does not delete it.
async fn some_entry(mesh: &mut ChaosMesh) -> String {
    let keys: Vec<String> = mesh.keys().into_iter().filter(|key| key.starts_with("cilium/cache/identities/")).collect();
    keys.choose(&mut mesh.random).unwrap().clone()
}

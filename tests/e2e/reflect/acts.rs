//! The 14 kinds of events that affect a target, its writers and their entries.

use std::collections::BTreeSet;

use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, GetOptions, Permission, PutOptions, RoleRevokePermissionOptions,
};
use rand::Rng;
use rand::seq::IndexedRandom;

use super::chaos::{ChaosMesh, problems};
use super::history::Allowed;
use crate::harness::eventually;
use crate::harness::mesh::publish;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Act {
    TargetRestarted,
    TargetKilled,
    TargetWiped,
    TargetCompacted,
    TargetFull,
    TargetForbidden,
    LeaseRevoked,
    WireCut,
    MemberLost,
    LeaderKilled,
    SourceLost,
    ClusterRemoved,
    Strangers,
    RemotesGone,
}

pub(super) const ACTS: [Act; 14] = [
    Act::TargetRestarted,
    Act::TargetKilled,
    Act::TargetWiped,
    Act::TargetCompacted,
    Act::TargetFull,
    Act::TargetForbidden,
    Act::LeaseRevoked,
    Act::WireCut,
    Act::MemberLost,
    Act::LeaderKilled,
    Act::SourceLost,
    Act::ClusterRemoved,
    Act::Strangers,
    Act::RemotesGone,
];

/// Log messages about writing that fails. Each of them must be logged once.
const COMPLAINTS: [&str; 3] = ["writing to etcd fails", "the target cannot be compared", "the target cannot be locked"];

impl Act {
    /// Runs the event while the sources change. Returns the deviations that the target's history
    /// may have.
    pub(super) async fn run(self, world: &mut ChaosMesh) -> Allowed {
        let twice = Allowed { same_again: true, ..Allowed::default() };
        match self {
            Self::TargetRestarted => {
                world.change(true).await;
                world.target.restart().await;
                world.change(true).await;
                twice
            }
            Self::TargetKilled => {
                world.change(true).await;
                world.target.kill();
                world.change(true).await;
                world.target.restart().await;
                twice
            }
            Self::TargetWiped => {
                world.target.wipe();
                world.change(true).await;
                world.target_was_wiped().await;
                twice
            }
            Self::TargetCompacted => compacted(world).await,
            Self::TargetFull => full(world).await,
            Self::TargetForbidden => forbidden(world).await,
            Self::LeaseRevoked => lease_revoked(world).await,
            Self::WireCut => wire_cut(world).await,
            Self::MemberLost => {
                let leader = world.target.leader().await;
                world.target.members[leader].kill();
                world.change(true).await;
                world.target.agree().await;
                world.note();
                world.becomes("the loss of a member").await;
                world.target.members[leader].restart().await;
                world.change(true).await;
                twice
            }
            Self::LeaderKilled => {
                let leader = world.leader().await;
                world.writers[leader].kill();
                world.change(true).await;
                world.note();
                world.becomes("the death of the leader").await;
                world.writers[leader].start().await;
                twice
            }
            Self::SourceLost => source_lost(world).await,
            Self::ClusterRemoved => cluster_removed(world).await,
            Self::Strangers => strangers(world).await,
            Self::RemotesGone => remotes_gone(world).await,
        }
    }
}

/// Compacts the history while the leader is briefly disconnected, so that its watch cannot
/// continue.
async fn compacted(world: &mut ChaosMesh) -> Allowed {
    let (before, leader) = (world.keys(), world.leader().await);
    world.change(true).await;
    world.note();
    world.becomes("a change").await;
    let twice = Allowed { same_again: true, ..Allowed::default() };
    world.check(&before, &twice, "the time before a compaction").await;
    world.writers[leader].cut().await;
    let mut client = world.client().await;
    // a delete that is compacted before a watch reports it
    let victim = some_entry(world).await;
    client.delete(victim.as_str(), None).await.unwrap();
    let revision = client.put("compacted-here", "", None).await.unwrap().header().unwrap().revision();
    client.compact(revision, Some(CompactionOptions::new().with_physical())).await.unwrap();
    world.begin().await;
    world.writers[leader].restore().await;
    for member in &world.target.members {
        member.client().await.defragment().await.unwrap();
    }
    world.change(true).await;
    Allowed { same_again: true, by_others: [victim].into() }
}

/// Raises the alarm NOSPACE in the target, and clears it later.
async fn full(world: &mut ChaosMesh) -> Allowed {
    let leader = world.leader().await;
    let reported = complaints(world, leader);
    let member = world.client().await.status().await.unwrap().header().unwrap().member_id();
    let mut options = AlarmOptions::new();
    options.with_member(member);
    let alarm = async |action: AlarmAction, mut client: Client| {
        client.alarm(action, AlarmType::Nospace, Some(options.clone())).await.unwrap();
    };
    alarm(AlarmAction::Activate, world.client().await).await;
    let before = world.contents().await;
    world.change(false).await;
    let writer = world.writers[leader].running();
    eventually("a full target to be reported", async || (problems(writer).await == 1).then_some(())).await;
    assert_eq!(world.contents().await, before, "nothing is taken from a full target");
    alarm(AlarmAction::Deactivate, world.client().await).await;
    reported_once(world, leader, reported).await;
    Allowed { same_again: true, ..Allowed::default() }
}

/// Revokes the permission to write, and grants it again.
async fn forbidden(world: &mut ChaosMesh) -> Allowed {
    let leader = world.leader().await;
    let reported = complaints(world, leader);
    let mut client = world.client().await;
    let prefix = RoleRevokePermissionOptions::new().with_prefix();
    client.role_revoke_permission("mesh", "cilium/", Some(prefix)).await.unwrap();
    client.role_grant_permission("mesh", Permission::read("cilium/").with_prefix()).await.unwrap();
    let before = world.contents().await;
    world.change(true).await;
    let writer = world.writers[leader].running();
    eventually("a target without rights to be reported", async || (problems(writer).await == 1).then_some(())).await;
    assert_eq!(world.contents().await, before);
    client.role_grant_permission("mesh", Permission::read_write("cilium/").with_prefix()).await.unwrap();
    reported_once(world, leader, reported).await;
    Allowed { same_again: true, ..Allowed::default() }
}

/// Returns the number of the leader's messages, by message.
fn complaints(world: &ChaosMesh, leader: usize) -> [usize; 3] {
    COMPLAINTS.map(|words| world.writers[leader].running().log_lines_with(&[words]))
}

/// Waits until everything works again, and checks that each message was logged at most once.
async fn reported_once(world: &mut ChaosMesh, leader: usize, before: [usize; 3]) {
    world.note();
    world.becomes("what kept it from writing").await;
    for (now, before) in complaints(world, leader).into_iter().zip(before) {
        assert!(now <= before + 1, "{}", world.writers[leader].running().log());
    }
}

/// Revokes a lease with all of its keys.
async fn lease_revoked(world: &mut ChaosMesh) -> Allowed {
    let mut client = world.client().await;
    let victim = some_entry(world).await;
    let all = client.get("cilium/", Some(GetOptions::new().with_prefix())).await.unwrap();
    let lease = all.kvs().iter().find(|found| found.key() == victim.as_bytes()).unwrap().lease();
    let on_it = all.kvs().iter().filter(|found| found.lease() == lease).map(|found| found.key_str().unwrap().to_owned()).collect();
    client.lease_revoke(lease).await.unwrap();
    world.change(true).await;
    Allowed { by_others: on_it, same_again: true }
}

/// Disconnects the leader from the target for longer than its lock lives, so that the other process
/// becomes the leader.
async fn wire_cut(world: &mut ChaosMesh) -> Allowed {
    let leader = world.leader().await;
    world.writers[leader].cut().await;
    world.change(true).await;
    world.note();
    world.becomes("the cut of the leader's wire").await;
    world.writers[leader].restore().await;
    world.change(true).await;
    Allowed { same_again: true, ..Allowed::default() }
}

/// Restarts one source. Then kills another one for a while, and meanwhile wipes the first and
/// publishes changed contents in it.
async fn source_lost(world: &mut ChaosMesh) -> Allowed {
    world.sources[0].etcd.restart().await;
    world.change(true).await;
    world.note();
    world.becomes("the restart of a source").await;
    world.sources[1].etcd.kill();
    let before = world.contents().await;
    let stamp = world.next_stamp();
    let source = &mut world.sources[0];
    source.etcd.wipe();
    let keys = source.clusters[0].keys_of("ip/v1");
    source.clusters[0].delete(&keys[0]);
    source.clusters[0].add_endpoints(3);
    source.etcd.restart().await;
    assert_eq!(world.contents().await, before, "a source that is lost takes nothing with it");
    world.note();
    let source = &world.sources[0];
    publish(&source.etcd, source.form, &source.clusters, &stamp).await;
    world.becomes("the loss of two sources").await;
    world.sources[1].etcd.restart().await;
    world.change(true).await;
    Allowed { same_again: true, ..Allowed::default() }
}

/// Removes the file of one cluster and adds that of another.
async fn cluster_removed(world: &mut ChaosMesh) -> Allowed {
    let (gone, new) = if world.present.contains("c03") { ("c03", "c04") } else { ("c04", "c03") };
    let file = world.file_of(new);
    world.present.remove(gone);
    world.present.insert(new.to_owned());
    world.note();
    for writer in &world.writers {
        writer.home.remove_cluster(gone);
        writer.home.write_cluster(new, &file);
    }
    world.change(true).await;
    Allowed { same_again: true, ..Allowed::default() }
}

/// Writes and deletes some keys as another client.
async fn strangers(world: &mut ChaosMesh) -> Allowed {
    let mut client = world.client().await;
    let number: u32 = world.random.random();
    world.foreign.insert("cilium/foreign".into(), number.to_string());
    client.put("cilium/foreign", number.to_string(), None).await.unwrap();
    let (deleted, changed, moved) = (some_entry(world).await, some_entry(world).await, some_entry(world).await);
    let surplus = format!("cilium/cache/nodes/v1/c01/stranger-{number}");
    client.delete(deleted.as_str(), None).await.unwrap();
    client.delete("cilium/cluster-config/c01", None).await.unwrap();
    client.delete("cilium/synced/c01/cilium/cache/nodes/v1", None).await.unwrap();
    client.put(changed.as_str(), "nonsense", None).await.unwrap();
    client.put(surplus.as_str(), "{}", None).await.unwrap();
    // the right value, attached to a lease of another client that expires
    let lease = client.lease_grant(60, None).await.unwrap().id();
    let found = client.get(moved.as_str(), None).await.unwrap();
    let value = found.kvs().first().map(|found| found.value().to_vec()).unwrap_or_default();
    client.put(moved.as_str(), value, Some(PutOptions::new().with_lease(lease))).await.unwrap();
    client.lease_revoke(lease).await.unwrap();
    world.change(true).await;
    Allowed { by_others: BTreeSet::from([deleted, changed, moved, surplus]), same_again: true }
}

/// Disconnects all sources, kills and restarts both writers, and in half of the cases wipes the
/// target too.
async fn remotes_gone(world: &mut ChaosMesh) -> Allowed {
    let with_target = world.random.random_bool(0.5);
    for source in &mut world.sources {
        source.proxy.cut().await;
    }
    world.writers.iter_mut().for_each(super::chaos::Writer::kill);
    if with_target {
        world.target.wipe();
        world.target_was_wiped().await;
    }
    for writer in &mut world.writers {
        writer.start().await;
    }
    world.leader().await;
    world.becomes("a start without any source").await;
    // nothing changes, so no existing key may be written again
    let (keys, allowed) = (world.keys(), Allowed { same_again: with_target, ..Allowed::default() });
    world.check(&keys, &allowed, "a start without any source").await;
    world.begin().await;
    for source in &mut world.sources {
        source.proxy.restore().await;
    }
    world.change(true).await;
    Allowed { same_again: true, ..Allowed::default() }
}

/// Returns the key of an entry that exists and stays.
async fn some_entry(world: &mut ChaosMesh) -> String {
    let keys: Vec<String> = world.keys().into_iter().filter(|key| key.starts_with("cilium/cache/identities/")).collect();
    keys.choose(&mut world.random).unwrap().clone()
}

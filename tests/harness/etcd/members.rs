//! An etcd of several members, which serves as long as most of them run.

use etcd_client::Client;
use futures_util::future::join_all;

use super::{Etcd, EtcdBuilder, START_ATTEMPTS_MAX, unused_port};
use crate::harness::eventually;

/// The members of an etcd. Each can be stopped, killed and restarted.
pub(crate) struct EtcdMembers {
    pub(crate) members: Vec<Etcd>,
}

impl EtcdBuilder {
    /// Starts `count` members and waits until each of them serves.
    pub(crate) async fn start_members(self, count: usize) -> EtcdMembers {
        // with the timeouts of single servers, elections would repeat, because the members share
        // two cores with all tests
        let builder = self.flag("--heartbeat-interval=200").flag("--election-timeout=2000");
        let mut members: Vec<Etcd> = (0..count).map(|_| builder.clone().prepare()).collect();
        for _ in 0..START_ATTEMPTS_MAX {
            members.iter_mut().for_each(|member| (member.client_port, member.peer_port) = (unused_port(), unused_port()));
            let initial_cluster: Vec<String> =
                members.iter().enumerate().map(|(number, member)| format!("m{number}={}", member.peer_url())).collect();
            for (number, member) in members.iter_mut().enumerate() {
                member.builder.membership = Some((format!("m{number}"), initial_cluster.join(",")));
            }
            if join_all(members.iter_mut().map(Etcd::try_start)).await.into_iter().all(|started| started) {
                return EtcdMembers { members };
            }
            members.iter_mut().for_each(Etcd::wipe);
        }
        panic!("{count} members did not find free ports in {START_ATTEMPTS_MAX} attempts");
    }
}

impl EtcdMembers {
    /// Connects a client to a running member.
    pub(crate) async fn client(&self) -> Client {
        self.members.iter().find(|member| member.child.is_some()).expect("a member must run").client().await
    }

    /// Stops all members, starts them again with the data that exists, and waits until they have a
    /// leader and accept a write.
    pub(crate) async fn restart(&mut self) {
        for member in self.members.iter_mut().filter(|member| member.child.is_some()) {
            member.stop().await;
        }
        join_all(self.members.iter_mut().map(Etcd::restart)).await;
        self.wait_for_quorum().await;
    }

    /// Waits until there is a leader and a write succeeds.
    pub(crate) async fn wait_for_quorum(&self) {
        self.wait_for_leader().await;
        eventually("a write that succeeds", async || self.client().await.put("members-agree", "", None).await.ok()).await;
    }

    pub(crate) fn kill(&mut self) {
        self.members.iter_mut().for_each(Etcd::kill);
    }

    /// Kills all members and deletes all data, including users and authentication.
    pub(crate) fn wipe(&mut self) {
        self.members.iter_mut().for_each(Etcd::wipe);
    }

    /// Enables authentication; see [`Etcd::enable_auth`].
    pub(crate) async fn enable_auth(&mut self, user: &str, password: &str) {
        let (first, others) = self.members.split_first_mut().expect("there is at least one member");
        first.enable_auth(user, password).await;
        others.iter_mut().for_each(|other| other.user.clone_from(&first.user));
    }

    /// Waits until a member reports itself as leader, and returns its index.
    pub(crate) async fn wait_for_leader(&self) -> usize {
        eventually("a member that leads", async || {
            for (number, member) in self.members.iter().enumerate().filter(|(_, member)| member.child.is_some()) {
                let status = member.client().await.status().await.ok()?;
                if status.header()?.member_id() == status.leader() {
                    return Some(number);
                }
            }
            None
        })
        .await
    }
}

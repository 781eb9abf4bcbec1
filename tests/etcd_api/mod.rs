//! Tests of meshkeep's etcd API with etcd's clients, and comparisons with a real etcd.

mod agents;
mod bounds;
mod clients;
mod conformance;
mod copies;
mod rights;
mod watches;

use std::collections::BTreeMap;

use etcd_client::{Client, ConnectOptions, GetOptions, GetResponse};

use crate::harness::etcd::etcd_binaries;
use crate::harness::mesh::{EVERY_KIND, Form, MeshCluster};
use crate::harness::meshkeep::{Home, Meshkeep};
use crate::harness::scene::{Remote, wait_until_served};
use crate::harness::truth::Truth;

/// Flag that enables the etcd API, on a free port.
const FLAG: &str = "--etcd-listen=127.0.0.1:0";

/// The cluster `c01` with objects of every kind, a sidecar that mirrors it and serves it as an
/// etcd, and a client of the sidecar's etcd API.
struct MirroredCluster {
    remote: Remote,
    home: Home,
    meshkeep: Meshkeep,
    api: Client,
}

impl MirroredCluster {
    async fn start() -> Self {
        Self::with_flags(&[FLAG]).await
    }

    async fn with_flags(flags: &[&str]) -> Self {
        let remote = Remote::start(&etcd_binaries()[0], Form::State, vec![MeshCluster::generate(1, EVERY_KIND)]).await;
        let mut home = Home::new().with_flags(flags);
        home.write_cluster("c01", &remote.client_file());
        let meshkeep = home.start().await;
        meshkeep.wait_for_phase("c01", "live").await;
        let api = client(&etcd_api_url(&home)).await;
        let mirrored = Self { remote, home, meshkeep, api };
        mirrored.wait_until_served("the first loading").await;
        mirrored
    }

    /// Waits until the sidecar serves everything in the cluster.
    async fn wait_until_served(&self, after: &str) {
        wait_until_served(&self.meshkeep, &Truth::from_clusters(&self.remote.clusters).expected(), after).await;
    }

    /// Kills the sidecar, changes the cluster while it is down, starts it again, and waits until it
    /// serves everything.
    async fn restart_after_kill(mut self, meanwhile: impl FnMut(&mut MeshCluster)) -> Self {
        self.meshkeep.kill();
        self.remote.change(meanwhile).await;
        self.meshkeep = self.home.start().await;
        self.api = client(&etcd_api_url(&self.home)).await;
        self.wait_until_served("a kill").await;
        self
    }

    /// Returns the URL of the etcd API.
    fn url(&self) -> String {
        etcd_api_url(&self.home)
    }
}

/// Returns the URL of the etcd API of a sidecar that has just started.
fn etcd_api_url(home: &Home) -> String {
    let output = home.output();
    let line = output.lines().find_map(|line| line.strip_prefix("listening on ")?.strip_suffix(" as an etcd"));
    line.unwrap_or_else(|| panic!("no etcd API in {output}")).to_owned()
}

async fn client(url: &str) -> Client {
    Client::connect([url], Some(ConnectOptions::new())).await.unwrap()
}

/// Lists all keys with a prefix.
async fn list(client: &mut Client, prefix: &str) -> GetResponse {
    client.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap()
}

fn values(listed: &GetResponse) -> BTreeMap<Vec<u8>, Vec<u8>> {
    listed.kvs().iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec())).collect()
}

//! CPU time for each change that has an etcd revision of its own.

use std::time::{Duration, Instant};

use etcd_client::Client;
use meshkeep::internals::model::{EntryKey, Kind};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::{Program, Table, create_directory, rounds};
use crate::processes::{Outcome, add_cluster, start_etcd, start_meshkeep_program, until};
use crate::sync::source;
use crate::view::data::{self, sized};

/// Number of clusters, which have about 1,300 keys in all. The changed keys are additional.
const CLUSTERS: u32 = 3;

/// Maximum time until the mirror has all changes.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Rates in changes per second.
const RATES: [u32; 2] = [100, 1_000];

/// Kinds of changes, in the order in which they are made to the same keys.
#[derive(Debug, Clone, Copy)]
enum Step {
    NewKey,
    Put,
    Delete,
}

pub(super) fn run(runtime: &Runtime, programs: &[Program]) -> Outcome<()> {
    runtime.block_on(measure(programs))
}

async fn measure(programs: &[Program]) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    source::fill(&client, sized(100_000, 3_000)).await?;
    let mut table = Table::new();
    for round in 0..rounds() {
        for (index, program) in programs.iter().enumerate() {
            let directory = create_directory(home.path(), program, "")?;
            for number in 1..=CLUSTERS {
                add_cluster(&directory, data::cluster(number).as_str(), &url)?;
            }
            let (meshkeep, address) = start_meshkeep_program(&program.path, &directory)?;
            until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
            // wait until the work of the start is done
            tokio::time::sleep(sized(Duration::from_secs(3), Duration::ZERO)).await;
            for rate in RATES {
                let count = rate * sized(4, 1);
                for step in [Step::NewKey, Step::Put, Step::Delete] {
                    let busy = meshkeep.busy()?;
                    change(&client, step, rate, count, round).await?;
                    until(&address, &last_lookup(count), &expected(step, round), TIME_MAX).await?;
                    let micros = (meshkeep.busy()? - busy).as_secs_f64() * 1e6 / f64::from(count);
                    table.add(&format!("{step:?} at {rate}/s"), index, micros);
                }
            }
            meshkeep.terminate()?;
        }
    }
    table.print("us of CPU time a change", programs);
    Ok(())
}

/// Returns the cluster and the index of the `number`th changed entry. No filled entry has it.
const fn changed_entry(number: u32) -> (u32, u32) {
    (number % CLUSTERS + 1, data::IPS + number / CLUSTERS)
}

fn pod(step: Step, round: usize) -> String {
    format!("{step:?}-{round}").to_lowercase()
}

/// Makes one change at a time to `count` entries.
async fn change(client: &Client, step: Step, rate: u32, count: u32, round: usize) -> Outcome<()> {
    let (began, mut changing) = (Instant::now(), JoinSet::new());
    for number in 0..count {
        let (cluster, index) = changed_entry(number);
        let key = EntryKey::new(Kind::Ip, data::cluster(cluster), data::address(cluster, index).to_string()).to_string();
        let value = data::ip_value(cluster, index, &pod(step, round));
        let mut client = client.clone();
        changing.spawn(async move {
            match step {
                Step::Delete => client.delete(key, None).await.map(drop),
                Step::NewKey | Step::Put => client.put(key, value, None).await.map(drop),
            }
        });
        tokio::time::sleep_until((began + Duration::from_secs(1) * (number + 1) / rate).into()).await;
    }
    while let Some(changed) = changing.join_next().await {
        changed??;
    }
    Ok(())
}

fn last_lookup(count: u32) -> String {
    let (cluster, index) = changed_entry(count - 1);
    format!("/v1/ipcache?cluster=cluster-{cluster}&cidr={}/32", data::address(cluster, index))
}

/// Returns a text that is in the answer once the last change is served.
fn expected(step: Step, round: usize) -> String {
    match step {
        Step::Delete => "\"items\":[]".to_owned(),
        Step::NewKey | Step::Put => pod(step, round),
    }
}

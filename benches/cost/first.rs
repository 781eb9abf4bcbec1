//! CPU time for each key of a first list, and the resident memory after it.

use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use super::{Program, Table, create_directory, rounds};
use crate::processes::{Outcome, add_cluster, start_etcd, start_meshkeep_program, until};
use crate::sync::source;
use crate::view::data::{self, sized};

/// Maximum time of a first list.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Returns the times after a first list at which the resident memory is read.
fn sample_times() -> [Duration; 2] {
    sized([Duration::from_secs(20), Duration::from_secs(60)], [Duration::from_millis(100), Duration::from_millis(200)])
}

pub(super) fn run(runtime: &Runtime, programs: &[Program]) -> Outcome<()> {
    runtime.block_on(measure(programs))
}

async fn measure(programs: &[Program]) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (_etcd, url, client) = start_etcd(home.path()).await?;
    let (count, _) = source::fill(&client, sized(1_000_000, 3_000)).await?;
    let mut table = Table::new();
    for _ in 0..rounds() {
        for (index, program) in programs.iter().enumerate() {
            let directory = create_directory(home.path(), program, "")?;
            for number in 1..=data::clusters() {
                add_cluster(&directory, data::cluster(number).as_str(), &url)?;
            }
            let began = Instant::now();
            let (meshkeep, address) = start_meshkeep_program(&program.path, &directory)?;
            until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
            let (served, busy) = (began.elapsed(), meshkeep.busy()?);
            table.add("seconds until everything is served", index, served.as_secs_f64());
            table.add("us of CPU time a key", index, busy.as_secs_f64() * 1e6 / count as f64);
            table.add("MB resident when served", index, meshkeep.resident_mb()? as f64);
            let ended = Instant::now();
            for time in sample_times() {
                tokio::time::sleep_until((ended + time).into()).await;
                table.add(&format!("MB resident {time:.0?} later"), index, meshkeep.resident_mb()? as f64);
            }
            meshkeep.terminate()?;
            let (meshkeep, address) = start_meshkeep_program(&program.path, &directory)?;
            until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
            tokio::time::sleep(sample_times()[0]).await;
            table.add("MB resident after a restart", index, meshkeep.resident_mb()? as f64);
            meshkeep.terminate()?;
            std::fs::remove_dir_all(directory)?;
        }
    }
    table.print(&format!("first list of {count} keys of {} clusters", data::clusters()), programs);
    Ok(())
}

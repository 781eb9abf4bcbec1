//! Measures the memory that reflecting needs in addition to mirroring.

use std::time::Duration;

use super::{TIME_MAX, data, filled, sized, start_reflect, write_files};
use crate::processes::{Outcome, RunningProcess, ask, start_etcd, start_meshkeep, until};
use crate::sync::source::fill;

/// Time after which the memory of a start and of a fill should be released.
const SETTLED_AFTER: Duration = Duration::from_secs(30);

async fn resident_when_settled(meshkeep: &RunningProcess, address: &str) -> Outcome<u64> {
    until(address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    tokio::time::sleep(sized(SETTLED_AFTER, Duration::from_secs(1))).await;
    meshkeep.resident_mb()
}

pub(crate) async fn memory(keys: u32) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (source_home, target_home) = (home.path().join("source"), home.path().join("target"));
    std::fs::create_dir_all(&source_home)?;
    std::fs::create_dir_all(&target_home)?;
    let (_source, source_url, client) = start_etcd(&source_home).await?;
    let (total, bytes) = fill(&client, keys).await?;
    let (_target, target_url, target) = start_etcd(&target_home).await?;
    write_files(home.path(), &source_url, &target_url)?;
    println!("memory: {total} keys of {} clusters, {} MB", data::clusters(), bytes / 1_000_000);
    // the first start fills the store; the compared ones start with a full store
    let (meshkeep, address) = start_meshkeep(home.path())?;
    resident_when_settled(&meshkeep, &address).await?;
    meshkeep.terminate()?;
    let (meshkeep, address) = start_meshkeep(home.path())?;
    let mirrored = resident_when_settled(&meshkeep, &address).await?;
    meshkeep.terminate()?;
    let (meshkeep, address) = start_reflect(home.path())?;
    filled(&target, total).await?;
    until(&address, "/v1/status", "\"waiting\":0", TIME_MAX).await?;
    let filling = resident_when_settled(&meshkeep, &address).await?;
    let leader = ask(&address, "/v1/status").await?.contains("\"leader\":true");
    meshkeep.terminate()?;
    // a reflector that finds every key takes over the existing leases
    let (meshkeep, address) = start_reflect(home.path())?;
    until(&address, "/v1/status", &format!("\"clusters\":{}", data::clusters()), TIME_MAX).await?;
    let taken_over = resident_when_settled(&meshkeep, &address).await?;
    meshkeep.terminate()?;
    println!(
        "  mirroring {mirrored} MB resident; reflecting (leads: {leader}) {filling} MB after filling the target (+{}), {taken_over} MB after finding it full (+{})",
        filling.saturating_sub(mirrored),
        taken_over.saturating_sub(mirrored)
    );
    Ok(())
}

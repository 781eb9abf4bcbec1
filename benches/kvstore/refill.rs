//! Measures how fast `meshkeep reflect` fills a target etcd again that has lost its data.

use std::sync::Arc;
use std::time::Instant;

use super::bare::{entries, put_all};
use super::{ROUNDS, count, data, filled, median, per_second, sized, start_reflect, write_files};
use crate::processes::{Outcome, Ports, etcd_binary, start_etcd, start_etcd_at};
use crate::sync::source::fill;

pub(crate) async fn refill(keys: u32) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let (source_home, target_home, ports) = (home.path().join("source"), home.path().join("target"), Ports::free()?);
    std::fs::create_dir_all(&source_home)?;
    std::fs::create_dir_all(&target_home)?;
    let (source, source_url, client) = start_etcd(&source_home).await?;
    let (total, bytes) = fill(&client, keys).await?;
    let (mut target, target_url, target_client) = start_etcd_at(&etcd_binary(), &target_home, &ports).await?;
    write_files(home.path(), &source_url, &target_url)?;
    let (meshkeep, _) = start_reflect(home.path())?;
    let (_, first) = filled(&target_client, total).await?;
    println!(
        "refill: {total} keys of {} clusters, {} MB; first filled at {:.0} keys/s while they were read",
        data::clusters(),
        bytes / 1_000_000,
        per_second(total, first)
    );
    // from here on the sources are down: only retained entries can be written
    drop(source);
    let all = Arc::new(entries(keys));
    let mut ratios = Vec::new();
    for _ in 0..sized(ROUNDS.div_ceil(2), 1) {
        let bare_home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
        let (bare_etcd, _, bare_client) = start_etcd(bare_home.path()).await?;
        let began = Instant::now();
        put_all(&bare_client, Arc::clone(&all)).await?;
        let bare = per_second(total, began.elapsed());
        drop((bare_etcd, bare_home));

        drop(target);
        std::fs::remove_dir_all(target_home.join("etcd"))?;
        let lost_at = Instant::now();
        let (restarted, _, target_client) = start_etcd_at(&etcd_binary(), &target_home, &ports).await?;
        target = restarted;
        let (first_at, elapsed) = filled(&target_client, total).await?;
        let refilled = per_second(total, elapsed);
        ratios.push(refilled / bare);
        println!(
            "  bare puts {bare:.0} keys/s; refilled at {refilled:.0} keys/s (ratio {:.2}), from {:.1} s after the loss on; {} MB resident",
            refilled / bare,
            first_at.duration_since(lost_at).as_secs_f64(),
            meshkeep.resident_mb()?
        );
        assert_eq!(count(&target_client).await?, total);
    }
    println!("  median ratio {:.2}", median(ratios));
    meshkeep.terminate()
}

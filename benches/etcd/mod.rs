//! Bench of the sidecar's etcd API against real etcds with the same keys: `cargo bench -- etcd
//! [keys...]` (default: 300,000 and 1,000,000).
//!
//! An etcd 3.5 and an etcd 3.7 (`ETCD35_BIN`, `ETCD37_BIN`) get the same keys. The real sidecar
//! mirrors the second and serves it with `--etcd-listen` and over HTTP. The same client in this
//! process uses all three in turn, several times: lists of everything in pages, as a stream, and by
//! cluster; single keys; many watches of everything that changes; memory when nothing changes; and
//! the time from a start to the first answer. Clients and servers share the machine, so only ratios
//! are meaningful. There are no thresholds.

mod lists;
mod starts;
mod watchers;

use crate::sync::source;
use crate::view::data;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Client, GetOptions};

use crate::processes::{Outcome, RunningProcess, add_cluster, start_etcd_of, start_meshkeep_with, until};
use crate::view::data::sized;

/// Prefix of all keys that are listed and watched.
pub(crate) const PREFIX: &str = "cilium/cache/";

/// End of the range of all keys with [`PREFIX`].
pub(crate) const PREFIX_END: &str = "cilium/cache0";

/// Maximum time for syncing.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Arguments for a sidecar that serves HTTP and the etcd API.
const SERVE: [&str; 3] = ["serve", "--etcd-listen", "127.0.0.1:0"];

/// A server under test.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    pub(crate) home: PathBuf,
    pub(crate) running: Option<RunningProcess>,
    pub(crate) url: String,
    pub(crate) client: Client,
}

#[derive(Clone)]
pub(crate) enum Program {
    Meshkeep,
    Etcd(String),
}

/// The sidecar, then the etcds. The sidecar mirrors the last one.
pub(crate) type Contenders = [Contender; 3];

pub(crate) fn run(words: &[String]) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut sizes = words.iter().map(|word| word.parse::<u32>()).collect::<Result<Vec<u32>, _>>()?;
    if sizes.is_empty() {
        sizes = sized(vec![300_000, 1_000_000], vec![300_000]);
    }
    sizes.into_iter().try_for_each(|keys| runtime.block_on(measure(keys)))
}

/// Returns how often each figure is measured.
pub(crate) fn rounds() -> usize {
    sized(3, 1)
}

async fn measure(keys: u32) -> Outcome<()> {
    let home = tempfile::Builder::new().prefix("meshkeep-bench-").tempdir()?;
    let mut all = stage(home.path(), keys).await?;
    let listed = lists::every_key(&all).await?;
    println!("{} keys of {} clusters", listed.len(), data::clusters());
    for contender in &all {
        contender.has_as_many_keys(listed.len()).await?;
    }
    report("resident memory when idle, MB", &memory(&all)?, false);
    lists::measure(&all, &listed).await?;
    watchers::measure(&all).await?;
    starts::measure(&mut all, &listed[0]).await
}

async fn stage(home: &Path, keys: u32) -> Outcome<Contenders> {
    let old = etcd(home, "etcd 3.5", "ETCD35_BIN").await?;
    let new = etcd(home, "etcd 3.7", "ETCD37_BIN").await?;
    tokio::try_join!(source::fill(&old.client, keys), source::fill(&new.client, keys))?;
    let home = home.join("meshkeep");
    for number in 1..=data::clusters() {
        add_cluster(&home, data::cluster(number).as_str(), &new.url)?;
    }
    let (running, address, url) = start_meshkeep_with(&home, &SERVE)?;
    until(&address, "/readyz?synced", "200 OK", TIME_MAX).await?;
    // wait until the memory of the first sync is released and its last changes are folded
    tokio::time::sleep(sized(Duration::from_secs(20), Duration::ZERO)).await;
    let url = url.ok_or("it does not serve an etcd")?;
    let client = Client::connect([&url], None).await?;
    let meshkeep = Contender { name: "meshkeep", program: Program::Meshkeep, home, running: Some(running), url, client };
    Ok([meshkeep, old, new])
}

async fn etcd(home: &Path, name: &'static str, variable: &str) -> Outcome<Contender> {
    let binary = std::env::var(variable).map_err(|_| format!("{variable} must name {name}: scripts/test installs it"))?;
    let home = home.join(name.replace(' ', "-"));
    let (running, url, client) = start_etcd_of(&binary, &home).await?;
    Ok(Contender { name, program: Program::Etcd(binary), home, running: Some(running), url, client })
}

fn memory(all: &Contenders) -> Outcome<Vec<f64>> {
    let resident = |contender: &Contender| Ok(contender.running.as_ref().ok_or("it does not run")?.resident_mb()? as f64);
    all.iter().map(resident).collect()
}

impl Contender {
    /// Returns an error if the server does not have exactly `count` keys.
    async fn has_as_many_keys(&self, count: usize) -> Outcome<()> {
        let options = GetOptions::new().with_range(PREFIX_END).with_count_only();
        let found = self.client.clone().get(PREFIX, Some(options)).await?.count();
        if usize::try_from(found)? == count { Ok(()) } else { Err(format!("{} has {found} keys of {count}", self.name).into()) }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints one line with each contender's value and the ratios of the sidecar to the etcds.
/// `more_is_better` is true for a rate.
pub(crate) fn report(what: &str, values: &[f64], more_is_better: bool) {
    let [meshkeep, etcds @ ..] = values else { return };
    let names = if etcds.len() == 1 { &["etcd 3.7"][..] } else { &["etcd 3.5", "etcd 3.7"] };
    let others: Vec<String> =
        names.iter().zip(etcds).map(|(name, value)| format!("{name} {value:.1} (ratio {:.3})", meshkeep / value)).collect();
    println!("  {what}: meshkeep {meshkeep:.1}, {}{}", others.join(", "), if more_is_better { "" } else { "; less is better" });
}

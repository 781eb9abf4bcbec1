//! The summary equals a pass over all clusters after any sequence of changes.

use std::time::{Instant, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;

use super::*;
use crate::commit::MirrorSnapshot;
use crate::feed::{Feed, Retention};
use crate::handle::ClusterStatuses;
use crate::handle::summary::SummaryCache;
use crate::model::{
    Change, ClusterConfig, ClusterId, ClusterName, ClusterRecord, ClusterStatus, Command, Cursor, DeleteReason, EntryKey, Epoch,
    EtcdClusterId, Identity, Object, Revision, Scope, Sequence, SourceStamp,
};
use crate::view::View;

const CLUSTERS: [&str; 6] = ["berlin", "eu", "eu-west", "oslo", "paris", "tokyo"];

fn random_cluster(random: &mut StdRng) -> ClusterName {
    ClusterName::parse(CLUSTERS[random.random_range(0..CLUSTERS.len())]).unwrap()
}

fn random_command(random: &mut StdRng) -> Command {
    let scope = Scope { cluster: random_cluster(random), kind: Kind::ALL[random.random_range(0..Kind::ALL.len())] };
    let cluster = scope.cluster.clone();
    match random.random_range(0..12) {
        0 => Command::Phase { cluster, phase: Phase::ALL[random.random_range(0..Phase::ALL.len())], cause: 0 },
        1 => Command::Phase { cluster, phase: Phase::Live, cause: 0 },
        2 => {
            let config = ClusterConfig { id: ClusterId(random.random_range(0..3)), ..ClusterConfig::default() };
            let last_contact = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(random.random_range(0..9)));
            Command::StoreCluster { cluster, record: ClusterRecord { config: Some(config), last_contact, ..ClusterRecord::default() } }
        }
        3 => Command::BeginList(scope),
        4 => Command::Prune(scope),
        5 | 6 => Command::Confirm(scope),
        7 if random.random_ratio(1, 4) => {
            let reasons = [DeleteReason::ClusterRemoved, DeleteReason::Deleted];
            Command::Remove { cluster, reason: reasons[random.random_range(0..2)] }
        }
        _ => {
            let key = EntryKey::new(Kind::Identity, cluster.clone(), random.random_range(1..3).to_string());
            let object = Object::Identity(Identity { id: 1, labels: Default::default() });
            let change = match random.random_range(0..3) {
                0 => Change::Delete { key },
                _ => {
                    let value: Arc<[u8]> = [random.random::<u8>()].into();
                    Change::Put { key, value, decoded: Ok(Arc::new(object)), source: SourceStamp::default() }
                }
            };
            let cursor = Cursor::new(EtcdClusterId(1), Revision(random.random_range(1..99)), false);
            let cursor = random.random::<bool>().then_some(cursor);
            Command::Apply { scope: Scope { cluster, kind: Kind::Identity }, changes: vec![change], cursor }
        }
    }
}

/// Replaces the client files of all clusters.
fn random_statuses(random: &mut StdRng) -> ClusterStatuses {
    let mut statuses = BTreeMap::new();
    for _ in 0..random.random_range(0..CLUSTERS.len()) {
        let mut status = ClusterStatus::new(Instant::now());
        status.phase = Phase::ALL[random.random_range(0..Phase::ALL.len())];
        status.last_contact = random.random::<bool>().then(Instant::now);
        statuses.insert(random_cluster(random), watch::channel(status).1);
    }
    Arc::new(statuses)
}

/// Compares the summary of a reading with a pass over all clusters.
fn compare(reading: &Reading) {
    let (view, summary) = (&reading.published.view, reading.summary());
    let names: Vec<ClusterName> = view.cluster_names().into_iter().filter(|name| reading.cluster(name).is_some()).collect();
    assert_eq!(
        (summary.clusters.iter().map(|cluster| cluster.name.clone()).collect::<Vec<_>>(), reading.cluster_names()),
        (names.clone(), names.clone())
    );
    let readings: Vec<_> = names.iter().filter_map(|name| reading.cluster(name)).collect();
    let mut phases = BTreeMap::new();
    readings.iter().filter_map(|cluster| cluster.phase).for_each(|phase| *phases.entry(phase).or_insert(0) += 1);
    assert_eq!(reading.phase_counts(), phases);
    let (mut never_read, mut restored, mut unread_nodes) = (Vec::new(), Vec::new(), Vec::new());
    for cluster in &readings {
        let of = summary.cluster(&cluster.name).unwrap();
        let sources: Vec<_> = cluster.resources.iter().map(|resource| resource.source.clone()).collect();
        assert_eq!(of.origins.to_vec(), sources.iter().map(|source| source.origin).collect::<Vec<_>>());
        assert_eq!((of.config_id, of.status.is_some()), (cluster.record.config.as_ref().map(|config| config.id), cluster.status.is_some()));
        assert_eq!(of.status.as_ref().and(reading.age_of(of)).is_some(), of.status.as_ref().and(sources[0].age).is_some());
        match sources[Kind::Ip.index()].origin.min(sources[Kind::Node.index()].origin) {
            Origin::NeverRead => never_read.push(cluster.name.clone()),
            Origin::Restored => restored.push(cluster.name.clone()),
            Origin::Live | Origin::Dump => {}
        }
        if sources[Kind::Node.index()].origin == Origin::NeverRead {
            unread_nodes.push(cluster.name.clone());
        }
    }
    assert_eq!((&summary.never_read, &summary.restored, &summary.unread_nodes), (&never_read, &restored, &unread_nodes));
    let is_synced = reading.configured_clusters().iter().all(|name| {
        let is_live = |cluster: &&crate::handle::ClusterReading| {
            view.phase(name) == Some(Phase::Live) && cluster.resources.iter().all(|resource| resource.source.origin == Origin::Live)
        };
        readings.iter().filter(|cluster| cluster.name == *name).any(|cluster| is_live(&cluster))
    });
    assert_eq!(summary.is_synced, is_synced);
    let is_first_list = |cluster: &crate::handle::ClusterReading| {
        view.phase(&cluster.name) == Some(Phase::Listing)
            && cluster.resources.iter().any(|resource| resource.source.origin == Origin::NeverRead)
    };
    assert_eq!(summary.has_first_lists, readings.iter().any(is_first_list));
}

#[test]
fn the_summary_equals_a_pass_over_all_clusters() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let (cache, mut statuses, mut view) = (SummaryCache::default(), ClusterStatuses::default(), View::starting_at(Sequence(0)));
        let feed = Feed::starting_at(Sequence(0), Retention { age_max: Duration::from_secs(3600), count_max: 1000 });
        let is_dump = random.random_ratio(1, 6);
        for _ in 0..150 {
            view.apply(random_command(&mut random), SystemTime::UNIX_EPOCH);
            if random.random_ratio(1, 10) {
                statuses = random_statuses(&mut random);
            }
            let snapshot = MirrorSnapshot { view: view.clone(), feed: feed.clone(), epoch: Epoch(1), earlier_runs: Arc::default() };
            let reading = Reading { is_dump, summary: cache.clone(), ..Reading::new(Arc::new(snapshot), Arc::clone(&statuses)) };
            compare(&reading);
            // the same facts are not computed again
            assert!(Arc::ptr_eq(&reading.summary(), &reading.clone().summary()));
        }
    }
}

//! Cost of one page of each list with each filter, for mirrors of about 10,000, 100,000 and a
//! million keys.
//!
//! The cost of a page must follow what the page returns. A line that costs more in a large mirror
//! is marked `grows`. Some filters ask the dictionaries of each chunk, or each object of a kind.
//! Their cost must stay below a budget for each chunk or object.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use meshkeep::internals::commit::MirrorSnapshot;
use meshkeep::internals::feed::{Feed, Retention};
use meshkeep::internals::handle::{ClusterStatuses, Filter, LabelSelector, Reading, SearchText, SliceLimit, WorkSlice};
use meshkeep::internals::model::{EntryKey, Epoch, Kind};

use super::data::{address, cluster, sized};
use super::figures::{mean_us, mirror_of, thread_time};

/// Numbers of clusters, with about 3,900 keys each.
fn mirror_sizes() -> Vec<u32> {
    sized(vec![3, 26, 255], vec![3, 26])
}

/// Maximum number of items on a page.
const ITEMS_MAX: usize = 50;

/// Factor by which the cost of an item may grow.
const GROWTH_MAX: f64 = 1.5;

/// What the cost of a line may grow with.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    /// Only the answer.
    None,
    /// The dictionaries of all chunks of the kind.
    Chunks,
    /// All objects of the kind.
    Objects,
}

impl Pass {
    /// Returns the budget in microseconds for each chunk or object.
    fn budget(self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Chunks => 0.5,
            Self::Objects => 0.25,
        }
    }
}

struct Line {
    name: &'static str,
    kind: Kind,
    filter: Filter,
    pass: Pass,
}

/// Cost of a line in one mirror.
struct Cost {
    page_us: f64,
    items: usize,
    /// Number of chunks or objects that the line passes over.
    passed: usize,
}

fn lines() -> Vec<Line> {
    let line = |name, kind, pass, filter| Line { name, kind, filter, pass };
    let text = |text: &str| Some(text.to_owned());
    let host = |ip: &str| Some(vec![(None, ip.parse().expect("must be an address"))]);
    let labels = |selector: &str| LabelSelector::parse(selector).ok();
    let search = |text: &str| Some(SearchText::new(text));
    let all = Filter::default;
    let (identity, network) = (Some((2 << 16) + 300), format!("{}/28", address(2, 0)).parse().ok());
    // the first pod of a cluster in the middle of the key order
    let pod = super::data::values(Kind::Ip, 2).first().and_then(|(_, value)| {
        value.split_once(r#""K8sPodName":""#).and_then(|(_, rest)| rest.split_once('"')).map(|(pod, _)| pod.to_owned())
    });
    vec![
        line("ipcache", Kind::Ip, Pass::None, all()),
        line("ipcache cluster=", Kind::Ip, Pass::None, Filter { clusters: vec![cluster(2)], ..all() }),
        line("ipcache cidr=", Kind::Ip, Pass::None, Filter { cidr: network, ..all() }),
        line("ipcache identity=", Kind::Ip, Pass::None, Filter { identity, ..all() }),
        line("ipcache identity=, none", Kind::Ip, Pass::Chunks, Filter { identity: Some(77), ..all() }),
        line("ipcache node=", Kind::Ip, Pass::Chunks, Filter { hosts: host("172.16.2.7"), ..all() }),
        line("ipcache node=, none", Kind::Ip, Pass::Chunks, Filter { hosts: host("172.99.2.7"), ..all() }),
        line("ipcache pod=", Kind::Ip, Pass::Chunks, Filter { pod, ..all() }),
        line("ipcache pod=, none", Kind::Ip, Pass::Chunks, Filter { pod: text("cart-7-abc-x2k4z"), ..all() }),
        line("ipcache namespace=", Kind::Ip, Pass::None, Filter { namespace: text("team-17"), ..all() }),
        line("ipcache namespace=, none", Kind::Ip, Pass::Chunks, Filter { namespace: text("nobody"), ..all() }),
        line(
            "ipcache namespace= pod=, none",
            Kind::Ip,
            Pass::Chunks,
            Filter { namespace: text("team-17"), pod: text("cart-7-abc-x2k4z"), ..all() },
        ),
        line("ipcache search=", Kind::Ip, Pass::None, Filter { search: search("payments"), ..all() }),
        line("ipcache search=, none", Kind::Ip, Pass::Chunks, Filter { search: search("nobody"), ..all() }),
        line("nodes", Kind::Node, Pass::None, all()),
        line("nodes name=", Kind::Node, Pass::None, Filter { name: text("ip-10-2-0-7.eu-west-1.compute.internal"), ..all() }),
        line("nodes ip=", Kind::Node, Pass::None, Filter { ip: "172.16.2.8".parse().ok(), ..all() }),
        line("nodes labelSelector=", Kind::Node, Pass::None, Filter { labels: labels("topology.kubernetes.io/zone=eu-west-1b"), ..all() }),
        line("nodes labelSelector=, none", Kind::Node, Pass::Objects, Filter { labels: labels("kubernetes.io/os=beos"), ..all() }),
        line("nodes search=, none", Kind::Node, Pass::Objects, Filter { search: search("nobody"), ..all() }),
        line("identities", Kind::Identity, Pass::None, all()),
        line(
            "identities labelSelector=",
            Kind::Identity,
            Pass::None,
            Filter { labels: labels("io.kubernetes.pod.namespace=team-17"), ..all() },
        ),
        line("identities labelSelector=, none", Kind::Identity, Pass::Objects, Filter { labels: labels("app=nobody"), ..all() }),
        line("identities search=, none", Kind::Identity, Pass::Objects, Filter { search: search("nobody"), ..all() }),
        line("services", Kind::Service, Pass::None, all()),
        line("services namespace=", Kind::Service, Pass::None, Filter { namespace: text("team-17"), ..all() }),
        line("services labelSelector=, none", Kind::Service, Pass::Objects, Filter { labels: labels("app=nobody"), ..all() }),
        line("services search=, none", Kind::Service, Pass::Objects, Filter { search: search("nobody"), ..all() }),
    ]
}

/// Measures each line in each mirror.
pub(crate) fn filters() {
    let lines = lines();
    let mut costs: Vec<Vec<Cost>> = lines.iter().map(|_| Vec::new()).collect();
    for count in mirror_sizes() {
        let snapshot = snapshot_of(count);
        for (line, costs) in lines.iter().zip(&mut costs) {
            costs.push(measure(&snapshot, line));
        }
    }
    for (line, costs) in lines.iter().zip(&costs) {
        let figures: Vec<String> = costs.iter().map(|cost| format!("{:8.1} us for {:2}", cost.page_us, cost.items)).collect();
        println!("  {:32} {}{}", line.name, figures.join(", "), verdict(line, costs));
    }
}

fn verdict(line: &Line, costs: &[Cost]) -> String {
    let (Some(small), Some(large)) = (costs.first(), costs.last()) else { return String::new() };
    if line.pass == Pass::None {
        let growth = mean(large.page_us, large.items) / mean(small.page_us, small.items);
        return format!("; {growth:.2} times{}", if growth > GROWTH_MAX { ": grows" } else { "" });
    }
    let (each, budget) = (mean(large.page_us, large.passed), line.pass.budget());
    let unit = if line.pass == Pass::Chunks { "chunk" } else { "object" };
    format!("; {each:.3} us for each of {} {unit}s{}", large.passed, if each > budget { ": over budget" } else { "" })
}

fn mean(us: f64, count: usize) -> f64 {
    us / f64::from(u32::try_from(count.max(1)).expect("must be few"))
}

fn snapshot_of(clusters: u32) -> Arc<MirrorSnapshot> {
    let view = mirror_of(clusters);
    println!("  {clusters} clusters, {} keys", view.entry_count());
    let feed = Feed::starting_at(view.sequence(), Retention { age_max: Duration::from_secs(3_600), count_max: 1_000 });
    Arc::new(MirrorSnapshot { view, feed, epoch: Epoch(1), earlier_runs: Arc::default() })
}

/// Measures the first page of a list.
fn measure(snapshot: &Arc<MirrorSnapshot>, line: &Line) -> Cost {
    let (mut items, mut rounds) = (0, 0);
    let reading = Reading::new(Arc::clone(snapshot), ClusterStatuses::default());
    let began = thread_time();
    while rounds == 0 || thread_time() - began < sized(Duration::from_millis(100), Duration::from_millis(5)) {
        items = read_page(&reading, line);
        rounds += 1;
    }
    let page_us = mean_us(thread_time() - began, rounds);
    let view = &snapshot.view;
    let passed = match line.pass {
        Pass::None => 0,
        Pass::Chunks => {
            view.chunks().filter(|chunk| chunk.scopes().any(|(rows, _)| chunk.scope(rows.start).0.listed_as() == line.kind)).count()
        }
        Pass::Objects => usize::try_from(view.object_count(line.kind)).expect("must be few"),
    };
    Cost { page_us, items, passed }
}

fn read_page(reading: &Reading, line: &Line) -> usize {
    let plan = reading.plan_list(line.kind, &line.filter);
    let (mut items, mut slice) = (0, WorkSlice::begin(SliceLimit::Time(Duration::from_secs(3_600))));
    black_box(reading.scan(&plan, None::<&EntryKey>, &mut slice, |record| {
        black_box(record);
        items += 1;
        items < ITEMS_MAX
    }));
    items
}

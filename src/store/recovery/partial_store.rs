//! What a start can say before it has read everything: a lookup reads just the chunks that may matter to it.
//!
//! Owns: which chunks those are, and that they are what the manifest says. Emits: parts of what [`crate::store::Store::load`] gives later,
//! complete for what was asked, or nothing. Deliberately lacks: what entries mean (the caller decodes), and damage: where anything is not as it
//! should be, the reading has to wait for `slot_scan`, which knows what to do.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::thread;

use ipnet::IpNet;
use memchr::memmem;

use super::load::{Loaded, Scan};
use super::slot_scan::Early;
use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Record, RecordQuery};
use crate::pack::Chunk;
use crate::store::encoding::change::Key;
use crate::store::encoding::codec;
use crate::store::encoding::pairs::Pair;
use crate::store::engine::Engine;
use crate::store::engine::slots::Slots;
use crate::store::manifest::Entry;
use crate::store::objects::object;
use crate::store::objects::packing::{self, Content};
use crate::store::objects::pending::Pending;

/// What was asked for, and some other entries. As in [`Loaded`].
#[derive(Debug, Default)]
pub struct EarlyEntries {
    /// Entries, in key order.
    pub chunks: Vec<Chunk>,
    /// Newer ones; `None` is gone.
    pub changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
}

/// A store of which only the beginning was read.
#[derive(Debug)]
pub struct PartialStore {
    /// Not held open: where opening the store fails after all, it must be closed at once.
    engine: Weak<Engine>,
    early: Early,
    /// Everything but entries and tombstones.
    pub known: Loaded,
    /// The clusters that may have entries.
    pub clusters: BTreeSet<ClusterName>,
}

impl PartialStore {
    /// `None` where not even the beginning is whole.
    pub(in crate::store) fn new(engine: &Arc<Engine>, early: Early) -> Option<Self> {
        let (known, clusters) = thread::scope(|scope| {
            let clusters = scope.spawn(|| early.clusters());
            (early.known(&**engine), clusters.join().ok())
        });
        Some(Self { engine: Arc::downgrade(engine), known: known?, clusters: clusters?, early })
    }

    /// Reads what questions ask for. `None` where that cannot be done; then everything has to be read.
    #[must_use]
    pub fn read(&self, questions: &[RecordQuery]) -> Option<EarlyEntries> {
        let engine = self.engine.upgrade()?;
        self.early.read(&*engine, questions)
    }
}

impl Early {
    /// The cursors, clusters and marks.
    fn known<S: Slots>(&self, slots: &S) -> Option<Loaded> {
        let mut scan = Scan::default();
        for (low, entry) in self.entries.iter().filter(|(low, _)| !packing::holds_entries(low) && ***low < [codec::TOMBSTONE][..]) {
            let Content::Items(items) = self.content(slots, low, entry)? else { return None };
            items.iter().filter(|(key, _)| key.first() != Some(&codec::TOMBSTONE)).for_each(|(key, body)| scan.take(key, body));
        }
        scan.is_whole().then_some(scan.loaded)
    }

    pub(in crate::store) fn clusters(&self) -> BTreeSet<ClusterName> {
        let mut clusters: BTreeSet<ClusterName> = self.entries.values().flat_map(|entry| entry.summary.clusters()).collect();
        // a hundred thousand keys, and a thousand of what they begin with
        let head = |key: &[u8]| memchr::memrchr(b'/', key).map_or(key.len(), |end| end + 1);
        let put = self.put_within(&[codec::ENTRY], &[codec::ENTRY + 1]);
        let keys: HashMap<&[u8], &[u8]> = put.map(|(key, _)| (&key[..head(key)], key)).collect();
        clusters.extend(keys.into_values().filter_map(codec::entry_of).map(|key| key.cluster));
        clusters
    }

    /// Reads what questions ask for.
    pub(in crate::store) fn read<S: Slots>(&self, slots: &S, questions: &[RecordQuery]) -> Option<EarlyEntries> {
        let mut keys: Vec<Vec<u8>> = questions.iter().flat_map(|question| self.keys(question)).collect();
        keys.sort_unstable();
        let mut found = EarlyEntries::default();
        for (low, entry) in self.entries.iter().filter(|(low, _)| packing::holds_entries(low)) {
            let first = keys.partition_point(|key| key[..] < **low);
            let has_key = keys.get(first).is_some_and(|key| entry.high.as_ref().is_none_or(|high| key[..] < **high));
            if has_key || entry.summary.may_hold(questions) {
                let Content::Entries { chunks, changed, .. } = self.content(slots, low, entry)? else { return None };
                found.chunks.extend(chunks);
                found.changed.extend(changed);
            }
        }
        Some(found)
    }

    /// What a range holds: its chunk, if it is the one that was noted or a newer one in its place, and what the log has above it.
    fn content<S: Slots>(&self, slots: &S, low: &Key, entry: &Entry) -> Option<Content> {
        let high = entry.high.as_deref();
        let is_noted = |head: &object::Head| *head.low == **low && head.high.as_deref() == high && head.stamp >= entry.stamp;
        let (head, body) = object::read(slots, &entry.slots, is_noted).ok()?;
        let mut pending = Pending::default();
        for (key, value) in self.log.iter().filter(|run| run.last > head.last_group).flat_map(|run| run.pairs.within(low, high)) {
            pending.insert(key.into(), value.map(|body| packing::read_value(key, body)).transpose().ok()?);
        }
        let mut content = Content::read(low, &body).ok()?;
        content.apply(pending).ok()?;
        Some(content)
    }

    /// The keys whose chunks a question needs, whatever their summaries say: these are older than the log.
    fn keys(&self, question: &RecordQuery) -> Vec<Vec<u8>> {
        const NETWORKS: &[Kind] = &[Kind::Ip, Kind::NodeIp];
        // what may be asked for, and whether a key and value of these kinds may be it: false is certain
        let (kinds, may_answer): (&[Kind], Test<'_>) = match question {
            RecordQuery::Key(key) => return vec![codec::entry_key(key)],
            RecordQuery::Covering(ip) => (NETWORKS, is_of_net(IpNet::from(*ip), move |net| net.contains(ip))),
            RecordQuery::Network(net) => (NETWORKS, is_of_net(*net, move |own| own == net)),
            RecordQuery::Identity(id) => {
                let digits = id.to_string().into_bytes();
                // zeros may lead
                let leads = |rest: &[u8]| rest.iter().rfind(|byte| **byte != b'0') == Some(&b'/');
                (&[Kind::Identity], Box::new(move |key, _| key.strip_suffix(&*digits).is_some_and(leads)))
            }
            // there is one text of an address, unless it is escaped, or written as `::ffff:10.1.2.3` is in many ways
            RecordQuery::NodeAt(IpAddr::V4(ip)) => {
                let texts = [ip.to_string().as_bytes(), b"\\", b"f:", b"F:"].map(|text| memmem::Finder::new(text).into_owned());
                (&[Kind::Node], Box::new(move |_, value| texts.iter().any(|text| text.find(value).is_some())))
            }
            // written in many ways
            RecordQuery::NodeAt(IpAddr::V6(_)) => (&[Kind::Node], Box::new(|_, _| true)),
        };
        let mut keys = Vec::new();
        for (low, high) in kinds.iter().map(|kind| codec::kind_range(*kind)) {
            let changes = self.put_within(&low, &high).filter(|(key, value)| may_answer(key, value.unwrap_or_default()));
            keys.extend(changes.map(|(key, _)| key.to_vec()));
        }
        keys
    }

    /// What was put there, oldest first: of a key perhaps several times, and perhaps it is gone again.
    fn put_within<'a>(&'a self, low: &[u8], high: &[u8]) -> impl Iterator<Item = Pair<'a>> + use<'a> {
        let runs: Vec<_> = self.log.iter().map(|run| run.pairs.within(low, Some(high))).collect();
        runs.into_iter().flatten().filter(|(_, value)| value.is_some())
    }
}

/// Says of a key and value whether they pass.
type Test<'a> = Box<dyn Fn(&[u8], &[u8]) -> bool + 'a>;

/// Whether a key is of an ip entry, announced or derived from a node, whose network passes: names of usable entries are what their prefixes
/// are written as (`wire::ip`). The log has a hundred thousand keys, and next to none of them is meant: taking each apart took a fifth of the time
/// until a killed process answers again, so the ends of keys are looked at before.
fn is_of_net<'a>(asked: IpNet, passes: impl Fn(&IpNet) -> bool + 'a) -> Test<'a> {
    // one of IPv6 may be written in many ways
    let host = asked.addr().is_ipv4().then(|| asked.addr().to_string().into_bytes());
    Box::new(move |key, _| {
        // an entry of IPv4 is a host, whose key ends with its address, or a CIDR, with a length of one or two digits behind the last slash
        let may_be = host.as_ref().is_none_or(|host| key.ends_with(host) || key[key.len().saturating_sub(3)..].contains(&b'/'));
        may_be && net_of(key).is_some_and(|net| passes(&net))
    })
}

/// What an ip entry is for: what stands behind the cluster in `ecilium/cache/ip/v1/<cluster>/<name>`, and behind the last mark in
/// `ecilium/cache/node-ips/v1/<cluster>/<node>#<name>`.
fn net_of(key: &[u8]) -> Option<IpNet> {
    let name = key.splitn(6, |byte| *byte == b'/').nth(5)?.rsplit(|byte| *byte == b'#').next()?;
    std::str::from_utf8(name).ok().and_then(ObjectPrefix::parse).map(|prefix| prefix.net)
}

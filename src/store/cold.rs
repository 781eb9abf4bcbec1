//! What a start can say before it has read everything: a lookup reads just the chunks that may matter to it.
//!
//! Owns: which chunks and changes those are, and that they are what the manifest says. Emits: parts of what [`super::Store::load`] gives later,
//! complete for what was asked, or nothing. Deliberately lacks: what entries mean (the caller decodes), and damage: where anything is not as it
//! should be, the reading has to wait for `recover`, which knows what to do.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::thread;

use ipnet::IpNet;
use memchr::memmem;

use super::bytes::Malformed;
use super::change::{Key, Value};
use super::codec;
use super::engine::Engine;
use super::frames::LogRun;
use super::load::{Loaded, Scan};
use super::manifest::Entry;
use super::object;
use super::packing::{self, Content};
use super::recover::Early;
use super::slots::Slots;
use crate::model::{ClusterName, EntryKey, Kind, Question, Record};
use crate::pack::Chunk;

/// What was asked for, and some other entries. As in [`Loaded`].
#[derive(Debug, Default)]
pub struct EarlyEntries {
    /// Entries, in key order.
    pub chunks: Vec<Chunk>,
    /// Newer ones; `None` is gone.
    pub changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
}

/// A change of a key.
#[derive(Debug, Clone, Copy)]
struct Change<'a> {
    key: &'a [u8],
    /// A group in which it had happened.
    group: u64,
    /// `None` is gone.
    value: Option<&'a [u8]>,
}

/// A store of which only the beginning was read.
#[derive(Debug)]
pub struct Cold {
    /// Not held open: where opening the store fails after all, it must be closed at once.
    engine: Weak<Engine>,
    early: Early,
    known: Loaded,
    clusters: BTreeSet<ClusterName>,
}

impl Cold {
    /// `None` where not even the beginning is whole.
    pub(super) fn new(engine: &Arc<Engine>, early: Early) -> Option<Self> {
        let (known, clusters) = thread::scope(|scope| {
            let clusters = scope.spawn(|| early.clusters());
            (early.known(&**engine).ok(), clusters.join().ok())
        });
        Some(Self { engine: Arc::downgrade(engine), known: known?, clusters: clusters?, early })
    }

    /// Everything but entries and tombstones.
    #[must_use]
    pub fn known(&self) -> &Loaded {
        &self.known
    }

    /// The clusters that may have entries.
    #[must_use]
    pub fn clusters(&self) -> &BTreeSet<ClusterName> {
        &self.clusters
    }

    /// Reads what questions ask for. `None` where that cannot be done; then everything has to be read.
    #[must_use]
    pub fn read(&self, questions: &[Question]) -> Option<EarlyEntries> {
        let engine = self.engine.upgrade()?;
        self.early.read(&*engine, questions)
    }
}

impl Early {
    /// The cursors, clusters and marks.
    pub(super) fn known<S: Slots>(&self, slots: &S) -> Result<Loaded, Malformed> {
        let is_known = |key: &[u8]| !packing::holds_entries(key) && key.first() != Some(&codec::TOMBSTONE);
        let mut items = BTreeMap::new();
        for (low, entry) in self.entries.iter() {
            if packing::holds_entries(low) || **low >= [codec::TOMBSTONE][..] {
                continue;
            }
            let (folded, body) = read_body(slots, low, entry).ok_or(Malformed::Truncated)?;
            if let Content::Items(more) = Content::read(low, &body)? {
                items.extend(more);
            }
            for change in self.within(low, entry.high.as_deref()).into_iter().filter(|change| change.group > folded) {
                match change.value {
                    Some(value) => drop(items.insert(change.key.into(), value.into())),
                    None => drop(items.remove(change.key)),
                }
            }
        }
        let mut scan = Scan::default();
        items.iter().filter(|(key, _)| is_known(key)).for_each(|(key, value)| scan.take(key, value));
        if scan.is_whole() { Ok(scan.loaded) } else { Err(Malformed::Field("key")) }
    }

    pub(super) fn clusters(&self) -> BTreeSet<ClusterName> {
        let mut clusters: BTreeSet<ClusterName> = self.entries.values().flat_map(|entry| entry.summary.clusters()).collect();
        // a hundred thousand keys, and a thousand of what they begin with
        let (mut seen, mut before): (HashSet<&[u8]>, &[u8]) = (HashSet::new(), &[]);
        for Change { key, .. } in self.put_within(&[codec::ENTRY], &[codec::ENTRY + 1]) {
            let name = memchr::memrchr(b'/', key).map_or(key, |end| &key[..=end]);
            if name != before && seen.insert(name) {
                clusters.extend(codec::entry_of(key).map(|key| key.cluster));
            }
            before = name;
        }
        clusters
    }

    /// Reads what questions ask for.
    pub(super) fn read<S: Slots>(&self, slots: &S, questions: &[Question]) -> Option<EarlyEntries> {
        let mut keys: Vec<Vec<u8>> = questions.iter().filter_map(asked_key).collect();
        // what the log has of a key may be older than what its chunk has
        keys.extend(questions.iter().flat_map(|question| self.changed(question)).map(|change| change.key.to_vec()));
        keys.sort_unstable();
        let mut found = EarlyEntries::default();
        for (low, entry) in self.entries.iter().filter(|(low, _)| packing::holds_entries(low)) {
            let first = keys.partition_point(|key| key[..] < **low);
            let has_key = keys.get(first).is_some_and(|key| entry.high.as_ref().is_none_or(|high| key[..] < **high));
            if has_key || entry.summary.may_hold(questions) {
                let (folded, body) = read_body(slots, low, entry)?;
                found.chunks.extend(packing::read_chunks(&body).ok()?);
                let changes = self.within(low, entry.high.as_deref()).into_iter().filter(|change| change.group > folded);
                changes.map(|change| take(&mut found.changed, change)).collect::<Option<()>>()?;
            }
        }
        Some(found)
    }

    /// The last change of each key from one on and below another, in key order.
    fn within(&self, low: &[u8], high: Option<&[u8]>) -> Vec<Change<'_>> {
        let mut changes: Vec<Change<'_>> = self.log.iter().flat_map(|run| run.within(low, high)).collect();
        changes.sort_by(|left, right| left.key.cmp(right.key));
        // of a key the last counts
        changes.reverse();
        changes.dedup_by(|next, kept| next.key == kept.key);
        changes.reverse();
        changes
    }

    /// What was put there: of a key perhaps several times, and perhaps it is gone again.
    fn put_within(&self, low: &[u8], high: &[u8]) -> impl Iterator<Item = Change<'_>> + use<'_> {
        let runs: Vec<_> = self.log.iter().map(|run| run.within(low, Some(high))).collect();
        runs.into_iter().flatten().filter(|change| change.value.is_some())
    }

    /// Changes that may have brought what is asked for.
    fn changed<'a>(&'a self, question: &'a Question) -> Box<dyn Iterator<Item = Change<'a>> + 'a> {
        match question {
            Question::Covering(ip) => Box::new(self.ips(KeyEnd::of(IpNet::from(*ip)), |name| name_covers(name, *ip))),
            Question::Network(net) => Box::new(self.ips(KeyEnd::of(*net), |name| name_is(name, *net))),
            Question::Identity(id) => {
                let digits = id.to_string().into_bytes();
                // zeros may lead
                let is_meant = move |key: &[u8]| {
                    let before = key.strip_suffix(&*digits).and_then(|rest| rest.iter().rfind(|byte| **byte != b'0'));
                    before == Some(&b'/')
                };
                Box::new(self.put(Kind::Identity).filter(move |change| is_meant(change.key)))
            }
            Question::NodeAt(ip) => {
                let searched = NodeText::new(*ip);
                Box::new(self.put(Kind::Node).filter(move |change| change.value.is_some_and(|value| searched.may_be_in(value))))
            }
            // its chunk is read anyway
            Question::Key(_) => Box::new(std::iter::empty()),
        }
    }

    fn put(&self, kind: Kind) -> impl Iterator<Item = Change<'_>> {
        let (low, high) = codec::kind_range(kind);
        self.put_within(&low, &high)
    }

    /// The changes of ip entries, announced or derived from a node, whose key has this end and whose address passes.
    fn ips<'a>(&'a self, end: KeyEnd, passes: impl Fn(&str) -> bool + 'a) -> impl Iterator<Item = Change<'a>> {
        let announced = self.put(Kind::Ip).map(|change| (change, name_below_cluster as fn(&[u8]) -> &str));
        let derived = self.put(Kind::NodeIp).map(|change| (change, name_behind_mark as fn(&[u8]) -> &str));
        let found = announced.chain(derived).filter(move |(change, name_of)| end.may_be_of(change.key) && passes(name_of(change.key)));
        found.map(|(change, _)| change)
    }
}

impl LogRun {
    /// The changes of keys from one on and below another.
    fn within(&self, low: &[u8], high: Option<&[u8]>) -> impl Iterator<Item = Change<'_>> + use<'_> {
        self.pairs.within(low, high).map(|(key, value)| Change { key, group: self.last, value })
    }
}

fn take(changed: &mut BTreeMap<EntryKey, Option<Arc<Record>>>, change: Change<'_>) -> Option<()> {
    let value = change.value.map(|body| packing::read_value(change.key, body)).transpose().ok()?;
    let record = match value {
        None => None,
        Some(Value::Record(record)) => Some(record),
        Some(Value::Item(_)) => return None,
    };
    changed.insert(codec::entry_of(change.key)?, record);
    Some(())
}

/// The key whose chunk is needed, whatever its summary says.
fn asked_key(question: &Question) -> Option<Vec<u8>> {
    if let Question::Key(key) = question { Some(codec::entry_key(key)) } else { None }
}

/// How the key of an ip entry may end that is of a network or covers it. The log has a hundred thousand keys, and next to none of them is
/// meant: taking each apart took a fifth of the time until a killed process answers again.
struct KeyEnd {
    /// The end of a host entry's key; none where it may be written in many ways.
    host: Option<Vec<u8>>,
}

impl KeyEnd {
    fn of(net: IpNet) -> Self {
        Self { host: net.addr().is_ipv4().then(|| net.addr().to_string().into_bytes()) }
    }

    /// False is certain: an entry of IPv4 is a host, whose key ends with its address, behind a slash or the mark of derived entries, or a
    /// CIDR, with a length of one or two digits behind the last slash.
    fn may_be_of(&self, key: &[u8]) -> bool {
        let Some(host) = &self.host else { return true };
        let tail = &key[key.len().saturating_sub(3)..];
        tail.contains(&b'/') || key.strip_suffix(&**host).is_some_and(|rest| rest.ends_with(b"/") || rest.ends_with(b"#"))
    }
}

/// The name of an ip entry: what stands behind the cluster in `ecilium/cache/ip/v1/<cluster>/<name>`.
fn name_below_cluster(key: &[u8]) -> &str {
    let name = key.splitn(6, |byte| *byte == b'/').nth(5).unwrap_or_default();
    std::str::from_utf8(name).unwrap_or_default()
}

/// What an entry that is derived from a node is for: what stands behind the last mark in `ecilium/cache/node-ips/v1/<cluster>/<node>#<name>`.
fn name_behind_mark(key: &[u8]) -> &str {
    let name = key.rsplit(|byte| *byte == b'#').next().unwrap_or_default();
    std::str::from_utf8(name).unwrap_or_default()
}

/// Whether the entry of that name is one of a prefix that covers an address. Names of usable entries are what their prefixes are written
/// as (`wire::ip`).
fn name_covers(name: &str, ip: IpAddr) -> bool {
    if name.contains('/') { name.parse::<IpNet>().is_ok_and(|net| net.contains(&ip)) } else { name.parse() == Ok(ip) }
}

fn name_is(name: &str, net: IpNet) -> bool {
    if name.contains('/') {
        name.parse::<IpNet>().is_ok_and(|own| own.trunc() == net)
    } else {
        name.parse::<IpAddr>().is_ok_and(|ip| IpNet::from(ip) == net)
    }
}

/// How an address may be written in a node's value.
struct NodeText {
    text: Option<memmem::Finder<'static>>,
}

impl NodeText {
    fn new(ip: IpAddr) -> Self {
        // one of IPv6 may be written in many ways
        Self { text: ip.is_ipv4().then(|| memmem::Finder::new(&ip.to_string()).into_owned()) }
    }

    /// False is certain: of IPv4 there is the one text, unless it is escaped, or written as `::ffff:10.1.2.3` is in many ways.
    fn may_be_in(&self, value: &[u8]) -> bool {
        let Some(text) = &self.text else { return true };
        text.find(value).is_some()
            || memchr::memchr(b'\\', value).is_some()
            || memmem::find(value, b"f:").is_some()
            || memmem::find(value, b"F:").is_some()
    }
}

/// The last group that is in a chunk, and its body, if it is the one that was noted, or a newer one in its place.
fn read_body<S: Slots>(slots: &S, low: &Key, entry: &Entry) -> Option<(u64, Vec<u8>)> {
    let (mut whole, mut found): (Vec<u8>, Option<(u64, u64)>) = (Vec::new(), None);
    for (number, slot) in entry.slots.iter().enumerate() {
        let part = object::read_part(*slot, slots.get(*slot).ok()??).ok()?;
        let head = &part.head;
        let is_noted = *head.low == **low && head.high.as_deref() == entry.high.as_deref() && head.stamp >= entry.stamp;
        let is_next = (part.number, part.count) == (number as u64, entry.slots.len() as u64);
        if !is_noted || !is_next || found.is_some_and(|(stamp, _)| stamp != head.stamp) {
            return None;
        }
        found = Some((head.stamp, head.last_group));
        let share = part.body?;
        if whole.is_empty() { whole = share } else { whole.extend_from_slice(&share) }
    }
    found.map(|(_, folded)| (folded, whole))
}

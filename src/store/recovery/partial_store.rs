//! Lookups during a start, before everything is read. A lookup reads only the chunks that may
//! contain the answer.
//!
//! It finds the chunks with the manifest, and applies the newer changes of the log. If anything is
//! damaged or differs from the manifest, there is no answer, and the lookup must wait for
//! `slot_scan`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::thread;

use ipnet::IpNet;
use memchr::memmem;

use super::load::{ContentScan, StoreContents};
use super::slot_scan::EarlyIndex;
use crate::model::{ClusterName, EntryKey, Kind, ObjectPrefix, Record, RecordQuery};
use crate::pack::Chunk;
use crate::store::encoding::block::KeyValuePair;
use crate::store::encoding::codec;
use crate::store::encoding::stored_value::KeyBytes;
use crate::store::engine::Engine;
use crate::store::engine::slots::SlotStorage;
use crate::store::manifest::ManifestEntry;
use crate::store::objects::object;
use crate::store::objects::packing::{self, RangeContent};
use crate::store::objects::pending::PendingChanges;

/// All entries that match some queries, and other entries of the same chunks. The fields are those
/// of [`StoreContents`].
#[derive(Debug, Default)]
pub struct EarlyEntries {
    /// Entries, sorted by key.
    pub chunks: Vec<Chunk>,
    /// Changes that override `chunks`; `None` is a deleted key.
    pub changed: BTreeMap<EntryKey, Option<Arc<Record>>>,
}

/// A store of which the log, the manifest, and everything but entries and tombstones were read.
#[derive(Debug)]
pub struct PartialStore {
    /// Weak, because the engine must close at once if opening the store fails.
    engine: Weak<Engine>,
    early: EarlyIndex,
    /// Cursors, clusters, epochs and sequences; no entries and tombstones.
    pub contents: StoreContents,
    /// Clusters that may have entries.
    pub clusters: BTreeSet<ClusterName>,
}

impl PartialStore {
    /// Reads the cursors, clusters, epochs and sequences. Returns `None` if they are damaged.
    pub(in crate::store) fn new(engine: &Arc<Engine>, early: EarlyIndex) -> Option<Self> {
        let (contents, clusters) = thread::scope(|scope| {
            let clusters = scope.spawn(|| early.clusters());
            (early.read_contents(&**engine), clusters.join().ok())
        });
        Some(Self { engine: Arc::downgrade(engine), contents: contents?, clusters: clusters?, early })
    }

    /// Reads the entries that may match the queries. Returns `None` if something is damaged;
    /// everything must then be read first.
    #[must_use]
    pub fn read(&self, queries: &[RecordQuery]) -> Option<EarlyEntries> {
        let engine = self.engine.upgrade()?;
        self.early.read(&*engine, queries)
    }
}

impl EarlyIndex {
    /// Reads the cursors, clusters, epochs and sequences: everything but entries and tombstones.
    fn read_contents<S: SlotStorage>(&self, storage: &S) -> Option<StoreContents> {
        let mut scan = ContentScan::default();
        for (low, entry) in self.entries.iter().filter(|(low, _)| !packing::contains_entries(low) && ***low < [codec::TOMBSTONE_TAG][..]) {
            let RangeContent::Items(items) = self.read_range(storage, low, entry)? else { return None };
            items.iter().filter(|(key, _)| key.first() != Some(&codec::TOMBSTONE_TAG)).for_each(|(key, body)| scan.add_item(key, body));
        }
        scan.is_whole().then_some(scan.contents)
    }

    pub(in crate::store) fn clusters(&self) -> BTreeSet<ClusterName> {
        let mut clusters: BTreeSet<ClusterName> = self.entries.values().flat_map(|entry| entry.summary.clusters()).collect();
        // there are a hundred thousand keys, but only a thousand prefixes
        let prefix_length = |key: &[u8]| memchr::memrchr(b'/', key).map_or(key.len(), |end| end + 1);
        let puts = self.puts_within(&[codec::ENTRY_TAG], &[codec::ENTRY_TAG + 1]);
        let keys: HashMap<&[u8], &[u8]> = puts.map(|(key, _)| (&key[..prefix_length(key)], key)).collect();
        clusters.extend(keys.into_values().filter_map(codec::decode_entry_key).map(|key| key.cluster));
        clusters
    }

    /// Reads the entries that may match the queries.
    pub(in crate::store) fn read<S: SlotStorage>(&self, storage: &S, queries: &[RecordQuery]) -> Option<EarlyEntries> {
        let mut keys: Vec<Vec<u8>> = queries.iter().flat_map(|query| self.keys_in_log(query)).collect();
        keys.sort_unstable();
        let mut early_entries = EarlyEntries::default();
        for (low, entry) in self.entries.iter().filter(|(low, _)| packing::contains_entries(low)) {
            let first = keys.partition_point(|key| key[..] < **low);
            let has_key = keys.get(first).is_some_and(|key| entry.high.as_ref().is_none_or(|high| key[..] < **high));
            if has_key || entry.summary.may_match(queries) {
                let RangeContent::Entries { chunks, changed, .. } = self.read_range(storage, low, entry)? else { return None };
                early_entries.chunks.extend(chunks);
                early_entries.changed.extend(changed);
            }
        }
        Some(early_entries)
    }

    /// Returns the content of a range: its chunk, if it is the listed one or a newer one, with the
    /// newer changes of the log. `None` if it cannot be read.
    fn read_range<S: SlotStorage>(&self, storage: &S, low: &KeyBytes, entry: &ManifestEntry) -> Option<RangeContent> {
        let high = entry.high.as_deref();
        let is_listed_or_newer =
            |head: &object::ObjectHead| *head.low == **low && head.high.as_deref() == high && head.stamp >= entry.stamp;
        let (head, body) = object::read(storage, &entry.slots, is_listed_or_newer).ok()?;
        let mut pending = PendingChanges::default();
        for (key, value) in
            self.batches.iter().filter(|batch| batch.last_group > head.last_group).flat_map(|batch| batch.block.within(low, high))
        {
            pending.insert(key.into(), value.map(|body| packing::decode_value(key, body)).transpose().ok()?);
        }
        let mut content = RangeContent::decode(low, &body).ok()?;
        content.apply(pending).ok()?;
        Some(content)
    }

    /// Returns the keys in the log that may match a query. Summaries do not include them.
    fn keys_in_log(&self, query: &RecordQuery) -> Vec<Vec<u8>> {
        const NETWORKS: &[Kind] = &[Kind::Ip, Kind::NodeIp];
        // the kinds that may match, and a filter for their keys and values; if the filter rejects
        // an entry, the entry does not match
        let (kinds, may_match): (&[Kind], KeyFilter<'_>) = match query {
            RecordQuery::Key(key) => return vec![codec::entry_key(key)],
            RecordQuery::Covering(ip) => (NETWORKS, network_filter(IpNet::from(*ip), move |net| net.contains(ip))),
            RecordQuery::Network(net) => (NETWORKS, network_filter(*net, move |own| own == net)),
            RecordQuery::Identity(id) => {
                let digits = id.to_string().into_bytes();
                // the number in the key may have leading zeros
                let has_only_leading_zeros = |rest: &[u8]| rest.iter().rfind(|byte| **byte != b'0') == Some(&b'/');
                (&[Kind::Identity], Box::new(move |key, _| key.strip_suffix(&*digits).is_some_and(has_only_leading_zeros)))
            }
            // an IPv4 address has one spelling, unless it is escaped or written as IPv6
            // (`::ffff:10.1.2.3`)
            RecordQuery::NodeAt(IpAddr::V4(ip)) => {
                let texts = [ip.to_string().as_bytes(), b"\\", b"f:", b"F:"].map(|text| memmem::Finder::new(text).into_owned());
                (&[Kind::Node], Box::new(move |_, value| texts.iter().any(|text| text.find(value).is_some())))
            }
            // an IPv6 address has many spellings
            RecordQuery::NodeAt(IpAddr::V6(_)) => (&[Kind::Node], Box::new(|_, _| true)),
        };
        let mut keys = Vec::new();
        for (low, high) in kinds.iter().map(|kind| codec::kind_range(*kind)) {
            let changes = self.puts_within(&low, &high).filter(|(key, value)| may_match(key, value.unwrap_or_default()));
            keys.extend(changes.map(|(key, _)| key.to_vec()));
        }
        keys
    }

    /// Returns the puts in a range, oldest first. A key may occur several times, and may have been
    /// deleted later.
    fn puts_within<'a>(&'a self, low: &[u8], high: &[u8]) -> impl Iterator<Item = KeyValuePair<'a>> + use<'a> {
        let batches: Vec<_> = self.batches.iter().map(|batch| batch.block.within(low, Some(high))).collect();
        batches.into_iter().flatten().filter(|(_, value)| value.is_some())
    }
}

/// Decides from a key and a value whether an entry may match a query.
type KeyFilter<'a> = Box<dyn Fn(&[u8], &[u8]) -> bool + 'a>;

/// Returns a filter for keys of ip entries, announced or derived. `is_match` decides which networks
/// match. The name of a usable entry is its prefix as text (`wire::ip`).
///
/// The log has a hundred thousand keys, and almost none matches. Parsing each of them took a fifth
/// of the time until a killed process answers again, so the end of the key is compared first.
fn network_filter<'a>(queried_net: IpNet, is_match: impl Fn(&IpNet) -> bool + 'a) -> KeyFilter<'a> {
    // an IPv6 address has many spellings
    let host = queried_net.addr().is_ipv4().then(|| queried_net.addr().to_string().into_bytes());
    Box::new(move |key, _| {
        // the key of an IPv4 host ends with its address; that of a CIDR has one or two digits after
        // the last slash
        let may_match = host.as_ref().is_none_or(|host| key.ends_with(host) || key[key.len().saturating_sub(3)..].contains(&b'/'));
        may_match && parse_network(key).is_some_and(|net| is_match(&net))
    })
}

/// Returns the network of an ip entry: the name in `ecilium/cache/ip/v1/<cluster>/<name>`, or in
/// `ecilium/cache/node-ips/v1/<cluster>/<node>#<name>`.
fn parse_network(key: &[u8]) -> Option<IpNet> {
    let name = key.splitn(6, |byte| *byte == b'/').nth(5)?.rsplit(|byte| *byte == b'#').next()?;
    std::str::from_utf8(name).ok().and_then(ObjectPrefix::parse).map(|prefix| prefix.net)
}

//! The changes of the mirror in their order.
//!
//! A [`Feed`] has a short ring of recent announcements for subscribers that keep up, tombstones for
//! subscribers that do not, and an index of the times of the changes ([`SequenceTimes`]). The
//! committer adds changes; a clone is a snapshot for readers. The feed does no IO. The index of the
//! existing keys by their last change is part of the view (`View::live_keys_after`).

mod announcement;
mod sequence_times;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use imbl::{OrdMap, Vector};
use ipnet::IpNet;

use crate::model::{EntryKey, Kind, ObjectPrefix, Sequence, Tombstone};

pub use self::announcement::{Announcement, Version};
pub use self::sequence_times::{RunChanges, SequenceTimes};

/// Maximum number of announcements in the ring.
///
/// At 20,000 changes/s, the highest rate that meshkeep is designed for, the ring covers 0.8 s. A
/// subscriber that keeps up reads every 50 ms; a subscriber that is further behind reads the view
/// instead. An announcement uses about 0.6 KB, all of them 10 MB.
pub const RING_LENGTH_MAX: usize = 16_384;

/// Maximum size of the announcements in the ring, decoded objects not included.
///
/// It allows 4 KiB for each of [`RING_LENGTH_MAX`] announcements, so only services and endpoint
/// slices can reach it. An announcement of a service with 5,000 backends has about 0.8 MB for its
/// old and new value. The ring has capacity for 80 of them. Only their new values (0.4 MB each) are
/// written to etcd, which takes 3 s at 10 MB/s. The newest announcement is always kept.
pub const RING_BYTES_MAX: usize = 64 << 20;

/// Maximum size of the decoded objects that the newest announcements keep.
///
/// The old and the new object of a change to an ipcache entry or an identity use about 0.5 KB
/// together, so the newest 8,000 announcements keep theirs. That is the largest number of changes
/// that wait for a stream before they are merged. The objects of older announcements are decoded on
/// demand.
pub const RING_OBJECT_BYTES_MAX: usize = 4 << 20;

/// Maximum number of tombstones of node-derived entries that are searched for one address. The keys
/// are sorted by node, so each of them must be compared. One comparison takes about 100 ns, so all
/// take 5 ms; 50,000 are the addresses of 10,000 deleted nodes.
const NODE_TOMBSTONES_SCANNED_MAX: usize = 50_000;

/// Limits of the tombstones, which decide how far back positions can reach
/// (docs/use/api/streams.md: `--tombstone-max-age`, `--tombstone-max-count`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Maximum age of a tombstone. Older ones are removed.
    pub age_max: Duration,
    /// Maximum number of tombstones; the oldest are removed first.
    pub count_max: usize,
}

/// Number of tombstones that each limit has removed since the start. The limit that applies decides
/// how far back positions can reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrimmedCounts {
    /// Tombstones older than [`Retention::age_max`].
    pub by_age: u64,
    /// Tombstones above [`Retention::count_max`].
    pub by_count: u64,
}

/// Effects of a change on the tombstones and the index of times, which are stored in the same group
/// as the change.
#[derive(Debug, Default, PartialEq)]
pub struct FeedEffects {
    /// Added (`Some`) and removed (`None`) tombstones.
    pub tombstones: BTreeMap<Sequence, Option<Tombstone>>,
    /// New floor, if trimming raised it.
    pub floor: Option<Sequence>,
    /// Changed runs of the index of times.
    pub times: RunChanges,
}

/// The ring, the tombstones and the times of the sequences. A clone is a cheap snapshot.
#[derive(Debug, Clone)]
pub struct Feed {
    ring: Vector<Arc<Announcement>>,
    /// Bytes of the announcements in the ring, decoded objects not included.
    ring_bytes: usize,
    /// Number of the newest announcements that keep their decoded objects.
    with_objects: usize,
    /// Bytes of the decoded objects that the newest announcements keep.
    object_bytes: usize,
    tombstones: OrdMap<Sequence, Tombstone>,
    /// Sequence of a key's tombstone. It is needed to remove the tombstone when the key is added
    /// again.
    tombstone_of: OrdMap<EntryKey, Sequence>,
    /// Sequence before the first change of this run of meshkeep.
    start: Sequence,
    /// Oldest position after which no delete is missing.
    floor: Sequence,
    head: Sequence,
    retention: Retention,
    trimmed: TrimmedCounts,
    times: SequenceTimes,
}

impl Feed {
    /// Creates an empty feed. All changes before this run of meshkeep have sequences up to `start`.
    #[must_use]
    pub fn starting_at(start: Sequence, retention: Retention) -> Self {
        Self {
            ring: Vector::new(),
            ring_bytes: 0,
            with_objects: 0,
            object_bytes: 0,
            tombstones: OrdMap::new(),
            tombstone_of: OrdMap::new(),
            start,
            floor: start,
            head: start,
            retention,
            trimmed: TrimmedCounts::default(),
            times: SequenceTimes::default(),
        }
    }

    /// Adds a tombstone from the store.
    pub fn restore_tombstone(&mut self, sequence: Sequence, tombstone: Tombstone) {
        self.tombstone_of.insert(tombstone.key.clone(), sequence);
        self.tombstones.insert(sequence, tombstone);
    }

    /// Sets the floor from the store. For positions below it, tombstones may have been removed.
    pub fn restore_floor(&mut self, floor: Sequence) {
        self.floor = floor;
    }

    /// Sets the times of earlier sequences from the store.
    pub fn restore_times(&mut self, times: SequenceTimes) {
        self.times = times;
    }

    /// Returns the index of the times of all sequences.
    #[must_use]
    pub const fn times(&self) -> &SequenceTimes {
        &self.times
    }

    /// Adds one change.
    ///
    /// # Panics
    /// If the sequence is not higher than that of the previous change.
    pub fn announce(&mut self, announcement: Announcement, now: SystemTime) -> FeedEffects {
        let mut effects = FeedEffects { times: self.times.record(announcement.sequence, now), ..FeedEffects::default() };
        assert!(announcement.sequence > self.head, "sequences must grow");
        self.head = announcement.sequence;
        let key = announcement.key.clone();
        if let Some(previous) = self.tombstone_of.remove(&key) {
            self.tombstones.remove(&previous);
            effects.tombstones.insert(previous, None);
        }
        if let Some(reason) = announcement.deleted {
            let tombstone = Tombstone { key: key.clone(), reason, time: now };
            self.tombstone_of.insert(key, self.head);
            self.tombstones.insert(self.head, tombstone.clone());
            effects.tombstones.insert(self.head, Some(tombstone));
        }
        self.push(Arc::new(announcement));
        self.trim(now, &mut effects);
        debug_assert_eq!(self.tombstones.len(), self.tombstone_of.len(), "each tombstone is found by its key");
        debug_assert!(self.floor <= self.head, "no position is ahead of the newest change");
        effects
    }

    /// Adds to the ring and drops the oldest announcements above its limits. The newest
    /// announcement always stays, however large it is.
    fn push(&mut self, announcement: Arc<Announcement>) {
        self.ring_bytes += announcement.byte_count();
        self.object_bytes += announcement.object_bytes();
        self.with_objects += 1;
        self.ring.push_back(announcement);
        while self.ring.len() > RING_LENGTH_MAX || (self.ring_bytes > RING_BYTES_MAX && self.ring.len() > 1) {
            if self.with_objects == self.ring.len() {
                self.drop_oldest_objects();
            }
            let Some(oldest) = self.ring.pop_front() else { return };
            self.ring_bytes -= oldest.byte_count();
        }
        while self.object_bytes > RING_OBJECT_BYTES_MAX && self.with_objects > 1 {
            self.drop_oldest_objects();
        }
        debug_assert!((1..=self.ring.len()).contains(&self.with_objects), "the newest announcement keeps its object");
    }

    fn drop_oldest_objects(&mut self) {
        if let Some(oldest) = self.ring.get(self.ring.len() - self.with_objects) {
            self.object_bytes -= oldest.object_bytes();
            oldest.release_objects();
        }
        self.with_objects -= 1;
    }

    /// Removes tombstones that are too old or too many, and raises the floor to the newest removed
    /// one.
    fn trim(&mut self, now: SystemTime, effects: &mut FeedEffects) {
        while let Some((sequence, oldest)) = self.tombstones.get_min() {
            let age = now.duration_since(oldest.time).unwrap_or(Duration::ZERO);
            match (age > self.retention.age_max, self.tombstones.len() > self.retention.count_max) {
                (false, false) => return,
                (true, _) => self.trimmed.by_age += 1,
                (false, true) => self.trimmed.by_count += 1,
            }
            let (sequence, key) = (*sequence, oldest.key.clone());
            self.floor = sequence;
            effects.floor = Some(sequence);
            effects.tombstones.insert(sequence, None);
            self.tombstones.remove(&sequence);
            self.tombstone_of.remove(&key);
        }
    }

    /// Returns the sequence of the newest change.
    #[must_use]
    pub fn head(&self) -> Sequence {
        self.head
    }

    /// Returns the sequence before the first change of this run of meshkeep.
    #[must_use]
    pub fn start(&self) -> Sequence {
        self.start
    }

    /// Returns the oldest position after which no delete is missing.
    #[must_use]
    pub fn floor(&self) -> Sequence {
        self.floor
    }

    /// Returns the number of tombstones that each limit has removed.
    #[must_use]
    pub fn trimmed(&self) -> TrimmedCounts {
        self.trimmed
    }

    /// Returns the number of announcements in the ring.
    #[must_use]
    pub fn ring_length(&self) -> usize {
        self.ring.len()
    }

    /// Returns the bytes of the ring, including the decoded objects that its newest announcements
    /// keep.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes + self.object_bytes
    }

    /// Returns the number of tombstones.
    #[must_use]
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// Returns the time of the oldest tombstone.
    #[must_use]
    pub fn oldest_tombstone(&self) -> Option<SystemTime> {
        self.tombstones.get_min().map(|(_, oldest)| oldest.time)
    }

    /// Returns the announcements after a position, or `None` if the ring no longer has all of them.
    #[must_use]
    pub fn ring_after(&self, position: Sequence) -> Option<impl Iterator<Item = &Arc<Announcement>>> {
        let is_complete = self.head.0.saturating_sub(position.0) <= self.ring.len() as u64;
        is_complete.then(|| self.recent_after(position))
    }

    /// Returns those announcements after a position that are still in the ring.
    pub fn recent_after(&self, position: Sequence) -> impl Iterator<Item = &Arc<Announcement>> {
        let start = self.ring.len().saturating_sub(usize::try_from(self.head.0.saturating_sub(position.0)).unwrap_or(usize::MAX));
        self.ring.focus().narrow(start..).into_iter()
    }

    /// Returns the tombstones of the ipcache entries for exactly this network, newest first. They
    /// come from all clusters, and entries derived from nodes are included.
    #[must_use]
    pub fn tombstones_at(&self, net: IpNet) -> Vec<&Tombstone> {
        let names = [true, false].map(|host| ObjectPrefix { net, host }.to_string());
        let mut sequences: Vec<Sequence> = Vec::new();
        let mut start = EntryKey::lowest_of(Kind::Ip);
        // jump from cluster to cluster, without reading the keys in between
        while let Some((first, _)) = self.tombstone_of.range(start.clone()..).next().filter(|(key, _)| key.kind == Kind::Ip) {
            let key = |name: &str| EntryKey::new(Kind::Ip, first.cluster.clone(), name);
            sequences.extend(names.iter().filter_map(|name| self.tombstone_of.get(&key(name))));
            start = key("\u{10ffff}");
        }
        let derived = self.tombstone_of.range(EntryKey::lowest_of(Kind::NodeIp)..).take(NODE_TOMBSTONES_SCANNED_MAX);
        let derived = derived.take_while(|(key, _)| key.kind == Kind::NodeIp);
        let is_for_net = |key: &EntryKey| EntryKey::split_node_ip(&key.name).is_some_and(|(_, prefix)| prefix.net == net);
        sequences.extend(derived.filter(|(key, _)| is_for_net(key)).map(|(_, sequence)| *sequence));
        sequences.sort_unstable_by(|one, other| other.cmp(one));
        sequences.iter().filter_map(|sequence| self.tombstones.get(sequence)).collect()
    }

    /// Returns the tombstones after a position, in order of sequence.
    pub fn tombstones_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, &Tombstone)> {
        self.tombstones.range(position.next()..).map(|(sequence, tombstone)| (*sequence, tombstone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Backend, ClusterName, DeleteReason, Kind, Object, Record, Service, SourceStamp};

    fn key(name: &str) -> EntryKey {
        EntryKey::new(Kind::Ip, ClusterName::parse("paris").unwrap(), name)
    }

    fn change(sequence: u64, name: &str, replaces: Option<u64>, deleted: bool) -> Announcement {
        Announcement {
            sequence: Sequence(sequence),
            key: key(name),
            old: None,
            new: None,
            revision: None,
            replaces: replaces.map(Sequence),
            deleted: deleted.then_some(DeleteReason::Deleted),
        }
    }

    fn feed(count_max: usize) -> Feed {
        Feed::starting_at(Sequence(100), Retention { age_max: Duration::from_secs(60), count_max })
    }

    fn tombstones(feed: &Feed, after: u64) -> Vec<(u64, String)> {
        feed.tombstones_after(Sequence(after)).map(|(sequence, tombstone)| (sequence.0, tombstone.key.name.to_string())).collect()
    }

    #[test]
    fn a_tombstone_is_removed_when_its_key_is_added_again() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        feed.announce(change(101, "a", None, false), now);
        feed.announce(change(102, "b", None, false), now);
        feed.announce(change(103, "a", Some(101), true), now);
        feed.announce(change(104, "b", Some(102), true), now);
        assert_eq!(tombstones(&feed, 100), [(103, "a".to_owned()), (104, "b".to_owned())]);
        assert_eq!(tombstones(&feed, 103), [(104, "b".to_owned())]);
        feed.announce(change(105, "b", None, false), now);
        assert_eq!(tombstones(&feed, 100), [(103, "a".to_owned())]);
        assert_eq!(feed.tombstone_count(), 1);
        assert_eq!(feed.floor(), Sequence(100));
    }

    #[test]
    fn the_tombstones_of_an_address_are_found_in_every_cluster_newest_first() {
        let mut feed = feed(100);
        let texts = [
            "ip/v1/eu/10.1.2.4",
            "ip/v1/eu-west/10.1.2.3",
            "ip/v1/eu/10.1.2.3/32",
            "ip/v1/tokyo/10.1.2.30",
            "nodes/v1/paris/worker#10.1.2.3",
            "nodes/v1/paris/worker#10.1.2.0/24",
            "nodes/v1/paris/10.1.2.3",
            "ip/v1/tokyo/10.1.2.3",
        ];
        for (text, sequence) in texts.iter().zip(101..) {
            let key = EntryKey::from_cache_form(&format!("cilium/cache/{text}")).unwrap();
            feed.announce(Announcement { key, ..change(sequence, "", None, true) }, SystemTime::UNIX_EPOCH);
        }
        let found = feed.tombstones_at("10.1.2.3/32".parse().unwrap());
        let found: Vec<String> = found.iter().map(|tombstone| tombstone.key.to_string()).collect();
        assert_eq!(found, [7, 4, 2, 1].map(|index: usize| format!("cilium/cache/{}", texts[index])));
    }

    #[test]
    fn removing_a_tombstone_raises_the_floor() {
        let start = SystemTime::UNIX_EPOCH;
        let mut feed = feed(1);
        feed.announce(change(101, "a", None, true), start);
        feed.announce(change(102, "b", None, true), start);
        assert_eq!((feed.floor(), feed.tombstone_count()), (Sequence(101), 1));
        feed.trim(start + Duration::from_secs(61), &mut FeedEffects::default());
        assert_eq!((feed.floor(), feed.tombstone_count()), (Sequence(102), 0));
        assert_eq!(feed.trimmed(), TrimmedCounts { by_age: 1, by_count: 1 });
    }

    #[test]
    fn the_ring_answers_only_if_it_has_all_announcements() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        let total = RING_LENGTH_MAX as u64 + 5;
        for sequence in 101..=100 + total {
            feed.announce(change(sequence, "a", (sequence > 101).then(|| sequence - 1), false), now);
        }
        let oldest = 100 + total - RING_LENGTH_MAX as u64;
        let first = feed.ring_after(Sequence(oldest)).unwrap().next().unwrap();
        assert_eq!(first.sequence, Sequence(oldest + 1));
        assert!(feed.ring_after(Sequence(oldest - 1)).is_none());
        assert_eq!(feed.ring_after(feed.head()).unwrap().count(), 0);
        let recent = |after: u64| feed.recent_after(Sequence(after)).map(|announcement| announcement.sequence.0).collect::<Vec<_>>();
        assert_eq!(recent(0), (oldest + 1..=100 + total).collect::<Vec<_>>());
        assert_eq!((recent(98 + total), recent(100 + total)), (vec![99 + total, 100 + total], vec![]));
    }

    /// A service with this number of backends, as JSON and decoded.
    fn service(backends: u32) -> (Arc<[u8]>, Service) {
        let address = |number: u32| std::net::IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number));
        let port = |number: u32| format!(r#""{}":{{"http":{{"Protocol":"TCP","Port":80}}}}"#, address(number));
        let value = format!(
            r#"{{"cluster":"paris","namespace":"shop","name":"cart","backends":{{{}}}}}"#,
            (0..backends).map(port).collect::<Vec<_>>().join(",")
        );
        let backend = |number| Backend { ip: address(number), ports: Arc::default(), hostname: String::new(), zone: None };
        (value.into_bytes().into(), Service { backends: (0..backends).map(backend).collect(), ..Service::default() })
    }

    fn service_key() -> EntryKey {
        EntryKey::new(Kind::Service, ClusterName::parse("paris").unwrap(), "shop/cart")
    }

    fn version(sequence: u64, (value, object): &(Arc<[u8]>, Service)) -> Version {
        let record = Record {
            key: service_key(),
            value: Arc::from(&value[..]),
            good_value: None,
            object: Some(Arc::new(Object::Service(object.clone()))),
            rejection: None,
            source: SourceStamp::default(),
            create_sequence: Sequence(1),
            last_sequence: Sequence(sequence),
            version: sequence,
            generation: 1,
        };
        Version::from_record(&record)
    }

    #[test]
    fn the_ring_is_bounded_in_bytes_and_always_has_the_newest_change() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        // the committer publishes a snapshot like this after each batch
        let mut published = feed.clone();
        let usual = service(5_000);
        let allocations = allocation_counter::measure(|| {
            for sequence in 101..=100 + 1_600 {
                let (old, new) = (Some(version(sequence - 1, &usual)), Some(version(sequence, &usual)));
                let announcement = change(sequence, "", Some(sequence - 1), false);
                feed.announce(Announcement { key: service_key(), old, new, ..announcement }, now);
                published = feed.clone();
                assert!(feed.ring_bytes() <= RING_BYTES_MAX + RING_OBJECT_BYTES_MAX);
            }
        });
        let ring_bytes: usize =
            feed.recent_after(Sequence(0)).map(|announcement| announcement.byte_count() + announcement.object_bytes()).sum();
        assert_eq!(ring_bytes, feed.ring_bytes());
        assert!((60..200).contains(&feed.ring_length()), "{} announcements", feed.ring_length());
        // in addition to the ring, the map of the service that is being built uses memory
        let allocated_max = u64::try_from(RING_BYTES_MAX + RING_OBJECT_BYTES_MAX).unwrap() * 5 / 4;
        assert!(allocations.bytes_max < allocated_max, "{} bytes were allocated", allocations.bytes_max);
        // old objects are decoded again, and shared while a reader has them
        let oldest = Arc::clone(published.recent_after(Sequence(0)).next().unwrap());
        assert_eq!(oldest.object_bytes(), 0);
        let (one, other) = (oldest.new_object().unwrap(), oldest.new_object().unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        // larger than the whole ring, and dropped when the next change is added
        let large = Some(version(1_701, &service(1_500_000)));
        feed.announce(Announcement { key: service_key(), new: large, ..change(1_701, "", Some(1_700), false) }, now);
        assert!(feed.ring_bytes() > RING_BYTES_MAX);
        assert_eq!(feed.ring_after(Sequence(1_700)).map(Iterator::count), Some(1));
        feed.announce(change(1_702, "a", None, false), now);
        assert_eq!((feed.ring_length(), feed.ring_bytes() < 1_000), (1, true));
    }
}

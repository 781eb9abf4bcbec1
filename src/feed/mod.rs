//! The order of changes: a short ring of announcements for readers that keep up, tombstones for those that do not.
//!
//! Owns: the ring and the tombstones. Receives the announcements of the one writer. Emits what a reader at a position still lacks of
//! them. Like the views it is persistent: a clone is a snapshot. Deliberately lacks: IO, awaiting, and the keys that exist, which the view
//! has in order of sequence too (`View::live_after`).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use imbl::{OrdMap, Vector};

use crate::model::{Announcement, EntryKey, Kind, ObjectPrefix, Sequence, Tombstone};

/// How many announcements the ring holds. At 20,000 changes/s, the highest rate of the plan, this is 0.8 s: far more than the 50 ms
/// between two looks of a reader that keeps up; behind that a reader goes through the view. Each takes some 0.6 KB, 10 MB in all.
pub const RING_LENGTH_MAX: usize = 16_384;

/// How many bytes the announcements of the ring take: 4 KiB each if there are as many as may be, so that nothing but services and endpoint
/// slices comes near. One of a service of 5,000 backends has some 0.8 MB, its value before and after: the ring holds 80 of them, what an etcd
/// that takes 10 MB/s of writes brings in 3 s. The newest announcement is always there.
pub const RING_BYTES_MAX: usize = 64 << 20;

/// How many bytes the decoded objects take that the newest announcements keep: of entries and identities, some 0.5 KB for both sides of a
/// change, those of the last 8,000, as many as wait for streams at most before they are merged. What is older is decoded on demand.
pub const RING_OBJECT_BYTES_MAX: usize = 4 << 20;

/// How many tombstones of entries that were derived from nodes are looked at for one address: their keys are in order of nodes. Each takes some
/// 100 ns, all of them 5 ms; 50,000 are the addresses of 10,000 nodes that went.
const NODE_TOMBSTONES_LOOKED_AT_MAX: usize = 50_000;

/// How far back positions may reach (docs/use/api/streams.md: `--tombstone-max-age`, `--tombstone-max-count`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Older tombstones go.
    pub age_max: Duration,
    /// With more tombstones than this the oldest go.
    pub count_max: usize,
}

/// How many tombstones went since the start because of each bound: the one that bites decides how far back positions reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrimmedCounts {
    /// Older than [`Retention::age_max`].
    pub by_age: u64,
    /// More than [`Retention::count_max`].
    pub by_count: u64,
}

/// What a change did to the tombstones: to be stored in the batch of the change.
#[derive(Debug, Default, PartialEq)]
pub struct TombstoneEffects {
    /// New ones (`Some`) and those that went (`None`).
    pub tombstones: BTreeMap<Sequence, Option<Tombstone>>,
    /// The floor, where trimming raised it.
    pub floor: Option<Sequence>,
}

/// The order of changes. Cloning makes a snapshot.
#[derive(Debug, Clone)]
pub struct Feed {
    ring: Vector<Arc<Announcement>>,
    /// How many bytes its announcements have, objects left out.
    ring_bytes: usize,
    /// How many of its newest announcements keep their objects, and how many bytes these take.
    with_objects: usize,
    object_bytes: usize,
    tombstones: OrdMap<Sequence, Tombstone>,
    /// Where a key's tombstone is, so that it goes when the key comes back.
    tombstone_of: OrdMap<EntryKey, Sequence>,
    /// Where this start of meshkeep began.
    start: Sequence,
    /// A position below this one may have missed a delete.
    floor: Sequence,
    head: Sequence,
    retention: Retention,
    trimmed: TrimmedCounts,
}

impl Feed {
    /// An empty order in which `start` is the position of everything that was there before.
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
        }
    }

    /// Takes in a tombstone that the store held.
    pub fn restore_tombstone(&mut self, sequence: Sequence, tombstone: Tombstone) {
        self.tombstone_of.insert(tombstone.key.clone(), sequence);
        self.tombstones.insert(sequence, tombstone);
    }

    /// Positions below this one may have missed a delete whose tombstone is gone.
    pub fn restore_floor(&mut self, floor: Sequence) {
        self.floor = floor;
    }

    /// Takes in one change. Sequences must grow.
    pub fn announce(&mut self, announcement: Announcement, now: SystemTime) -> TombstoneEffects {
        let mut effects = TombstoneEffects::default();
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
        effects
    }

    /// Adds to the ring, and makes room in it. The newest announcement stays, however large it is.
    fn push(&mut self, announcement: Arc<Announcement>) {
        self.ring_bytes += announcement.byte_count();
        self.object_bytes += announcement.object_bytes();
        self.with_objects += 1;
        self.ring.push_back(announcement);
        while self.ring.len() > RING_LENGTH_MAX || (self.ring_bytes > RING_BYTES_MAX && self.ring.len() > 1) {
            if self.with_objects == self.ring.len() {
                self.let_oldest_objects_go();
            }
            let Some(oldest) = self.ring.pop_front() else { return };
            self.ring_bytes -= oldest.byte_count();
        }
        while self.object_bytes > RING_OBJECT_BYTES_MAX && self.with_objects > 1 {
            self.let_oldest_objects_go();
        }
    }

    fn let_oldest_objects_go(&mut self) {
        if let Some(oldest) = self.ring.get(self.ring.len() - self.with_objects) {
            self.object_bytes -= oldest.object_bytes();
            oldest.let_objects_go();
        }
        self.with_objects -= 1;
    }

    /// Drops tombstones that are too old or too many, and raises the floor past them.
    fn trim(&mut self, now: SystemTime, effects: &mut TombstoneEffects) {
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

    /// The sequence of the newest change.
    #[must_use]
    pub fn head(&self) -> Sequence {
        self.head
    }

    /// Where this start of meshkeep began: all that it announced has higher sequences.
    #[must_use]
    pub fn start(&self) -> Sequence {
        self.start
    }

    /// The oldest position from which nothing is lost.
    #[must_use]
    pub fn floor(&self) -> Sequence {
        self.floor
    }

    /// Which bound took tombstones away.
    #[must_use]
    pub fn trimmed(&self) -> TrimmedCounts {
        self.trimmed
    }

    /// How many announcements the ring holds now.
    #[must_use]
    pub fn ring_length(&self) -> usize {
        self.ring.len()
    }

    /// How many bytes the ring takes, and the objects that its newest announcements keep.
    #[must_use]
    pub fn ring_bytes(&self) -> usize {
        self.ring_bytes + self.object_bytes
    }

    /// How many tombstones are kept.
    #[must_use]
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// When the oldest of them was laid.
    #[must_use]
    pub fn oldest_tombstone(&self) -> Option<SystemTime> {
        self.tombstones.get_min().map(|(_, oldest)| oldest.time)
    }

    /// The announcements after a position, or `None` where the ring no longer holds all of them.
    #[must_use]
    pub fn ring_after(&self, position: Sequence) -> Option<impl Iterator<Item = &Arc<Announcement>>> {
        let is_whole = self.head.0.saturating_sub(position.0) <= self.ring.len() as u64;
        is_whole.then(|| self.recent_after(position))
    }

    /// What the ring holds of the announcements after a position.
    pub fn recent_after(&self, position: Sequence) -> impl Iterator<Item = &Arc<Announcement>> {
        let start = self.ring.len().saturating_sub(usize::try_from(self.head.0.saturating_sub(position.0)).unwrap_or(usize::MAX));
        self.ring.focus().narrow(start..).into_iter()
    }

    /// The tombstones of ip entries for exactly an address, of every cluster, those derived from nodes included, newest first.
    #[must_use]
    pub fn gone_at(&self, ip: IpAddr) -> Vec<&Tombstone> {
        let names = [true, false].map(|host| ObjectPrefix { net: ip.into(), host }.to_string());
        let mut found: Vec<Sequence> = Vec::new();
        let mut start = EntryKey::lowest_of(Kind::Ip);
        // from cluster to cluster: what lies between is not looked at
        while let Some((first, _)) = self.tombstone_of.range(start.clone()..).next().filter(|(key, _)| key.kind == Kind::Ip) {
            let key = |name: &str| EntryKey::new(Kind::Ip, first.cluster.clone(), name);
            found.extend(names.iter().filter_map(|name| self.tombstone_of.get(&key(name))));
            start = key("\u{10ffff}");
        }
        let derived = self.tombstone_of.range(EntryKey::lowest_of(Kind::NodeIp)..).take(NODE_TOMBSTONES_LOOKED_AT_MAX);
        let derived = derived.take_while(|(key, _)| key.kind == Kind::NodeIp);
        let is_at = |key: &EntryKey| EntryKey::split_node_ip(&key.name).is_some_and(|(_, prefix)| prefix.net == ip.into());
        found.extend(derived.filter(|(key, _)| is_at(key)).map(|(_, sequence)| *sequence));
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.iter().filter_map(|sequence| self.tombstones.get(sequence)).collect()
    }

    /// The tombstones after a position, in order of sequence.
    pub fn gone_after(&self, position: Sequence) -> impl Iterator<Item = (Sequence, &Tombstone)> {
        self.tombstones.range(position.next()..).map(|(sequence, tombstone)| (*sequence, tombstone))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Backend, ClusterName, DeleteReason, Kind, Object, Record, Service, SourceStamp, Version};

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

    fn gone(feed: &Feed, after: u64) -> Vec<(u64, String)> {
        feed.gone_after(Sequence(after)).map(|(sequence, tombstone)| (sequence.0, tombstone.key.name.to_string())).collect()
    }

    #[test]
    fn a_tombstone_goes_when_its_key_comes_back() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        feed.announce(change(101, "a", None, false), now);
        feed.announce(change(102, "b", None, false), now);
        feed.announce(change(103, "a", Some(101), true), now);
        feed.announce(change(104, "b", Some(102), true), now);
        assert_eq!(gone(&feed, 100), [(103, "a".to_owned()), (104, "b".to_owned())]);
        assert_eq!(gone(&feed, 103), [(104, "b".to_owned())]);
        feed.announce(change(105, "b", None, false), now);
        assert_eq!(gone(&feed, 100), [(103, "a".to_owned())]);
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
        let found = feed.gone_at("10.1.2.3".parse().unwrap());
        let found: Vec<String> = found.iter().map(|tombstone| tombstone.key.to_string()).collect();
        assert_eq!(found, [7, 4, 2, 1].map(|place: usize| format!("cilium/cache/{}", texts[place])));
    }

    #[test]
    fn tombstones_past_their_count_or_age_raise_the_floor() {
        let start = SystemTime::UNIX_EPOCH;
        let mut feed = feed(1);
        feed.announce(change(101, "a", None, true), start);
        feed.announce(change(102, "b", None, true), start);
        assert_eq!((feed.floor(), feed.tombstone_count()), (Sequence(101), 1));
        feed.trim(start + Duration::from_secs(61), &mut TombstoneEffects::default());
        assert_eq!((feed.floor(), feed.tombstone_count()), (Sequence(102), 0));
        assert_eq!(feed.trimmed(), TrimmedCounts { by_age: 1, by_count: 1 });
    }

    #[test]
    fn the_ring_answers_only_while_it_holds_everything() {
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

    /// A service of so many backends, as it comes and decoded.
    fn service(backends: u32) -> (Arc<[u8]>, Service) {
        let address = |number: u32| std::net::IpAddr::from(std::net::Ipv4Addr::from(0x0a00_0000 + number));
        let port = |number: u32| format!(r#""{}":{{"http":{{"Protocol":"TCP","Port":80}}}}"#, address(number));
        let value = format!(r#"{{"backends":{{{}}}}}"#, (0..backends).map(port).collect::<Vec<_>>().join(","));
        let backend = |number| Backend { ip: address(number), ports: Arc::default(), hostname: String::new(), zone: None };
        (value.into_bytes().into(), Service { backends: (0..backends).map(backend).collect(), ..Service::default() })
    }

    fn version(sequence: u64, backends: u32) -> Version {
        let (value, object) = service(backends);
        let record = Record {
            key: EntryKey::new(Kind::Service, ClusterName::parse("paris").unwrap(), "shop/cart"),
            value,
            good_value: None,
            object: Some(Arc::new(Object::Service(object))),
            rejection: None,
            source: SourceStamp::default(),
            create_sequence: Sequence(1),
            last_sequence: Sequence(sequence),
            version: sequence,
            generation: 1,
        };
        Version::of(&record, |_, value| Some(Arc::new(Object::Service(service(u32::try_from(value.len() / 50).unwrap()).1))))
    }

    #[test]
    fn the_ring_is_bounded_in_bytes_and_always_has_the_newest_change() {
        let now = SystemTime::UNIX_EPOCH;
        let mut feed = feed(10);
        // as a writer's snapshots are
        let mut published = feed.clone();
        let held = allocation_counter::measure(|| {
            for sequence in 101..=100 + 1_600 {
                let (old, new) = (Some(version(sequence - 1, 5_000)), Some(version(sequence, 5_000)));
                feed.announce(Announcement { old, new, ..change(sequence, "shop/cart", Some(sequence - 1), false) }, now);
                published = feed.clone();
                assert!(feed.ring_bytes() <= RING_BYTES_MAX + RING_OBJECT_BYTES_MAX);
            }
        });
        let kept: usize = feed.recent_after(Sequence(0)).map(|announcement| announcement.byte_count() + announcement.object_bytes()).sum();
        assert_eq!(kept, feed.ring_bytes());
        assert!((60..200).contains(&feed.ring_length()), "{} announcements", feed.ring_length());
        // the map of the service that is made meanwhile comes on top
        let most = u64::try_from(RING_BYTES_MAX + RING_OBJECT_BYTES_MAX).unwrap() * 5 / 4;
        assert!(held.bytes_max < most, "{} bytes were held", held.bytes_max);
        // what is old is decoded anew, and by one who asks while another has it not again
        let oldest = Arc::clone(published.recent_after(Sequence(0)).next().unwrap());
        assert_eq!(oldest.object_bytes(), 0);
        let (one, other) = (oldest.new_object().unwrap(), oldest.new_object().unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        // more than all that there may be, and gone when something else comes
        let large = Some(version(1_701, 1_500_000));
        feed.announce(Announcement { new: large, ..change(1_701, "shop/cart", Some(1_700), false) }, now);
        assert!(feed.ring_bytes() > RING_BYTES_MAX);
        assert_eq!(feed.ring_after(Sequence(1_700)).map(Iterator::count), Some(1));
        feed.announce(change(1_702, "a", None, false), now);
        assert_eq!((feed.ring_length(), feed.ring_bytes() < 1_000), (1, true));
    }
}
